"""What a model file holds of a `GeometricDetector` besides its network's weights, checked when it is read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from askew.errors import BadFile
from askew.geometry.labels import SelfLabels
from askew.geometry.transforms import MOST_VALUES, TransformSet


class GeometricRecord(BaseModel):
    """What a model file says of a fitted `GeometricDetector` besides its arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    flips: tuple[bool, ...] = Field(min_length=1, max_length=2)
    row_shifts: tuple[int, ...] = Field(min_length=1, max_length=MOST_VALUES)
    column_shifts: tuple[int, ...] = Field(min_length=1, max_length=MOST_VALUES)
    turns: tuple[int, ...] = Field(min_length=1, max_length=4)
    recognition: dict[str, float]  # the share of normals' views whose transform is recognised, per question

    @classmethod
    def of(cls, transforms: TransformSet, recognition: dict[str, float]) -> "GeometricRecord":
        """The record of a detector with these transforms."""
        flips, row_shifts, column_shifts, turns = transforms.values
        return cls(
            flips=flips, row_shifts=row_shifts, column_shifts=column_shifts, turns=turns, recognition=recognition
        )

    def transform_set(self, side: int) -> TransformSet:
        """The transforms, for images of that side."""
        return TransformSet(side, self.flips, self.row_shifts, self.column_shifts, self.turns)


def alphas_by_name(questions: SelfLabels, alphas: list[NDArray[np.float64]]) -> dict[str, NDArray[Any]]:
    """The Dirichlets of each question, as a model file names them."""
    return {f"alphas/{name}": values for name, values in zip(questions.names, alphas, strict=True)}


def alphas_from(questions: SelfLabels, tensors: dict[str, NDArray[Any]]) -> list[NDArray[np.float64]]:
    """What `alphas_by_name` wrote, from a file that may be hostile."""
    alphas = [tensors[f"alphas/{name}"] for name in questions.names]
    for values, classes in zip(alphas, questions.classes, strict=True):
        if values.shape != (len(questions.transforms), classes) or not (np.isfinite(values) & (values > 0)).all():
            raise BadFile("its alphas do not fit its transforms")
    return alphas
