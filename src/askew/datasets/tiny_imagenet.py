"""Tiny-ImageNet as anomalies: photographs of 200 kinds of things, shrunk from 64x64 to 32x32. Stanford CS231n, 2015.

Paper: section 5.5 holds these images against CIFAR-10. They are halved with Pillow's box filter: the mean of 2x2
pixels, one axis at a time. HALVING LEAVES ARTEFACTS by which alone a detector may tell these images from CIFAR-10's
own, and other interpolations leave others: compare only figures with the same one.
"""

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from askew.datasets.dataset import DataSet, Split, absence
from askew.datasets.prepared import cached
from askew.errors import BadFile
from askew.images import ImageSource, load_normals, open_images, printable

CLASS_NAMES: Final = ("tiny-imagenet",)
SIDE: Final = 32
COUNT: Final = 10_000
_PARTS: Final = {"test": "Tiny-ImageNet", "val": "Tiny-ImageNet (validation images)"}


def read_tiny_imagenet(root: Path | None) -> DataSet:
    """10,000 anomalies as the test split [n, 32, 32, 3], under one label; there is nothing to learn from.

    They are the test images, which were published without labels, or the validation images where only those are there.
    """
    for base in () if root is None else (root / "tiny-imagenet-200", root):
        for part, title in _PARTS.items():
            if (folder := base / part / "images").is_dir():
                source = open_images(folder)
                read = partial(_read, source, folder, title)
                return cached("tiny-imagenet", folder, read, sources=[Path(name) for name in source.names])
    expected = "tiny-imagenet-200/test/images/ with its 10,000 files"
    raise absence(expected, root, name="tiny-imagenet", title="Tiny-ImageNet")


def _read(source: ImageSource, folder: Path, title: str) -> DataSet:
    normals = load_normals(source, side=SIDE, fit="crop", channels=3)
    if normals.scan.unreadable or normals.scan.readable != COUNT:
        raise BadFile(
            f"{printable(str(folder))}: has {normals.scan.readable:,} readable images, and {COUNT:,} were published; "
            "unpack the archive again"
        )
    nothing = Split(normals.images[:0], np.zeros(0, np.int64))
    return DataSet.of("tiny-imagenet", title, CLASS_NAMES, nothing, Split(normals.images, np.zeros(COUNT, np.int64)))
