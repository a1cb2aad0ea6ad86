"""Rows of features laid out as small images, so that a detector takes [n, features] as scikit-learn estimators do.

Features have no neighbours, so this is for compatibility: use an estimator made for tables where you have one.
"""

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from askew.errors import InvalidInput
from askew.images import ImageSource

SMALLEST_SIDE = 8


def check_kind(X: Any) -> None:
    """Raise InvalidInput where X is neither files nor numbers: scikit-learn and numpy would only miss an array."""
    if isinstance(X, str | bytes | os.PathLike | ImageSource | list | tuple):
        return
    if not hasattr(X, "shape") and not hasattr(X, "__array__"):
        raise InvalidInput(
            f"images are files, folders or an array, got {type(X).__name__}; "
            "of a data set give the images, such as data.train.images"
        )


def are_features(X: Any, image_shape: tuple[int, ...] | None) -> bool:
    """Whether X is to be read as rows of features: anything but files, images [n, h, w(, c)] and a given shape."""
    if isinstance(X, str | bytes | os.PathLike | ImageSource) or image_shape is not None:
        return False
    if isinstance(X, list | tuple) and (not X or any(isinstance(item, str | bytes | os.PathLike) for item in X)):
        return False
    return getattr(X, "ndim", None) not in (3, 4) and np.ndim(X[0] if isinstance(X, list | tuple) else 0) < 2


class FeatureLayout(BaseModel):
    """Each feature is one grey pixel, scaled by the range it had at fitting, in the smallest square, zeros after."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    low: tuple[float, ...] = Field(min_length=1)
    high: tuple[float, ...] = Field(min_length=1)

    @classmethod
    def of(cls, X: NDArray[np.float64]) -> "FeatureLayout":
        """The layout for rows like those of X [n, features]."""
        return cls(low=tuple(X.min(axis=0).tolist()), high=tuple(X.max(axis=0).tolist()))

    @property
    def side(self) -> int:
        """The side of the square."""
        return max(SMALLEST_SIDE, math.ceil(math.sqrt(len(self.low))))

    def images(self, X: NDArray[np.float64]) -> NDArray[np.uint8]:
        """[n, features] to uint8 [n, side, side, 1]; values outside the fitted range are clipped to it."""
        low, high = np.array(self.low), np.array(self.high)
        # Halved first: the range of two finite numbers can overflow.
        span = high / 2 - low / 2
        unit = np.divide(X / 2 - low / 2, span, out=np.zeros_like(X, dtype=np.float64), where=span > 0)
        pixels = np.zeros((len(X), self.side**2), np.uint8)
        pixels[:, : X.shape[1]] = np.rint(np.clip(unit, 0, 1) * 255)
        return pixels.reshape(len(X), self.side, self.side, 1)
