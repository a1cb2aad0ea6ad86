"""The detectors, by name, and `load` for the files they write. A new one is a file and a line in `DETECTORS`."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from askew.detectors.files import load, read_model
from askew.errors import BadFile, extra_for

if TYPE_CHECKING:
    from askew.detectors.contract import Detector

__all__ = ["DETECTORS", "detector_class", "load", "read_model"]

DETECTORS: Final = {
    "geometric": ("askew.detectors.geometric", "GeometricDetector"),
    "raw-ocsvm": ("askew.detectors.raw_ocsvm", "RawOcsvmDetector"),
    "cae-ocsvm": ("askew.detectors.cae_ocsvm", "CaeOcsvmDetector"),
    "deep-svdd": ("askew.detectors.deep_svdd", "DeepSvddDetector"),
    "dsebm": ("askew.detectors.dsebm", "DsebmDetector"),
    "dagmm": ("askew.detectors.dagmm", "DagmmDetector"),
    "adgan": ("askew.detectors.adgan", "AdganDetector"),
}


def detector_class(kind: str) -> "type[Detector]":
    """The class registered under that name."""
    if kind not in DETECTORS:
        raise BadFile(f"there is no detector {kind!r} in this askew; known are {', '.join(DETECTORS)}")
    module, name = DETECTORS[kind]
    with extra_for("fitting and scoring"):
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
