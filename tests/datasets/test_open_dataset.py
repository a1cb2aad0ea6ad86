import dataclasses
import importlib
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from askew.datasets import DATASETS, cifar, open_dataset
from askew.datasets.bundled import CLASS_NAMES, load_sample
from askew.datasets.unpickling import unpickle
from askew.errors import InvalidInput

DATA = os.environ.get("ASKEW_DATA", "")
TABLES = Path(__file__).resolve().parents[3] / "shared" / "paper" / "tables.json"

# As docs/datasets.md prints them. Of Cats vs Dogs only a sample is ever at hand.
REAL = {
    "mnist": (60_000, 10_000, (32, 32, 1), "6b2c10ef1f6f0db5"),
    "fashion-mnist": (60_000, 10_000, (32, 32, 1), "0a02d1dd5522a24d"),
    "cifar10": (50_000, 10_000, (32, 32, 3), "0bf95d260776d660"),
    "cifar100": (50_000, 10_000, (32, 32, 3), None),
    "tiny-imagenet": (0, 10_000, (32, 32, 3), None),
}


def real(name):
    """The set, read from the published files, or a skip that says what is not there."""
    if not DATA:
        pytest.skip("ASKEW_DATA names no folder with published files")
    try:
        return open_dataset(name, DATA)
    except InvalidInput as absent:
        pytest.skip(str(absent))


def test_every_registered_set_has_its_reader():
    for module, reader in DATASETS.values():
        assert callable(getattr(importlib.import_module(module), reader))


def test_the_sample_is_a_set_without_a_folder(monkeypatch):
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    data, sample = open_dataset("sample"), load_sample()
    np.testing.assert_array_equal(data.train.images[:, 2:30, 2:30, 0], sample.normal)
    np.testing.assert_array_equal(data.test.images[:, 2:30, 2:30, 0], sample.test)
    assert set(data.train.labels.tolist()) == {CLASS_NAMES.index("sneaker")}
    np.testing.assert_array_equal(data.test.labels, sample.test_labels)
    assert data.class_names == CLASS_NAMES
    # What a fingerprint is must not change: results are filed under it.
    assert data.fingerprint == "c976b827dcf954b6"


def test_a_set_cannot_be_changed_by_accident():
    data = open_dataset("sample")
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.train = None
    with pytest.raises(ValueError, match="read-only"):
        data.train.images[0] = 0


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(
        InvalidInput, match=r"there is no data set 'cifar\\x1b'; there are cifar10, .*, sample and folder:"
    ):
        open_dataset("cifar\x1b")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "sample"])
def test_without_a_folder_the_line_says_what_to_do(name, monkeypatch, tmp_path):
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    monkeypatch.setattr("askew.datasets.fashion_mnist.INSTALLED", "")
    for root in (None, tmp_path):
        with pytest.raises(InvalidInput) as caught:
            open_dataset(name, root)
        line = str(caught.value)
        assert line.endswith(f"; `askew bench download {name}` fetches it")
        assert line.isprintable()


def test_the_folder_may_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path / "a"))
    with pytest.raises(InvalidInput, match=f"CIFAR-10 is not in {tmp_path / 'a'}: "):
        open_dataset("cifar10")
    with pytest.raises(InvalidInput, match=f"CIFAR-10 is not in {tmp_path / 'b'}: "):
        open_dataset("cifar10", tmp_path / "b")


def test_asking_what_sets_there_are_loads_neither_torch_nor_numpy():
    code = "import sys, askew.datasets; sys.exit(bool({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_sets_are_read_without_torch_scipy_and_scikit_learn():
    code = "import sys\nfor name in ('torch', 'scipy', 'sklearn'): sys.modules[name] = None\n"
    code += "from askew.datasets import open_dataset; open_dataset('sample'); import askew.datasets.download\n"
    code += "\n".join(f"import {module}" for module, _ in DATASETS.values())
    subprocess.run([sys.executable, "-c", code], check=True)


def test_class_names_are_those_of_the_papers_tables():
    if not TABLES.is_file():
        pytest.skip("the paper's tables are not beside this checkout")
    names = {"cifar10": cifar.CIFAR10_NAMES, "cifar100": cifar.CIFAR100_NAMES, "fashion-mnist": CLASS_NAMES}
    rows = [row for row in json.loads(TABLES.read_text())["per_class"] if row["dataset"] in names]
    assert len(rows) >= 40
    for row in rows:
        assert names[row["dataset"]][row["label"]] == row["class_name"].lower()


@pytest.mark.parametrize("name", REAL)
def test_real_files_have_the_published_counts(name):
    data = real(name)
    train, test, shape, fingerprint = REAL[name]
    assert data.train.images.shape == (train, *shape)
    assert data.test.images.shape == (test, *shape)
    if name != "mnist":  # whose classes differ in size
        for split in (data.train, data.test):
            counts = np.bincount(split.labels, minlength=len(data.class_names))
            assert (counts == len(split.labels) // len(data.class_names)).all()
    assert fingerprint in (None, data.fingerprint)
    assert open_dataset(name, DATA).fingerprint == data.fingerprint


def test_real_photographs_are_split_four_to_one():
    data = real("cats-vs-dogs")
    train, test = np.bincount(data.train.labels), np.bincount(data.test.labels)
    assert (np.abs(train - 4 * test) <= 10).all()  # a few cannot be read
    counts = f"{train.sum():,} + {test.sum():,}"
    assert data.title == ("CatsVsDogs" if counts == "20,000 + 5,000" else f"CatsVsDogs, {counts} of 25,000 photographs")
    assert data.train.images.shape[1:] == data.test.images.shape[1:] == (64, 64, 3)
    assert 90 < data.train.images.mean() < 140


def test_a_real_batch_is_what_pythons_unpickler_makes_of_it():
    path = Path(DATA, "cifar-10-batches-py", "test_batch")
    if not DATA or not path.is_file():
        pytest.skip("ASKEW_DATA names no folder with cifar-10-batches-py")
    content = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 2 has another name for numpy.core
        expected = pickle.loads(content, encoding="bytes")
    found = unpickle(content, "test_batch")
    np.testing.assert_array_equal(found.pop(b"data"), expected.pop(b"data"))
    assert found == expected
