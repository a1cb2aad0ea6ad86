"""Model files: what a detector learned and what it says of itself, checked field by field before anything is built."""

import os
import platform
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from askew import __version__, storage
from askew.detectors.features import FeatureLayout
from askew.errors import AskewError, BadFile
from askew.images import SizePolicy, printable
from askew.threshold import Threshold

if TYPE_CHECKING:
    from askew.detectors.contract import Detector

Arrays = dict[str, NDArray[Any]]
STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainingRecord(BaseModel):
    """How and on what a detector was fitted."""

    model_config = STRICT
    images: int = Field(ge=1)
    held_out: int = Field(ge=0)
    groups: bool
    cross_fit: int
    seed: int
    seconds: float
    fingerprint: str  # of the set of images, in any order
    random_state: int | None  # None: it was a generator
    wanted_rate: float | Literal["auto"]
    holdout: float | None = None  # the share asked for; None: the settings'
    weaknesses: tuple[str, ...] = ()


class ModelRecord(BaseModel):
    """The JSON document of a model file. `learned` is the detector's own, checked by its `Learned` model."""

    model_config = STRICT
    detector: str
    settings: dict[str, Any]
    precision: Literal["fp32", "bf16"]
    compiled: bool = False
    policy: SizePolicy
    features: FeatureLayout | None = None
    image_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None, min_length=2, max_length=3)
    false_alarm_rate: float | None = Field(gt=0, lt=1)
    exact: bool
    training: TrainingRecord
    versions: dict[str, str]
    learned: dict[str, Any] = {}


def write_model(path: str | os.PathLike[str], detector: "Detector") -> None:
    """Write a fitted detector, atomically."""
    line = detector.threshold_
    record = ModelRecord(
        detector=detector.kind,
        settings=detector.settings_.model_dump(mode="json"),
        precision=detector.engine_.precision,
        compiled=detector.engine_.compiled,
        policy=detector.policy_,
        features=detector.features_,
        image_shape=detector.image_shape,
        false_alarm_rate=None if line is None else line.false_alarm_rate,
        exact=line is None or line.exact,
        training=detector.training_,
        versions={"askew": __version__, "torch": version("torch"), "python": platform.python_version()},
        learned=detector._learned().model_dump(mode="json"),
    )
    tensors = {**detector._tensors(), "fingerprints": detector.fingerprints_}
    if line is not None:
        tensors["calibration"] = line.calibration
    storage.write(path, kind="model", tensors=tensors, document=record.model_dump(mode="json"))


def read_model(path: str | os.PathLike[str]) -> tuple[Arrays, ModelRecord, Threshold | None]:
    """The tensors, the record and the threshold of a model file, checked; needs no torch."""
    tensors, document = storage.read(path, kind="model")
    try:
        record = ModelRecord.model_validate(document)
        fingerprints = tensors["fingerprints"]
        if fingerprints.dtype != np.uint64 or fingerprints.ndim != 1:
            raise BadFile("its fingerprints are not a list of 64-bit numbers")
        calibration = tensors.pop("calibration", None)
        if (calibration is None) != (record.false_alarm_rate is None):
            raise BadFile("it has half a threshold")
        if calibration is None or record.false_alarm_rate is None:
            return tensors, record, None
        return tensors, record, Threshold(calibration, record.false_alarm_rate, record.exact)
    except (ValidationError, KeyError, AskewError) as error:
        raise unusable(path, error) from error


def load(path: str | os.PathLike[str], *, device: str = "auto") -> "Detector":
    """The detector saved in a model file, giving the scores it gave when it was saved."""
    from askew.detectors import detector_class

    tensors, record, line = read_model(path)
    kind = detector_class(record.detector)  # or a word on what is not installed, before torch is needed
    from askew.engine import Engine

    detector = kind(device=device, precision=record.precision, compiled=record.compiled)
    detector.engine_ = replace(Engine.choose(device, record.precision), compiled=record.compiled)
    try:
        detector.settings_ = detector.Settings.model_validate(record.settings)
        detector.policy_, detector.features_, detector.training_ = record.policy, record.features, record.training
        if record.features is not None:
            detector.n_features_in_ = len(record.features.low)
        detector.threshold_, detector.fingerprints_ = line, np.sort(tensors.pop("fingerprints"))
        # The parameters that fit it again the same way, so that a clone is the same detector.
        detector.set_params(
            preset=detector.settings_,
            false_alarm_rate=record.training.wanted_rate,
            side=None if record.features else record.policy.side,
            size=record.policy.fit,
            image_shape=record.image_shape,
            holdout=record.training.holdout,
            cross_fit=record.training.cross_fit,
            random_state=record.training.random_state,
        )
        detector._restore(tensors, record.learned)
        return detector
    except (ValidationError, KeyError, ValueError, RuntimeError, TypeError, AskewError) as error:
        raise unusable(path, error) from error


def unusable(path: str | os.PathLike[str], error: Exception) -> BadFile:
    """One line on why a file that is whole still makes no detector."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
    return BadFile(f"{printable(os.fspath(path))} is not a usable model: {printable(reason)}")
