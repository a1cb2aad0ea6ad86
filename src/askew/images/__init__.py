"""Where images come from, how hostile files become pixels, and the one size they are all brought to."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew.images.arrays import source_of_array
    from askew.images.decoding import Decoded, decode
    from askew.images.names import printable
    from askew.images.normals import Normals, fingerprints, load_normals
    from askew.images.opening import open_images
    from askew.images.scan import Scan
    from askew.images.sizing import SizePolicy, auto_fit, prepare
    from askew.images.sources import ImageSource, source_of_files
    from askew.images.streaming import Batch, stream

__all__ = [
    "Batch",
    "Decoded",
    "ImageSource",
    "Normals",
    "Scan",
    "SizePolicy",
    "auto_fit",
    "decode",
    "fingerprints",
    "load_normals",
    "open_images",
    "prepare",
    "printable",
    "source_of_array",
    "source_of_files",
    "stream",
]

_HOMES = {
    "Batch": "streaming",
    "Decoded": "decoding",
    "ImageSource": "sources",
    "Normals": "normals",
    "Scan": "scan",
    "SizePolicy": "sizing",
    "auto_fit": "sizing",
    "decode": "decoding",
    "fingerprints": "normals",
    "load_normals": "normals",
    "open_images": "opening",
    "prepare": "sizing",
    "printable": "names",
    "source_of_array": "arrays",
    "source_of_files": "sources",
    "stream": "streaming",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: a name such as `printable` must not cost numpy, Pillow and pydantic.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
