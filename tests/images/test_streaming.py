import threading
import time

import numpy as np
import pytest
from PIL import Image

from askew.errors import InvalidInput, UnreadableImage
from askew.images import Decoded, ImageSource, SizePolicy, open_images, stream

POLICY = SizePolicy(side=8, fit="crop", channels=1)


class Counted:
    """A source of numbered images that knows how far it was read and by how many at once."""

    def __init__(self, count, *, pause=0.0, bad=()):
        self.lock = threading.Lock()
        self.pause, self.bad = pause, set(bad)
        self.now = self.most = self.reads = 0
        self.source = ImageSource(names=[str(index) for index in range(count)], read_at=self.read)

    def read(self, index):
        with self.lock:
            self.now += 1
            self.reads += 1
            self.most = max(self.most, self.now)
        time.sleep(self.pause * (1 + index % 3))
        with self.lock:
            self.now -= 1
        if index in self.bad:
            raise UnreadableImage("bad apple")
        return Decoded(np.full((8, 8, 1), index % 256, np.uint8), ("odd",) if index % 2 else ())


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("askew-images")]


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_batches_keep_the_order_and_leave_out_what_cannot_be_read(workers, batch):
    counted = Counted(100, pause=0.0002, bad=[0, 13, 99])
    batches = list(stream(counted.source, POLICY, batch=batch, workers=workers))
    indexes = [index for got in batches for index in got.indexes]
    assert indexes == [index for index in range(100) if index not in (0, 13, 99)]
    assert [pair for got in batches for pair in got.errors] == [(index, "bad apple") for index in (0, 13, 99)]
    assert [index for got in batches for index, note in got.notes] == [i for i in indexes if i % 2]
    for got in batches:
        assert got.images.shape == (len(got.indexes), 8, 8, 1)
        assert got.images[:, 0, 0, 0].tolist() == got.indexes
        assert len(got.indexes) + len(got.errors) <= batch
    assert counted.most <= max(workers, 1)
    assert not threads()


def test_batches_do_not_depend_on_threads_or_batch_size():
    images = np.random.default_rng(0).integers(0, 256, (50, 20, 30, 3), np.uint8)
    policy = SizePolicy(side=16, fit="pad", channels=3)
    once = np.concatenate([got.images for got in stream(open_images(images), policy, batch=50)])
    again = np.concatenate([got.images for got in stream(open_images(images), policy, batch=3, workers=0)])
    assert (once == again).all()


def test_reading_ahead_is_bounded():
    counted = Counted(100_000)
    batches = stream(counted.source, POLICY, batch=10, workers=2)
    next(batches)
    time.sleep(0.3)
    assert counted.reads <= 6 * 64
    batches.close()


def test_large_images_are_read_ahead_one_by_one():
    counted = Counted(1000)
    batches = stream(counted.source, SizePolicy(side=1024, fit="pad", channels=3), batch=1, workers=2)
    next(batches)
    time.sleep(0.3)
    assert counted.reads <= 6
    batches.close()


def test_closing_early_stops_the_threads_at_once():
    counted = Counted(10_000, pause=0.01)
    batches = stream(counted.source, POLICY, batch=1, workers=3)
    next(batches)
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < 0.5
    assert not threads()
    reads = counted.reads
    time.sleep(0.1)
    assert counted.reads == reads


def test_an_interrupt_in_the_consumer_stops_the_threads():
    counted = Counted(10_000, pause=0.001)

    def consume():
        for _ in stream(counted.source, POLICY, batch=2, workers=2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not threads()


def test_a_bug_in_a_source_is_not_swallowed():
    def read_at(index):
        raise ZeroDivisionError

    source = ImageSource(names=["a"] * 20, read_at=read_at)
    with pytest.raises(ZeroDivisionError):
        list(stream(source, POLICY))
    assert not threads()


def test_some_indexes_only():
    got = list(stream(Counted(100).source, POLICY, batch=2, indexes=[7, 3, 50]))
    assert [batch.indexes for batch in got] == [[7, 3], [50]]
    assert list(stream(Counted(100).source, POLICY, indexes=[])) == []


def test_a_batch_without_a_good_image_is_still_a_batch():
    (got,) = stream(Counted(3, bad=[0, 1, 2]).source, POLICY)
    assert got.images.shape == (0, 8, 8, 1)
    assert len(got.errors) == 3


def test_colour_in_a_grey_model_is_an_error_of_that_image():
    images = np.zeros((3, 8, 8, 3), np.uint8)
    images[1, 0, 0] = 1, 2, 3
    (got,) = stream(open_images(images), POLICY)
    assert got.indexes == [0, 2]
    assert "has colour" in got.errors[0][1]


def test_arrays_need_no_threads(monkeypatch):
    monkeypatch.setattr("askew.images.streaming.ThreadPoolExecutor", lambda *_, **__: pytest.fail("threads"))
    assert sum(len(got.indexes) for got in stream(open_images(np.zeros((10, 8, 8), np.uint8)), POLICY, workers=4)) == 10


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"workers": -1}])
def test_impossible_settings_are_refused_at_the_call(wrong):
    with pytest.raises(InvalidInput):
        stream(Counted(1).source, POLICY, **wrong)


def test_files_stream_like_arrays(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 9, 11, 3), np.uint8)
    for index, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{index:02}.png")
    policy = SizePolicy(side=8, fit="stretch", channels=3)
    (files,) = stream(open_images(tmp_path), policy)
    (arrays,) = stream(open_images(images), policy)
    assert (files.images == arrays.images).all()
