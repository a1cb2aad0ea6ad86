"""Flips, shifts and quarter turns as integer pixel gathers: exact on uint8, one index table, any device.

A view is an image under one transform: flipped left to right or not, then shifted, then turned counter-clockwise.
Pixels that a shift brings in are the mirrored ones, the edge pixel repeated. Every factor's values start with the one
that does nothing, so transform 0 of the usual sets is the identity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from askew.errors import InvalidInput

if TYPE_CHECKING:
    import torch

Images = TypeVar("Images", NDArray[np.uint8], "torch.Tensor")

MOST_PIXELS: Final = 72 * 1024**2  # of all views of one image, the paper's at the largest side: a 288 MiB index table
MOST_VALUES: Final = 64  # of one factor
FACTORS: Final = ("flip", "row_shift", "column_shift", "turn")


class Transform(NamedTuple):
    """One known transform, as a person reads it."""

    flip: bool
    row_shift: int  # in pixels: out[i, j] = in[i + row_shift, j + column_shift]
    column_shift: int
    turn: int  # quarter turns, counter-clockwise


@dataclass(frozen=True)
class TransformSet:
    """Every combination of the values given for each factor; the last factor, the turn, runs fastest.

    `transforms[t]` reads transform t, `labels[t]` its place among each factor's values, `table[t]` the source pixel of
    every pixel of its view.
    """

    side: int
    flips: tuple[bool, ...] = (False,)
    row_shifts: tuple[int, ...] = (0,)
    column_shifts: tuple[int, ...] = (0,)
    turns: tuple[int, ...] = (0,)

    @classmethod
    def paper(cls, side: int) -> "TransformSet":
        """The paper's 72: flip or not, shifts of a quarter of the side, all turns; index 36f + 12r + 4c + k."""
        shifts = (0, -(side // 4), side // 4)
        return cls(side, (False, True), shifts, shifts, (0, 1, 2, 3))

    @classmethod
    def flips_and_turns(cls, side: int) -> "TransformSet":
        """The paper's small set of 8, which serves its gradient-ascent figure."""
        return cls(side, flips=(False, True), turns=(0, 1, 2, 3))

    def __post_init__(self) -> None:
        if self.side < 8:
            raise InvalidInput(f"transforms need images of at least 8x8 pixels, got a side of {self.side}")
        for name, values in zip(FACTORS, self.values, strict=True):
            if not isinstance(values, tuple) or not 0 < len(values) <= MOST_VALUES or len(set(values)) < len(values):
                raise InvalidInput(f"{name} needs a tuple of 1 to {MOST_VALUES} values, each once, got {values!r}")
            if not all(isinstance(value, int | np.integer | np.bool_) for value in values):
                raise InvalidInput(f"{name} is counted in whole numbers, got {values!r}")
        if any(flip not in (False, True) for flip in self.flips):
            raise InvalidInput(f"an image is flipped or not, False or True, got {self.flips}")
        if any(abs(shift) > self.side for shift in (*self.row_shifts, *self.column_shifts)):
            raise InvalidInput(f"a shift cannot exceed the side of {self.side} pixels")
        if any(turn not in (0, 1, 2, 3) for turn in self.turns):
            raise InvalidInput(f"turns are counted in quarters from 0 to 3, got {self.turns}")

        views = math.prod(len(values) for values in self.values)
        if views * self.side**2 > MOST_PIXELS:
            raise InvalidInput(f"{views} views of {self.side}x{self.side} pixels are too many; choose a smaller side")

    def __len__(self) -> int:
        return len(self.transforms)

    @property
    def values(self) -> tuple[tuple[bool, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Each factor's values, in the order of `FACTORS`."""
        return self.flips, self.row_shifts, self.column_shifts, self.turns

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """All transforms, in index order."""
        return tuple(Transform(*values) for values in product(*self.values))

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """[t, 4]: each transform's position among the values of each factor, in the order of `FACTORS`."""
        counts = [range(len(values)) for values in self.values]
        return np.array(list(product(*counts)), dtype=np.int64)

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """[t, side * side]: the flat index of the source pixel of every pixel of every view."""
        pixels = np.arange(self.side * self.side, dtype=np.int32).reshape(self.side, self.side)
        return np.stack([_view(pixels, transform).ravel() for transform in self.transforms])

    def apply(self, images: Images) -> Images:
        """[n, h, w, c] to [n, t, h, w, c], of the same kind, type and device."""
        n, height, width, channels = _checked_shape(images, self.side)
        flat: Any = images.reshape(n, height * width, channels)
        if isinstance(images, np.ndarray):
            views = flat[:, self.table]
        else:
            views = flat.index_select(1, table_on(self, images.device).view(-1))
        return views.reshape(n, len(self), height, width, channels)  # type: ignore[no-any-return]

    def view(self, images: "torch.Tensor", transforms: "torch.Tensor") -> "torch.Tensor":
        """[n, h, w, c]: image i under transform `transforms[i]`."""
        n, height, width, channels = _checked_shape(images, self.side)
        sources = table_on(self, images.device)[transforms].long()
        flat = images.reshape(n, height * width, channels)
        gathered = flat.gather(1, sources[:, :, None].expand(-1, -1, channels))
        return gathered.view(n, height, width, channels)


_TABLES: dict[tuple[TransformSet, str], "torch.Tensor"] = {}


def table_on(transforms: TransformSet, device: "torch.device") -> "torch.Tensor":
    """The index table as a tensor on `device`, made once."""
    import torch

    key = (transforms, str(device))
    if key not in _TABLES:
        _TABLES[key] = torch.from_numpy(transforms.table).to(device)
    return _TABLES[key]


def _view(pixels: NDArray[Any], transform: Transform) -> NDArray[Any]:
    """One [side, side] grid under one transform: what `table` is made of."""
    if transform.flip:
        pixels = pixels[:, ::-1]
    rows = _mirrored(np.arange(len(pixels)) + transform.row_shift, len(pixels))
    columns = _mirrored(np.arange(len(pixels)) + transform.column_shift, len(pixels))
    return np.rot90(pixels[np.ix_(rows, columns)], transform.turn)


def _mirrored(positions: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """Positions outside 0..side-1 mirrored at the edge, the edge pixel repeated."""
    # Paper: scipy's `reflect`, which numpy calls `symmetric`; what numpy and torch call `reflect` is another fill.
    positions = np.where(positions < 0, -positions - 1, positions)
    return np.where(positions >= side, 2 * side - 1 - positions, positions)


def _checked_shape(images: "NDArray[Any] | torch.Tensor", side: int) -> Sequence[int]:
    if images.ndim != 4 or images.shape[1] != side or images.shape[2] != side:
        raise InvalidInput(
            f"these transforms are for images [n, {side}, {side}, c], got {list(images.shape)}; "
            "images must be square for quarter turns"
        )
    return images.shape
