"""Image files below a folder, and which of them are the normal ones."""

import os
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from askew.errors import InvalidInput, NoImages
from askew.images.decoding import FORMAT_NAMES, SUFFIXES
from askew.images.names import printable
from askew.images.sources import ABNORMAL_NAMES, NORMAL_NAMES, ImageSource, listed, source_of_files

Role = Literal["normal", "all"]

# MVTec AD keeps the masks of its defects here, as PNG files that look like any other.
MASKS = "ground_truth"
_BESIDE_TRAIN = ("test", "val", "valid", "validation")


def source_of_folder(root: str, role: Role) -> ImageSource:
    """The images below `root`, in the order of their paths' bytes.

    `role="normal"` leaves out what the folder's layout says is not normal, and notes it; `role="all"` takes everything
    but MVTec's masks.
    """
    part = _normal_part(root) if role == "normal" else _Part(root)
    walk = _Walk(left_out=part.left_out)
    walk.down(part.folder)
    if not walk.paths:
        others = ", ".join(f"{count:,} {printable(suffix)}" for suffix, count in walk.others.most_common(3))
        raise NoImages(
            f"no images in {printable(part.folder)}{f' (but {others})' if others else ''}; "
            f"it needs {FORMAT_NAMES} files, in subfolders or not"
        )
    walk.paths.sort(key=os.fsencode)
    return source_of_files(walk.paths, notes=(*part.notes, *walk.notes))


def is_image(path: str) -> bool:
    """Whether the suffix is one of an image, in upper or lower case."""
    return path.lower().endswith(SUFFIXES)


def is_folder(path: str) -> bool:
    """Whether the path is a folder's, as far as can be told."""
    return os.path.isdir(path)  # noqa: PTH112  (pathlib raises where nobody may look)


@dataclass(frozen=True)
class _Part:
    """A folder, the subfolders that do not count, and why."""

    folder: str
    left_out: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def _normal_part(root: str) -> _Part:
    children = _subfolders(root)
    notes: list[str] = []
    train = _called(("train",), children)
    if not train:
        _refuse_collection(root, children)
    elif _called(_BESIDE_TRAIN, children) or _called(NORMAL_NAMES, _subfolders(children[train[0]])):
        notes.append(f"using {printable(train[0])}/ only")
        root = children[train[0]]
        children = _subfolders(root)

    good = _called(NORMAL_NAMES, children)
    masks = _called((MASKS,), children)
    if good:
        left_out = [name for name in children if name != good[0] and name not in masks]
        notes.append(f"using {printable(good[0])}/ only")
        if left_out:
            notes.append(f"left out the folders {listed(left_out)}")
        return _Part(children[good[0]], notes=tuple(notes))

    bad = _called(ABNORMAL_NAMES, children)
    if bad:
        notes.append(f"left out the folders {listed(bad)}")
    classes = [name for name in children if name not in (*bad, *masks)]
    if len(classes) > 1:
        notes.append(f"no folder is named normal or good, so all of these count as normal: {listed(classes)}")
    return _Part(root, frozenset(children[name] for name in bad), tuple(notes))


def _refuse_collection(root: str, children: dict[str, str]) -> None:
    """Refuse a folder of several MVTec categories: below it are their test images too."""
    categories = [path for path in children.values() if is_folder(f"{path}/train/good")]
    if categories:
        raise InvalidInput(
            f"{printable(root)} holds {len(categories)} data sets, each with its own train/good; "
            f"pass one of them, for example {printable(categories[0])}"
        )


def _subfolders(folder: str) -> dict[str, str]:
    """Paths of the subfolders by their names, sorted."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.path) for entry in entries if entry.name[0] != "." and _leads_down(entry)]
    except OSError:
        return {}
    return dict(sorted(found, key=lambda pair: os.fsencode(pair[0])))


def _called(wanted: Container[str], names: Iterable[str]) -> list[str]:
    """Those of the names that are wanted, in upper or lower case."""
    return [name for name in names if name.lower() in wanted]


def _leads_down(entry: os.DirEntry[str]) -> bool:
    """Whether a folder's entry is a folder itself; a link that cannot be followed is taken for what its name says."""
    try:
        return entry.is_dir()
    except OSError:  # it leads round in a circle, or to where nobody may look
        return not is_image(entry.name)


@dataclass
class _Walk:
    """The image files met so far, without entering any folder twice."""

    left_out: frozenset[str]
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def down(self, root: str) -> None:
        """Collect the images below `root`."""
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            try:
                waiting += self._list(folder)
            except OSError as problem:
                self.notes.append(f"skipped the folder {printable(folder)}: {problem.strerror}")

    def _list(self, folder: str) -> list[str]:
        # Links may lead back up; a folder is known by its device and number, not by its path.
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in self.seen:
            return []
        self.seen.add((status.st_dev, status.st_ino))
        below = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _leads_down(entry):
                    if entry.name.lower() != MASKS and entry.path not in self.left_out:
                        below.append(entry.path)
                elif is_image(entry.name):
                    self.paths.append(entry.path)
                else:
                    self.others[Path(entry.name).suffix.lower() or "without a suffix"] += 1
        # The last is entered first. Links wait, so that an image goes by its own path.
        return sorted(below, key=lambda path: (Path(path).is_symlink(), os.fsencode(path)), reverse=True)
