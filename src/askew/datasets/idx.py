"""Reader of idx, the format of MNIST and of what imitates it: a short header and the bare bytes of one array."""

import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from askew.datasets.dataset import Split
from askew.errors import BadFile, UnreadableImage
from askew.images import printable
from askew.images.decoding import read_bytes

SIDE: Final = 28
FILES: Final = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
SUFFIXES: Final = ("", ".gz")
_BORDER = 2
_UNSIGNED_BYTES = 0x08
_LARGEST = 256 * 2**20  # of the unpacked array: four times MNIST


def files_in(folder: Path) -> list[Path]:
    """The paths of the four files, the plain one where a file is there plain and packed."""
    return [path if (path := folder / file).is_file() else folder / f"{file}.gz" for file in FILES]


def read_splits(folder: Path, md5: Mapping[str, str], classes: int) -> tuple[Split, Split]:
    """The training and the test split of a folder's four files, framed with zeros to 32x32."""
    train_images, train_labels, test_images, test_labels = (
        read_idx(path, md5=md5[file]) for path, file in zip(files_in(folder), FILES, strict=True)
    )
    return (
        _split(folder, train_images, train_labels, classes),
        _split(folder, test_images, test_labels, classes),
    )


def read_idx(path: Path, *, md5: str | None = None) -> NDArray[np.uint8]:
    """The array of an idx file of bytes, gzipped or not; `md5` is that of the file when it is not.

    The header's sizes are checked before anything that large is unpacked.
    """
    try:
        content = read_bytes(str(path))
        # Compression differs from copy to copy, so what is checked is what was compressed.
        packed = content[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content) as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTES or not 1 <= head[3] <= 3:
                raise ValueError("is not an idx file of bytes")
            sizes = stream.read(4 * head[3])
            shape = tuple(int.from_bytes(sizes[start : start + 4], "big") for start in range(0, len(sizes), 4))
            count = math.prod(shape)
            if len(shape) != head[3] or count > _LARGEST:
                raise ValueError(f"announces {count:,} bytes, and up to {_LARGEST:,} are read")
            pixels = stream.read(count)
            if len(pixels) != count or stream.read(1):
                raise ValueError(f"is cut short or too long: its header announces {count:,} bytes")
    except (UnreadableImage, ValueError, OSError, EOFError, zlib.error) as problem:
        raise BadFile(f"{printable(str(path))}: {printable(str(problem))}; get it again") from problem
    if md5 is not None:
        found = hashlib.md5(head + sizes + pixels, usedforsecurity=False).hexdigest()
        if found != md5:
            raise BadFile(
                f"{printable(str(path))}: is not the published file, its MD5 unpacked is {found} and not {md5}; "
                "get it again"
            )
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def framed(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey images [n, 28, 28] as [n, 32, 32, 1], two black pixels on every side."""
    # Paper: section 5.2, so that a network for 32x32 takes them.
    return np.pad(images, ((0, 0), (_BORDER, _BORDER), (_BORDER, _BORDER)))[..., None]


def _split(folder: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8], classes: int) -> Split:
    if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1 or not labels.size or labels.max() >= classes:
        raise BadFile(
            f"{printable(str(folder))}: has {labels.shape} labels up to {labels.max(initial=0)} for {images.shape} "
            f"images, and there are {classes} classes of {SIDE}x{SIDE}; get the files again"
        )
    return Split(framed(images), labels.astype(np.int64))
