"""Find the images that do not belong, having seen only ones that do.

detector = askew.GeometricDetector().fit("normal/")
detector.is_anomaly("new/")
detector.save("model.safetensors"); askew.load("model.safetensors")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"
__all__ = ["GeometricDetector", "__version__", "load"]

if TYPE_CHECKING:
    from askew.detectors import load
    from askew.detectors.geometric import GeometricDetector


def __getattr__(name: str) -> Any:
    # Loaded on first use: `askew --help` must not wait for torch.
    if name == "load":
        return import_module("askew.detectors").load
    if name == "GeometricDetector":
        return import_module("askew.detectors").detector_class("geometric")
    if name in ("detectors", "errors", "evaluation", "geometry", "networks"):
        return import_module(f"askew.{name}")
    raise AttributeError(f"module 'askew' has no attribute {name!r}")
