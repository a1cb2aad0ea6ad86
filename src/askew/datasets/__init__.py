"""The named sets of images, one file each, and `open_dataset` for all of them.

`docs/datasets.md` says where their files go. A new set is a file and a line in `DATASETS`.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from askew.errors import InvalidInput

if TYPE_CHECKING:
    from askew.datasets.dataset import DataSet

__all__ = ["DATASETS", "open_dataset"]

# Each reader takes the data root, or None where none was given.
DATASETS: Final = {
    "cifar10": ("askew.datasets.cifar", "read_cifar10"),
    "cifar100": ("askew.datasets.cifar", "read_cifar100"),
    "fashion-mnist": ("askew.datasets.fashion_mnist", "read_fashion_mnist"),
    "mnist": ("askew.datasets.mnist", "read_mnist"),
    "cats-vs-dogs": ("askew.datasets.cats_vs_dogs", "read_cats_vs_dogs"),
    "tiny-imagenet": ("askew.datasets.tiny_imagenet", "read_tiny_imagenet"),
    "sample": ("askew.datasets.fashion_mnist", "read_sample"),
}
_TREE: Final = "folder:"


def open_dataset(name: str, root: str | os.PathLike[str] | None = None) -> "DataSet":
    """The set of that name, or any tree of images as `folder:PATH`; the first time it is also prepared and cached.

    `root` is the folder the sets' files are below, or else $ASKEW_DATA.
    """
    if name.startswith(_TREE):
        from askew.datasets.folder_tree import read_folder_tree

        return read_folder_tree(name.removeprefix(_TREE))
    if name not in DATASETS:
        raise InvalidInput(f"there is no data set {name!r}; there are {', '.join(DATASETS)} and folder:PATH")
    place = os.fspath(root) if root is not None else os.environ.get("ASKEW_DATA", "")
    module, reader = DATASETS[name]
    return getattr(import_module(module), reader)(Path(place) if place else None)  # type: ignore[no-any-return]
