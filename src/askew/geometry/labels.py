"""What the classifier is asked about a view: which transform made it, as one question or as one per factor."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askew.geometry.transforms import FACTORS, TransformSet

Question = Literal["transform", "factors"]


@dataclass(frozen=True)
class SelfLabels:
    """The questions asked of every view of a transform set: `transform` is the paper's one, `factors` splits it.

    `names[q]` names question q, `classes[q]` counts its answers, `labels[t, q]` is the right one for transform t.
    """

    transforms: TransformSet
    question: Question

    @cached_property
    def _varied(self) -> list[int]:
        """The factors that take more than one value, or the first where none does."""
        return [f for f, values in enumerate(self.transforms.values) if len(values) > 1] or [0]

    @property
    def names(self) -> tuple[str, ...]:
        """What each question asks for."""
        return ("transform",) if self.question == "transform" else tuple(FACTORS[f] for f in self._varied)

    @property
    def classes(self) -> tuple[int, ...]:
        """How many answers each question has."""
        if self.question == "transform":
            return (len(self.transforms),)
        return tuple(len(self.transforms.values[f]) for f in self._varied)

    @property
    def labels(self) -> NDArray[np.int64]:
        """[t, questions]: the right answers."""
        if self.question == "transform":
            return np.arange(len(self.transforms))[:, None]
        return self.transforms.labels[:, self._varied]

    def split(self, answers: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """The answers [..., all classes] to each question, [..., its classes]."""
        return np.split(answers, np.cumsum(self.classes)[:-1], axis=-1)
