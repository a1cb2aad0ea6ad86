"""Data sets in the formats they were published in, byte for byte, but tiny."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def idx(array: NDArray[np.uint8]) -> bytes:
    """The array as an idx file."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_files(folder: Path, n: int = 20, *, packed: bool = False, seed: int = 0) -> dict[str, str]:
    """The MD5 of each of four idx files, unpacked, after they were written: n images to learn from, n / 2 to judge."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for part, count in (("train", n), ("t10k", n // 2)):
        for file, array in (
            (f"{part}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28), np.uint8)),
            (f"{part}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8)),
        ):
            content = idx(array)
            sums[file] = md5(content)
            (folder / f"{file}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
    return sums


def text(value: bytes) -> bytes:
    """Python 2's pickle of a `str`."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<I", len(value)) + value


def pickled_array(array: NDArray[np.uint8]) -> bytes:
    """numpy's pickle of an array of bytes under Python 2."""
    shape = b"".join(b"J" + struct.pack("<i", length) for length in array.shape)
    empty = b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01btRq\x03"
    dtype = b"cnumpy\ndtype\nq\x04(U\x02u1K\x00K\x01tRq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return empty + b"(K\x01(" + shape + b"t" + dtype + b"\x89" + text(array.tobytes()) + b"tb"


def cifar_batch(images: NDArray[np.uint8], **labels: list[int]) -> bytes:
    """A CIFAR batch as Python 2 pickled it: a dict with the images' rows under `data`, and these lists."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    columns = b"".join(
        text(name.encode()) + b"]q\x06(" + b"".join(b"K" + bytes([label]) for label in column) + b"e"
        for name, column in labels.items()
    )
    return (
        b"\x80\x02}q\x00(" + columns + text(b"data") + pickled_array(rows) + text(b"batch_label") + text(b"x") + b"u."
    )
