"""Makes the sample in the package: `python benchmarks/make_sample.py FOLDER_WITH_FASHION_MNIST [--into FOLDER]`.

The folder holds the four .gz files of https://github.com/zalandoresearch/fashion-mnist. The same numpy and
zlib give the same bytes every time; others give the same arrays.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew.datasets.bundled import CLASS_NAMES, NORMAL_CLASS

NORMALS = 1000
TEST_NORMALS = 200
TEST_OTHERS = 22  # of each other class
INTO = Path(__file__).resolve().parents[1] / "src" / "askew" / "datasets" / "sample"


def chosen(folder: Path) -> dict[str, dict[str, NDArray[np.uint8]]]:
    """The arrays of each file of the sample: the first images of each class, in the order they are published in."""
    images, labels = idx(folder / "train-images-idx3-ubyte.gz"), idx(folder / "train-labels-idx1-ubyte.gz")
    normal = labels == NORMAL_CLASS
    test_images, test_labels = idx(folder / "t10k-images-idx3-ubyte.gz"), idx(folder / "t10k-labels-idx1-ubyte.gz")
    counts = [TEST_NORMALS if label == NORMAL_CLASS else TEST_OTHERS for label in range(len(CLASS_NAMES))]
    rows = np.concatenate([np.flatnonzero(test_labels == label)[:count] for label, count in enumerate(counts)])
    return {
        "normal.npz": {"images": images[normal][:NORMALS]},
        "test.npz": {"images": test_images[rows], "labels": test_labels[rows]},
    }


def idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of bytes."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, default=INTO)
    arguments = parser.parse_args()
    for name, arrays in chosen(arguments.folder).items():
        path = arguments.into / name
        np.savez_compressed(path, **arrays)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
