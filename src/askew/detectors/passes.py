"""Images or rows in batches of one shape, so that the numbers of one never depend on its companions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def passes(images: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    """Batches of exactly that many images; the last is filled up with zeros, whose results are to be dropped."""
    for start in range(0, len(images), size):
        piece = images[start : start + size]
        if len(piece) < size:
            piece = np.concatenate([piece, np.zeros((size - len(piece), *images.shape[1:]), images.dtype)])
        yield piece
