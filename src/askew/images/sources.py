"""Images by number, each read only when asked for."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import overload

import numpy as np
from numpy.typing import NDArray

from askew.errors import NoImages
from askew.images.decoding import Decoded, read_image
from askew.images.names import printable

NORMAL_NAMES = frozenset(("good", "normal", "normals", "nominal", "ok"))
ABNORMAL_NAMES = frozenset(
    ("abnormal", "anomalies", "anomalous", "anomaly", "bad", "broken", "defect", "defective", "defects", "faulty", "ng")
)


class Names(Sequence[str]):
    """Names made when they are asked for: a file of 4 KB may declare millions of images."""

    def __init__(self, count: int, at: Callable[[int], str]) -> None:
        self._indexes, self._at = range(count), at

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._at(each) for each in self._indexes[index]]
        return self._at(self._indexes[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """Images by number, none of them in memory.

    `names` are for people, `read_at` answers one image or raises `UnreadableImage`. `labels`, `groups` and `splits` are
    as long as `names`, or None where nothing is known. `notes` are the decisions taken while looking for the images.
    """

    names: Sequence[str]
    read_at: Callable[[int], Decoded]
    labels: list[str] | None = None
    groups: list[str] | None = None
    splits: list[str] | None = None
    notes: tuple[str, ...] = ()
    in_memory: bool = False  # reading is a copy, so threads would only cost

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Decoded:
        """The image at `index`; raises `UnreadableImage` and nothing else."""
        return self.read_at(index)

    def take(self, indexes: Sequence[int] | NDArray[np.integer]) -> "ImageSource":
        """The source of these images alone, in this order."""
        chosen = [int(index) for index in indexes]
        names, read_at = self.names, self.read_at

        def picked(column: list[str] | None) -> list[str] | None:
            return None if column is None else [column[index] for index in chosen]

        return replace(
            self,
            names=Names(len(chosen), lambda position: names[chosen[position]]),
            read_at=lambda position: read_at(chosen[position]),
            labels=picked(self.labels),
            groups=picked(self.groups),
            splits=picked(self.splits),
        )

    def noted(self, *notes: str) -> "ImageSource":
        """The same source with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def source_of_files(
    paths: list[str],
    *,
    labels: list[str] | None = None,
    groups: list[str] | None = None,
    splits: list[str] | None = None,
    notes: Sequence[str] = (),
) -> ImageSource:
    """The source of these image files, decoded when read."""
    return ImageSource(
        names=paths,
        read_at=lambda index: read_image(paths[index]),
        labels=labels,
        groups=groups,
        splits=splits,
        notes=tuple(notes),
    )


def joined(sources: Sequence[ImageSource]) -> ImageSource:
    """One source after the other; groups, labels and splits are known only where all of them know theirs."""
    if len(sources) == 1:
        return sources[0]
    starts = list(accumulate((len(source) for source in sources), initial=0))

    def found(index: int) -> tuple[ImageSource, int]:
        place = bisect_right(starts, index) - 1
        return sources[place], index - starts[place]

    def name_at(index: int) -> str:
        source, place = found(index)
        return source.names[place]

    def read_at(index: int) -> Decoded:
        source, place = found(index)
        return source.read(place)

    def column(columns: list[list[str] | None]) -> list[str] | None:
        return None if None in columns else [value for values in columns for value in values or ()]

    return ImageSource(
        names=Names(starts[-1], name_at),
        read_at=read_at,
        labels=column([source.labels for source in sources]),
        groups=column([source.groups for source in sources]),
        splits=column([source.splits for source in sources]),
        notes=tuple(note for source in sources for note in source.notes),
        in_memory=all(source.in_memory for source in sources),
    )


def only_normal(source: ImageSource) -> ImageSource:
    """The rows to fit on: those of the training split, and of those the ones labelled normal."""
    if source.splits is not None:
        rows = [row for row, split in enumerate(source.splits) if split.strip().lower() == "train"]
        source = _narrowed(source, rows, "split", "train", source.splits)
    if source.labels is not None:
        rows = [row for row, label in enumerate(source.labels) if label.strip().lower() in (*NORMAL_NAMES, "0")]
        source = _narrowed(source, rows, "label", "normal, good, ok or 0", source.labels)
    return source


def each_its_own(groups: list[str] | None, names: Sequence[str]) -> list[str] | None:
    """The groups of these images, a blank one being a group of that image alone; None where all are blank."""
    if groups is None or not any(group.strip() for group in groups):
        return None
    return [group if group.strip() else name for group, name in zip(groups, names, strict=True)]


def listed(values: Sequence[str], most: int = 5) -> str:
    """The first few distinct values on one line."""
    distinct = list(dict.fromkeys(values))
    return printable(", ".join(distinct[:most]) + (", ..." if len(distinct) > most else ""))


def _narrowed(source: ImageSource, rows: list[int], column: str, wanted: str, found: list[str]) -> ImageSource:
    if not rows:
        raise NoImages(f"no image has the {column} {wanted}; the {column}s are {listed(found)}")
    if len(rows) == len(source):
        return source
    kept = set(rows)
    others = listed([value for row, value in enumerate(found) if row not in kept])
    return source.take(rows).noted(f"left out {len(source) - len(rows):,} of {len(source):,} by {column}: {others}")
