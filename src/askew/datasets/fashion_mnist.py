"""Fashion-MNIST: articles of clothing, 28x28 grey, framed to 32x32, and the part of it that comes with the package.

Xiao, Rasul and Vollgraf, 2017. Labels are the files' own; the paper's rows are in alphabetical order of class name.
"""

from pathlib import Path
from typing import Final

import numpy as np

from askew.datasets.bundled import CLASS_NAMES, NORMAL_CLASS, load_sample
from askew.datasets.dataset import DataSet, Split, folder_with
from askew.datasets.idx import FILES, SUFFIXES, files_in, framed, read_splits
from askew.datasets.prepared import cached

# Where Debian's package dataset-fashion-mnist puts the files.
INSTALLED = "/usr/share/datasets/fashion-mnist"

# Of the files unpacked. Source: those of Debian's package dataset-fashion-mnist 0.0~git20200523.55506a9-1. (The
# checksums that the publisher prints, of the packed ones, are in `download.py`.)
MD5: Final = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def read_fashion_mnist(root: Path | None) -> DataSet:
    """60,000 and 10,000 articles as [n, 32, 32, 1]."""
    name, title = "fashion-mnist", "Fashion-MNIST"
    folder = folder_with(
        FILES, ("fashion-mnist", "."), root, name=name, title=title, suffixes=SUFFIXES, installed=INSTALLED
    )

    def read() -> DataSet:
        return DataSet.of(name, title, CLASS_NAMES, *read_splits(folder, MD5, len(CLASS_NAMES)))

    return cached(name, folder, read, sources=files_in(folder))


def read_sample(_root: Path | None) -> DataSet:
    """1,000 sneakers to learn from, and 398 articles of all classes: what comes with the package."""
    sample = load_sample()
    train = Split(framed(sample.normal), np.full(len(sample.normal), NORMAL_CLASS, np.int64))
    test = Split(framed(sample.test), sample.test_labels.astype(np.int64))
    return DataSet.of("sample", "Fashion-MNIST sample", sample.class_names, train, test)
