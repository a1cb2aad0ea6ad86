"""One door for everything a person may call images."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from askew.errors import InvalidInput, NoImages
from askew.images.arrays import source_of_array, source_of_npy, source_of_npz
from askew.images.folders import MASKS, Role, is_folder, is_image, source_of_folder
from askew.images.manifests import source_of_manifest
from askew.images.names import printable
from askew.images.sources import ImageSource, joined, only_normal, source_of_files


def open_images(X: Any, *, image_shape: tuple[int, ...] | None = None, role: Role = "all") -> ImageSource:
    """The source of X: a folder, file, glob pattern, manifest, list of these, array or a source already.

    A list of one path is that path. In a list of image files a missing one is found out when it is read; anywhere else
    a path that does not exist is refused.

    `role="normal"` keeps what may be fitted on: by the folders' names, or by a table's `split` and `label`. An array
    [n, values] needs `image_shape=(height, width[, channels])`.
    """
    if role not in ("normal", "all"):
        raise InvalidInput(f"role must be 'normal' or 'all', got {role!r}")
    if isinstance(X, ImageSource):
        return X
    if isinstance(X, (str, bytes, os.PathLike)):
        return _open_path(os.fsdecode(X), image_shape, role)
    if isinstance(X, (list, tuple)):
        if not X:
            raise NoImages("the list of images is empty")
        if any(isinstance(path, (str, bytes, os.PathLike)) for path in X):
            return _open_list(X, image_shape, role)
    return source_of_array(X, image_shape=image_shape)


def _open_path(path: str, image_shape: tuple[int, ...] | None, role: Role) -> ImageSource:
    if not path or "\0" in path:
        raise NoImages(f"{path!r} is not a path")
    if is_folder(path):
        return source_of_folder(path, role)
    if not os.path.lexists(path):
        return _open_pattern(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".npy", ".npz") and not Path(path).is_file():  # a pipe would be waited on for ever
        raise InvalidInput(f"{printable(path)} is not a regular file")
    if suffix == ".npy":
        return source_of_npy(path, image_shape=image_shape)
    if suffix not in (".npz", ".csv"):
        return source_of_files([path])
    table = source_of_manifest(path) if suffix == ".csv" else source_of_npz(path, image_shape=image_shape)
    return only_normal(table) if role == "normal" else table


def _open_pattern(pattern: str) -> ImageSource:
    if not glob.has_magic(pattern):
        raise NoImages(f"there is no file or folder {printable(pattern)}")
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207  (pathlib needs a root and has other rules for **)
    if MASKS not in pattern:  # masks count only where the pattern asks for them by name
        matches = [path for path in matches if MASKS not in Path(path).parts]
    paths = [path for path in matches if is_image(path) and not is_folder(path)]
    if not paths:
        raise NoImages(f"no image file matches {printable(pattern)}")
    return source_of_files(sorted(set(paths), key=os.fsencode))


def _open_list(items: Sequence[Any], image_shape: tuple[int, ...] | None, role: Role) -> ImageSource:
    for index, path in enumerate(items):
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise InvalidInput(f"a list of paths must hold only paths, item {index} is {type(path).__name__}")
    paths = [os.fsdecode(path) for path in items]
    if len(paths) > 1 and all(_is_one_image(path) for path in paths):
        return source_of_files(paths)  # one that is missing is a row with its reason, and the others go on
    return joined([_open_path(path, image_shape, role) for path in paths])


def _is_one_image(path: str) -> bool:
    """Whether the path stands for one image file, there or missing: no folder, array, manifest or pattern."""
    if path.lower().endswith((".npz", ".npy", ".csv")) or is_folder(path):
        return False
    return os.path.lexists(path) or (is_image(path) and not glob.has_magic(path))
