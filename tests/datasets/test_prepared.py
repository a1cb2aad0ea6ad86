import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from askew.datasets import prepared
from askew.datasets.dataset import DataSet, Split
from askew.datasets.prepared import cache_folder, cached
from pictures import drawings, oddities

NAMES = ("odd", "plain")


class Source:
    """A file to prepare a set from, and how often that was done."""

    def __init__(self, folder):
        self.home = folder
        self.file = folder / "source"
        folder.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(b"content")
        self.count = 0
        self.seed = 0

    def build(self):
        self.count += 1
        train = Split(drawings(6, seed=self.seed), np.ones(6, np.int64))
        test = Split(oddities(4), np.array([0, 1, 0, 1]))
        return DataSet.of("made", "Made", NAMES, train, test)

    def open(self):
        return cached("made", self.home, self.build, sources=[self.file])


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "home")


def only_folder(cache):
    (folder,) = (cache / "datasets").iterdir()
    return folder


def check(data):
    np.testing.assert_array_equal(data.train.images, drawings(6))
    np.testing.assert_array_equal(data.test.images, oddities(4))
    assert data.test.labels.tolist() == [0, 1, 0, 1]
    assert (data.name, data.title, data.class_names) == ("made", "Made", NAMES)


def test_a_set_is_built_once_and_mapped_from_then_on(source):
    first, second = source.open(), source.open()
    assert source.count == 1
    check(first)
    check(second)
    assert first.fingerprint == second.fingerprint == source.build().fingerprint
    for data in (first, second):
        assert isinstance(data.train.images.base.base, np.memmap)
        assert type(data.train.images) is np.ndarray


def test_what_is_opened_cannot_be_written_to(source):
    data = source.open()
    for array in (data.train.images, data.train.labels, data.test.images, data.test.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def touched(source):
    status = source.file.stat()
    os.utime(source.file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def grown(source):
    status = source.file.stat()
    source.file.write_bytes(b"more content")
    os.utime(source.file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [touched, grown])
def test_a_changed_source_is_read_again_and_takes_the_place_of_the_old(source, cache, change):
    source.open()
    change(source)
    source.seed = 3
    data = source.open()
    np.testing.assert_array_equal(data.train.images, drawings(6, seed=3))
    assert source.count == 2
    source.open()
    assert source.count == 2
    only_folder(cache)


def test_another_version_prepares_anew(source, monkeypatch):
    source.open()
    monkeypatch.setattr(prepared, "__version__", "999")
    source.open()
    assert source.count == 2


def cut(content):
    return content[:-1]


def longer(content):
    return content + b"\0"


def empty(_):
    return b""


def one_bit(content):
    return content[:-7] + bytes([content[-7] ^ 1]) + content[-6:]


def header(content):
    return content.replace(b"'descr'", b"'d[[cr'")


def unclosed(content):
    return content.replace(b"{'descr': '", b"{'descr': (")


def noise(content):
    return os.urandom(len(content))


def objects(content):
    return content.replace(b"'|u1'", b"'|O' ").replace(b"'<i8'", b"'|O' ")


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "about.json"])
@pytest.mark.parametrize("damage", [cut, longer, empty, one_bit, header, unclosed, noise, objects, None])
def test_a_damaged_cache_is_made_anew(source, cache, file, damage):
    source.open()
    path = only_folder(cache) / file
    before = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(before))
    changed = damage is None or damage(before) != before
    check(source.open())
    assert source.count == (2 if changed else 1)
    source.open()
    assert path.read_bytes() == before


@pytest.mark.parametrize("file", ["images.npy", "labels.npy"])
def test_no_damage_to_a_header_is_more_than_a_cache_that_is_made_anew(source, cache, file):
    source.open()
    folder = only_folder(cache)
    state = json.loads((folder / "about.json").read_text())["state"]
    whole = (folder / file).read_bytes()
    draw, signs = random.Random(0), b"()[]{}'\"\\#,:;.0L \n\t\0\xff"
    with (folder / file).open("r+b", buffering=0) as stream:
        for _ in range(1500):
            damaged = bytearray(whole)
            for _ in range(draw.randint(1, 4)):
                place, sign = draw.randrange(whole.index(b"\n")), draw.choice(signs)
                match draw.randrange(3):
                    case 0:
                        damaged[place] = sign
                    case 1:
                        damaged.insert(place, sign)
                    case _:
                        del damaged[place]
            stream.seek(0)
            stream.write(damaged)
            stream.truncate()
            assert (prepared._opened("made", folder, state) is not None) == (damaged == whole)


@pytest.mark.parametrize(
    "change",
    [
        {"train": 5, "test": 5},
        {"class_names": ["plain", "odd"]},
        {"side": 32},
        {"channels": 3},
        {"train": -1},
        {"train": 2**70},
        {"fingerprint": "0" * 16},
        {"more": 1},
    ],
)
def test_a_description_of_other_arrays_is_not_believed(source, cache, change):
    source.open()
    path = only_folder(cache) / "about.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    check(source.open())
    assert source.count == 2


def test_arrays_of_another_set_are_not_believed(source, cache, tmp_path):
    source.open()
    mine = only_folder(cache)
    other = Source(tmp_path / "other")
    other.seed = 5
    other.open()
    (theirs,) = (folder for folder in (cache / "datasets").iterdir() if folder != mine)
    (theirs / "images.npy").replace(mine / "images.npy")
    check(source.open())
    assert source.count == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_done_without(source, cache):
    cache.chmod(0o500)
    check(source.open())


def test_where_no_cache_can_be_the_set_stays_in_memory(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "file"))
    check(source.open())
    check(source.open())
    assert source.count == 2


def test_a_full_disk_leaves_the_set_in_memory_and_no_half_cache(source, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared, "atomic_write", full)
    check(source.open())
    monkeypatch.undo()
    check(source.open())


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("ASKEW_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("ASKEW_CACHE")
    assert cache_folder() == Path("/b/askew")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/askew")


def test_two_processes_may_prepare_at_once(cache, tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from test_prepared import Source, check\n"
        "for _ in range(10):\n"
        "    source = Source(Path(sys.argv[1]))\n"
        "    check(source.open())\n"
    )
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", code, str(tmp_path / "shared"), *paths]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert not list(cache.rglob("*.partial"))
