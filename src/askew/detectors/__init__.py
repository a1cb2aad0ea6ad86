"""The detectors, by name, and `load` for the files they write. A new one is a file and a line in `DETECTORS`."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from askew import storage
from askew.errors import AskewError, BadFile, MissingExtra

if TYPE_CHECKING:
    from askew.detectors.contract import Detector

DETECTORS: Final = {"geometric": ("askew.detectors.geometric", "GeometricDetector")}


def detector_class(kind: str) -> "type[Detector]":
    """The class registered under that name."""
    if kind not in DETECTORS:
        raise BadFile(f"there is no detector {kind!r} in this askew; known are {', '.join(DETECTORS)}")
    module, name = DETECTORS[kind]
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "scipy", "sklearn"):
            raise
        raise MissingExtra(f"fitting and scoring need {error.name}: pip install 'askew[fit]'") from error


def load(path: str | os.PathLike[str], *, device: str = "auto") -> "Detector":
    """The detector saved in a model file, giving the scores it gave when it was saved."""
    from askew.detectors.record import ModelRecord

    tensors, document = storage.read(path, kind="model")
    try:
        record = ModelRecord.model_validate(document)
        return detector_class(record.detector)._from_file(tensors, record, device)
    except (ValidationError, KeyError, ValueError, RuntimeError, TypeError, BadFile) as error:
        if isinstance(error, AskewError) and not isinstance(error, BadFile):
            raise
        raise BadFile(f"{os.fspath(path)} is not a usable model: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
