"""What a data set is: labelled images to learn from and to be judged by, and the place their files are found in."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew.errors import InvalidInput, NoImages
from askew.images import printable


@dataclass(frozen=True, eq=False)
class Split:
    """`images` is uint8 [n, side, side, channels] and `labels` int64 [n]; neither can be written to."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("images", "labels"):
            locked = getattr(self, name).view()
            locked.flags.writeable = False
            object.__setattr__(self, name, locked)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named set; a label is a position in `class_names`.

    `fingerprint` is 16 hex digits over all that is in it: equal content has the same wherever its files lie, and two
    results with different ones are not of the same images.
    """

    name: str
    title: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    fingerprint: str

    @classmethod
    def of(cls, name: str, title: str, class_names: Sequence[str], train: Split, test: Split) -> "DataSet":
        """The data set of these splits, fingerprinted."""
        names = tuple(class_names)
        digest = hashlib.sha256(json.dumps(names).encode())
        for split in (train, test):
            digest.update(json.dumps([split.images.shape, split.labels.tolist()]).encode())
            digest.update(np.ascontiguousarray(split.images).data)
        return cls(name, title, names, train, test, digest.hexdigest()[:16])


def folder_with(
    files: Sequence[str],
    folders: Sequence[str],
    root: Path | None,
    *,
    name: str,
    title: str,
    suffixes: Sequence[str] = ("",),
    installed: str = "",
) -> Path:
    """The first of the folders below the root, or else the installed one, that has all of the files.

    Without one, a single line says what goes where and how to fetch it. A file may also carry one of the suffixes.
    """

    def lacking(folder: Path) -> list[str]:
        return [file for file in files if not any((folder / f"{file}{suffix}").is_file() for suffix in suffixes)]

    candidates = [] if root is None else [root / folder for folder in folders]
    for folder in [*candidates, *([Path(installed)] if installed else [])]:
        if not lacking(folder):
            return folder
    absent = [] if root is None else lacking(candidates[0])
    partly = 0 < len(absent) < len(files)
    raise absence(f"{folders[0]}/ with {', '.join(files)}", root, name=name, title=title, absent=absent * partly)


def absence(expected: str, root: Path | None, *, name: str, title: str, absent: Sequence[str] = ()) -> InvalidInput:
    """The error for a set that is not there: what is expected, which of it is absent, and how to fetch it."""
    fetch = f"`askew bench download {name}` fetches it"
    if root is None:
        return InvalidInput(
            f"{title} needs a data folder: pass --data FOLDER or set ASKEW_DATA; expected in it is {expected}; {fetch}"
        )
    missing = f", of which {', '.join(absent)} is missing" if absent else ""
    return NoImages(f"{title} is not in {printable(str(root))}: expected there is {expected}{missing}; {fetch}")
