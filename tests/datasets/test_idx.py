import gzip
import io
import os
import struct

import numpy as np
import pytest

import askew.datasets.fashion_mnist
import askew.datasets.mnist
from askew.datasets import open_dataset
from askew.datasets.bundled import CLASS_NAMES
from askew.datasets.idx import read_idx
from askew.errors import BadFile, InvalidInput, NoImages
from published import idx, md5, write_idx_files

ARRAY = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
READERS = {"mnist": askew.datasets.mnist, "fashion-mnist": askew.datasets.fashion_mnist}


def written(folder, content, name="file"):
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_comes_back_packed_or_not(tmp_path, pack):
    path = written(tmp_path, pack(idx(ARRAY)))
    np.testing.assert_array_equal(read_idx(path, md5=md5(idx(ARRAY))), ARRAY)


def bomb():
    """Five megabytes of zeros more than its header announces, in a few kilobytes."""
    return gzip.compress(idx(ARRAY) + bytes(5_000_000))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty|is not an idx file"),
        (b"\0\0\x08", "is not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\x01" + bytes(4), "is not an idx file of bytes"),
        (b"\0\0\x08\x00", "is not an idx file of bytes"),
        (b"\0\0\x08\x09" + bytes(40), "is not an idx file of bytes"),
        (b"\0\0\x08\x03\0\0", "announces"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "announces 79,228,162,458,924,105"),
        (gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 2**20, 28, 28)), "announces 822,083,584 bytes, and up to"),
        (idx(ARRAY)[:-1], "cut short or too long"),
        (idx(ARRAY) + b"\0", "cut short or too long"),
        (bomb(), "cut short or too long"),
        (gzip.compress(idx(ARRAY))[:-9], "end-of-stream|cut short"),
        (gzip.compress(idx(ARRAY))[:-8] + bytes(8), "CRC"),
        (b"\x1f\x8b" + bytes(30), "."),
    ],
)
def test_what_is_no_idx_file_is_refused_with_a_reason(tmp_path, content, reason):
    path = written(tmp_path, content)
    with pytest.raises(BadFile, match=reason) as caught:
        read_idx(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_pipe_or_a_missing_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing"):
        with pytest.raises(BadFile):
            read_idx(tmp_path / name)


def test_another_file_than_the_published_one_is_refused(tmp_path):
    path = written(tmp_path, idx(ARRAY))
    with pytest.raises(BadFile, match=f"its MD5 unpacked is {md5(idx(ARRAY))} and not 00"):
        read_idx(path, md5="00")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("in_root", [False, True])
def test_the_four_files_become_a_framed_set(tmp_path, monkeypatch, name, packed, in_root):
    folder = tmp_path if in_root else tmp_path / name
    monkeypatch.setattr(READERS[name], "MD5", write_idx_files(folder, packed=packed))
    data = open_dataset(name, tmp_path)
    assert data.train.images.shape == (20, 32, 32, 1)
    assert data.test.images.shape == (10, 32, 32, 1)
    assert data.train.labels.tolist() == [*range(10), *range(10)]
    assert data.train.labels.dtype == np.int64
    draw = np.random.default_rng(0)
    np.testing.assert_array_equal(data.train.images[:, 2:30, 2:30, 0], draw.integers(0, 256, (20, 28, 28), np.uint8))
    frame = np.ones((32, 32), bool)
    frame[2:30, 2:30] = False
    assert not data.test.images[:, frame].any()


def test_packed_and_plain_files_have_one_fingerprint(tmp_path, monkeypatch):
    prints = set()
    for place, packed in (("a", False), ("b", True)):
        monkeypatch.setattr(READERS["mnist"], "MD5", write_idx_files(tmp_path / place, packed=packed))
        prints.add(open_dataset("mnist", tmp_path / place).fingerprint)
    assert len(prints) == 1
    monkeypatch.setattr(READERS["mnist"], "MD5", write_idx_files(tmp_path / "c", seed=1))
    assert open_dataset("mnist", tmp_path / "c").fingerprint not in prints


def test_images_and_labels_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    sums = write_idx_files(tmp_path)
    for labels in (np.zeros(19, np.uint8), np.full(20, 10, np.uint8), np.zeros((20, 1), np.uint8)):
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels))
        monkeypatch.setattr(READERS["mnist"], "MD5", sums | {"train-labels-idx1-ubyte": md5(idx(labels))})
        with pytest.raises(BadFile, match=r"images, and there are 10 classes of 28x28"):
            open_dataset("mnist", tmp_path)


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    write_idx_files(tmp_path)
    with pytest.raises(BadFile, match="is not the published file"):
        open_dataset("mnist", tmp_path)


def test_debians_copy_is_used_where_the_root_has_none(tmp_path, monkeypatch):
    module = READERS["fashion-mnist"]
    monkeypatch.setattr(module, "MD5", write_idx_files(tmp_path / "installed", packed=True))
    monkeypatch.setattr(module, "INSTALLED", str(tmp_path / "installed"))
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    assert open_dataset("fashion-mnist").class_names == CLASS_NAMES
    assert len(open_dataset("fashion-mnist", tmp_path).test.labels) == 10


def test_what_is_missing_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(READERS["fashion-mnist"], "INSTALLED", str(tmp_path / "nothing"))
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    with pytest.raises(InvalidInput, match=r"Fashion-MNIST needs a data folder: pass --data FOLDER or set ASKEW_DATA"):
        open_dataset("fashion-mnist")
    with pytest.raises(NoImages, match=r"MNIST is not in .*: expected there is mnist/ with train-images") as caught:
        open_dataset("mnist", tmp_path)
    assert str(caught.value).endswith("; `askew bench download mnist` fetches it")
    write_idx_files(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(NoImages, match=r", of which t10k-labels-idx1-ubyte is missing; "):
        open_dataset("mnist", tmp_path)


def test_reading_stops_at_the_announced_size(tmp_path, monkeypatch):
    """A bomb is not unpacked to find out that it is one."""
    read = []
    original = gzip.GzipFile.read

    def counted(self, size=-1):
        content = original(self, size)
        read.append(len(content))
        return content

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    with pytest.raises(BadFile):
        read_idx(written(tmp_path, bomb()))
    assert sum(read) == len(idx(ARRAY)) + 1
    assert io.BytesIO(bomb()).getbuffer().nbytes < 10_000
