"""MNIST: handwritten digits, 28x28 grey, framed to 32x32. LeCun, Cortes and Burges, 1998."""

from pathlib import Path
from typing import Final

from askew.datasets.dataset import DataSet, folder_with
from askew.datasets.idx import FILES, SUFFIXES, files_in, read_splits
from askew.datasets.prepared import cached

CLASS_NAMES: Final = tuple("0123456789")

# Of the files unpacked. Source: github.com/pralab/secml, data/loader/c_dataloader_mnist.py. (The checksums of the
# packed ones are in `download.py`.)
MD5: Final = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def read_mnist(root: Path | None) -> DataSet:
    """60,000 and 10,000 digits as [n, 32, 32, 1]."""
    folder = folder_with(FILES, ("mnist", "."), root, name="mnist", title="MNIST", suffixes=SUFFIXES)

    def read() -> DataSet:
        return DataSet.of("mnist", "MNIST", CLASS_NAMES, *read_splits(folder, MD5, len(CLASS_NAMES)))

    return cached("mnist", folder, read, sources=files_in(folder))
