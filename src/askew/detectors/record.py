"""What a model file says of itself, checked field by field when it is read."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from askew.detectors.features import FeatureLayout
from askew.images import SizePolicy

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TransformRecord(BaseModel):
    """A `TransformSet`, value by value."""

    model_config = STRICT
    flips: tuple[bool, ...] = Field(min_length=1, max_length=2)
    row_shifts: tuple[int, ...] = Field(min_length=1, max_length=9)
    column_shifts: tuple[int, ...] = Field(min_length=1, max_length=9)
    turns: tuple[int, ...] = Field(min_length=1, max_length=4)


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
    weaknesses: tuple[str, ...] = ()


class ModelRecord(BaseModel):
    """The JSON document of a model file."""

    model_config = STRICT
    detector: str
    settings: dict[str, Any]
    precision: Literal["fp32", "bf16"]
    policy: SizePolicy
    features: FeatureLayout | None = None
    n_features: int | None = None
    false_alarm_rate: float | None = Field(gt=0, lt=1)
    exact: bool
    training: TrainingRecord
    versions: dict[str, str]
    transforms: TransformRecord | None = None
    recognition: dict[str, float] = {}
