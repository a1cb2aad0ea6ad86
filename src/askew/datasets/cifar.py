"""CIFAR-10 and CIFAR-100: small photographs, 32x32 in colour. Krizhevsky, 2009.

CIFAR-100 is read with its 20 superclasses, the labels that its files call coarse, as the paper does.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from askew.datasets.dataset import DataSet, Split, folder_with
from askew.datasets.prepared import cached
from askew.datasets.unpickling import unpickle
from askew.errors import BadFile, UnreadableImage
from askew.images import printable
from askew.images.decoding import read_bytes

CIFAR10_NAMES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# By coarse label, spelled as in the paper.
CIFAR100_NAMES: Final = (
    "aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "household electrical devices",
    "household furniture", "insects", "large carnivores", "large man-made outdoor things",
    "large natural outdoor scenes", "large omnivores and herbivores", "medium-sized mammals",
    "non-insect invertebrates", "people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2",
)  # fmt: skip

# Of the files in the published archives. Source: github.com/pytorch/vision, torchvision/datasets/cifar.py; the test
# files last.
CIFAR10_MD5: Final = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_MD5: Final = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}

_SIDE = 32


def read_cifar10(root: Path | None) -> DataSet:
    """50,000 and 10,000 photographs of 10 classes as [n, 32, 32, 3]."""
    return _read(root, "cifar10", "CIFAR-10", "cifar-10-batches-py", CIFAR10_NAMES, CIFAR10_MD5, b"labels")


def read_cifar100(root: Path | None) -> DataSet:
    """50,000 and 10,000 photographs of 20 superclasses as [n, 32, 32, 3]."""
    return _read(root, "cifar100", "CIFAR-100", "cifar-100-python", CIFAR100_NAMES, CIFAR100_MD5, b"coarse_labels")


def read_batch(path: Path, label_key: bytes, classes: int, *, md5: str | None = None) -> Split:
    """The images and labels of one batch file, after its checksum."""
    name = printable(str(path))
    try:
        content = read_bytes(str(path))
    except UnreadableImage as problem:
        raise BadFile(f"{name}: {problem}") from problem
    if md5 is not None and (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise BadFile(f"{name}: is not the published file, its MD5 is {found} and not {md5}; get it again")
    batch = unpickle(content, name)
    rows, labels = batch.get(b"data"), batch.get(label_key)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3 * _SIDE * _SIDE:
        raise BadFile(f"{name}: has no rows of {3 * _SIDE * _SIDE:,} bytes under 'data'; get it again")
    if type(labels) is not list or len(labels) != len(rows) or not all(_is_label(label, classes) for label in labels):
        raise BadFile(f"{name}: has no label below {classes} for each of its {len(rows):,} images; get it again")
    return Split(_images(rows), np.array(labels, np.int64))


def _read(
    root: Path | None,
    name: str,
    title: str,
    folder_name: str,
    class_names: tuple[str, ...],
    md5: Mapping[str, str],
    label_key: bytes,
) -> DataSet:
    folder = folder_with(list(md5), (folder_name, "."), root, name=name, title=title)

    def read() -> DataSet:
        *training, test = (
            read_batch(folder / file, label_key, len(class_names), md5=checksum) for file, checksum in md5.items()
        )
        train = Split(
            np.concatenate([batch.images for batch in training]), np.concatenate([batch.labels for batch in training])
        )
        return DataSet.of(name, title, class_names, train, test)

    return cached(name, folder, read, sources=[folder / file for file in md5])


def _images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    # A row is the red channel, then the green, then the blue, each row by row.
    return np.ascontiguousarray(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _is_label(label: object, classes: int) -> bool:
    return type(label) is int and 0 <= label < classes
