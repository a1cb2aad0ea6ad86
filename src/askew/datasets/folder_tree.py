"""Any tree of image files as a data set: PATH/train/<class>/... to learn from, PATH/test/<class>/... to be judged."""

import os
from pathlib import Path
from typing import Final

import numpy as np

from askew.datasets.dataset import DataSet, Split
from askew.datasets.prepared import cached
from askew.errors import InvalidInput, NoImages
from askew.images import auto_fit, load_normals, open_images, printable
from askew.images.sources import ImageSource, joined

SIDE: Final = 32
_PARTS: Final = ("train", "test")


def read_folder_tree(path: str) -> DataSet:
    """The set `folder:PATH`, as [n, 32, 32, 1 or 3]; its classes are the folders' names in alphabetical order.

    Sizes and colours are brought together as for fitting (`auto` in `docs/images.md`). A class may be in `test` alone,
    and every file must be readable: figures must not depend on which images a decoder could read.
    """
    root = Path(path)
    folders = {part: _classes(root / part) for part in _PARTS} if path else {}
    if not all(folders.get(part) for part in _PARTS):
        raise NoImages(
            f"{printable(path) or 'folder:'} is no tree of images: it needs train/<class>/ and test/<class>/ with "
            "images in them"
        )
    class_names = sorted({*folders["train"], *folders["test"]}, key=os.fsencode)
    sources = {part: [(name, open_images(root / part / name)) for name in folders[part]] for part in _PARTS}
    files = [Path(name) for part in _PARTS for _, source in sources[part] for name in source.names]
    return cached(f"folder:{path}", root, lambda: _read(path, class_names, sources), sources=files)


def _classes(folder: Path) -> list[str]:
    try:
        names = [entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []
    return sorted(names, key=os.fsencode)


def _read(path: str, class_names: list[str], sources: dict[str, list[tuple[str, ImageSource]]]) -> DataSet:
    # All at once, so that one image in colour gives both splits three channels.
    source = joined([source for part in _PARTS for _, source in sources[part]])
    fit, _ = auto_fit(source, SIDE)
    normals = load_normals(source, side=SIDE, fit=fit)
    if normals.scan.unreadable:
        name, reason = normals.scan.reasons[0]
        raise InvalidInput(
            f"{normals.scan.unreadable:,} of {normals.scan.found:,} images cannot be read, such as {name}: {reason}; "
            "repair or remove them"
        )
    labels = {
        part: np.repeat(
            np.array([class_names.index(name) for name, _ in sources[part]], np.int64),
            [len(source) for _, source in sources[part]],
        )
        for part in _PARTS
    }
    count = len(labels["train"])
    train, test = Split(normals.images[:count], labels["train"]), Split(normals.images[count:], labels["test"])
    return DataSet.of(f"folder:{path}", printable(Path(path).name or path), [*map(printable, class_names)], train, test)
