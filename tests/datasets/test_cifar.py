import pickle

import numpy as np
import pytest

from askew.datasets import cifar, open_dataset
from askew.errors import BadFile, NoImages
from published import cifar_batch, md5

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (24, 32, 32, 3), np.uint8)
FINE = [value % 100 for value in range(7, 31)]


def write_cifar10(root, monkeypatch):
    """Six batches of four images each, labelled 0, 1, 2, 3 in turn."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    sums = {}
    for number, name in enumerate(cifar.CIFAR10_MD5):
        content = cifar_batch(IMAGES[4 * number : 4 * number + 4], labels=[0, 1, 2, number])
        (folder / name).write_bytes(content)
        sums[name] = md5(content)
    monkeypatch.setattr(cifar, "CIFAR10_MD5", sums)
    return folder


def test_cifar10_is_five_batches_in_order_and_one_to_judge(tmp_path, monkeypatch):
    write_cifar10(tmp_path, monkeypatch)
    data = open_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.images, IMAGES[:20])
    np.testing.assert_array_equal(data.test.images, IMAGES[20:])
    assert data.train.labels.tolist() == [label for number in range(5) for label in (0, 1, 2, number)]
    assert data.test.labels.tolist() == [0, 1, 2, 5]
    assert (data.name, data.title) == ("cifar10", "CIFAR-10")
    assert data.class_names[5] == "dog"
    assert len(data.fingerprint) == 16


def test_cifar100_has_the_coarse_labels_of_its_files(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    parts = {"train": IMAGES[:20], "test": IMAGES[20:]}
    coarse = {"train": list(range(20)), "test": [19, 0, 5, 5]}
    sums = {}
    for name, images in parts.items():
        content = cifar_batch(images, fine_labels=FINE[: len(images)], coarse_labels=coarse[name])
        (folder / name).write_bytes(content)
        sums[name] = md5(content)
    monkeypatch.setattr(cifar, "CIFAR100_MD5", sums)
    data = open_dataset("cifar100", tmp_path)
    np.testing.assert_array_equal(data.train.images, parts["train"])
    assert data.train.labels.tolist() == coarse["train"]
    assert data.test.labels.tolist() == coarse["test"]
    assert len(data.class_names) == 20


def test_superclasses_are_spelled_and_ordered_as_in_the_paper():
    assert list(cifar.CIFAR100_NAMES) == sorted(cifar.CIFAR100_NAMES)
    assert cifar.CIFAR100_NAMES[11] == "large omnivores and herbivores"
    assert cifar.CIFAR100_NAMES[-2:] == ("vehicles 1", "vehicles 2")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 1, 2, 10], "no label below 10 for each of its 4 images"),
        ([0, 1, 2], "no label below 10"),
        ([], "no label below 10"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, reason):
    (tmp_path / "batch").write_bytes(cifar_batch(IMAGES[:4], labels=labels))
    with pytest.raises(BadFile, match=reason):
        cifar.read_batch(tmp_path / "batch", b"labels", 10)


def test_images_of_another_size_are_refused(tmp_path):
    (tmp_path / "batch").write_bytes(cifar_batch(IMAGES[:4, :16], labels=[0, 1, 2, 3]))
    with pytest.raises(BadFile, match="no rows of 3,072 bytes"):
        cifar.read_batch(tmp_path / "batch", b"labels", 10)
    (tmp_path / "batch").write_bytes(pickle.dumps({}, 2))
    with pytest.raises(BadFile, match="no rows of 3,072 bytes"):
        cifar.read_batch(tmp_path / "batch", b"labels", 10)


def test_a_changed_file_is_refused_before_it_is_unpickled(tmp_path, monkeypatch):
    folder = write_cifar10(tmp_path, monkeypatch)
    (folder / "data_batch_3").write_bytes(b"cos\nsystem\n(U\x04truetR.")
    with pytest.raises(BadFile, match=r"data_batch_3: is not the published file, its MD5 is "):
        open_dataset("cifar10", tmp_path)


def test_a_folder_tree_is_not_taken_for_cifar100(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(NoImages, match=r"CIFAR-100 is not in .*cifar-100-python/ with train, test; `askew bench"):
        open_dataset("cifar100", tmp_path)
