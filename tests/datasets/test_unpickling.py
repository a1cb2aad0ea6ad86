import os
import pickle
import struct
import tracemalloc
import warnings

import numpy as np
import pytest

from askew.datasets.unpickling import unpickle
from askew.errors import BadFile
from published import cifar_batch, pickled_array, text

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), np.uint8)
BATCH = cifar_batch(IMAGES, labels=[3, 1, 4, 1, 5, 9, 2])


class Call:
    """Pickles as a call of that function: what an attacker writes."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def in_a_dict(value):
    """A pickle of one dict that has the already pickled value under `data`."""
    return b"\x80\x02}(" + text(b"data") + value + b"u."


def with_length(length):
    """A pickled array [2, 3] that says it is [2, length]."""
    honest = pickled_array(np.zeros((2, 3), np.uint8))
    return in_a_dict(honest.replace(struct.pack("<i", 3), struct.pack("<i", length)))


def test_a_batch_is_what_pythons_unpickler_makes_of_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 2 has another name for numpy.core
        expected = pickle.loads(BATCH, encoding="bytes")
    found = unpickle(BATCH, "batch")
    assert found.keys() == expected.keys() == {b"labels", b"data", b"batch_label"}
    np.testing.assert_array_equal(found[b"data"], expected[b"data"])
    assert found[b"data"].dtype == np.uint8
    assert found[b"labels"] == expected[b"labels"] == [3, 1, 4, 1, 5, 9, 2]


def test_data_without_arrays_is_read_as_well():
    value = [1, 300, 70_000, -5, None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, [[2]]]
    assert unpickle(in_a_dict(pickle.dumps(value, 2)[2:-1]), "batch") == {b"data": value}


def test_text_of_python_3_is_refused_since_the_published_files_have_none():
    for value in ({"data": 1}, {b"data": 1}):
        with pytest.raises(BadFile, match="no CIFAR batch needs"):
            unpickle(pickle.dumps(value, 2), "batch")


@pytest.mark.parametrize("protocol", range(6))
def test_no_command_in_a_pickle_is_run(tmp_path, protocol):
    mark = tmp_path / "run"
    for payload in (
        Call(os.system, f"touch {mark}"),
        Call(eval, f"open({str(mark)!r}, 'w')"),
        {"data": Call(os.system, f"touch {mark}")},
        [Call(exec, f"open({str(mark)!r}, 'w')")],
    ):
        with pytest.raises(BadFile, match="which no CIFAR batch needs"):
            unpickle(pickle.dumps(payload, protocol), "batch")
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cposix\nsystem\n(U\x04truetR.",
        b"cos\nsystem\n(U\x04truetR.",
        b"c__builtin__\neval\n(U\x011tR.",
        b"(S'true'\nios\nsystem\n.",  # INST calls without REDUCE
        b"(cos\nsystem\nS'true'\no.",  # and so does OBJ
        b"cnumpy\nload\n(U\x01xtR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"cnumpy\nndarray\n(K\x01\x85tR.",  # one of the three names, but not as an array is made
        b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.",  # an array of Python objects
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"Ppersistent\n.",
        b"\x82\x01.",  # a name by number, from the process's own registry
    ],
)
def test_every_way_to_call_or_to_look_up_is_refused(content):
    with pytest.raises(BadFile, match="no CIFAR batch"):
        unpickle(content, "batch")


def test_what_is_refused_is_named_without_repainting_the_terminal():
    with pytest.raises(BadFile) as caught:
        unpickle(b"cos\x1b[2J\nsystem\n.", "ba\x1btch")
    assert str(caught.value).isprintable()
    assert "ba\\x1btch: asks for" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02}T\xff\xff\xff\xffabc.", "cut short"),
        (b"\x80\x02}(", "cut short"),
        (b"", "cut short"),
        (with_length(2**31 - 1), "shape is not that of its bytes"),
        (with_length(-3), "has no shape"),
        (in_a_dict(pickled_array(np.zeros((1,) * 5, np.uint8))), "has no shape"),
        (b"\x80\x02]" + b"0" * 10 + b".", "instruction"),
        (b"\x80\x02K\x01.", "no dict"),
        (b"\x80\x02}K\x01K\x02s.", "no text"),
        (b"\x80\x02}(U\x01au.", "no text and value"),
        (b"\x80\x02}U\x01aa.", "no list"),
        (b"\x80\x02}(.", "takes more than it has"),
        (b"\x80\x02e.", "damaged"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"c" + b"a" * 1000 + b"\nb\n.", "a name has no end"),
    ],
)
def test_damage_and_giants_are_refused_with_a_reason(content, reason):
    tracemalloc.start()
    with pytest.raises(BadFile, match=reason):
        unpickle(content, "batch")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_a_pickle_cannot_keep_the_reader_busy_for_long():
    with pytest.raises(BadFile, match="more than 1,000,000 steps"):
        unpickle(b"]q\x00" + b"h\x00" * 1_000_000 + b".", "batch")


def test_deep_nesting_is_only_length():
    depth = 300_000
    nested = in_a_dict(b"]" * depth + b"a" * (depth - 1))
    value = unpickle(nested, "batch")[b"data"]
    for _ in range(depth - 1):
        (value,) = value
    assert value == []
    with pytest.raises(BadFile, match="makes something else"):
        unpickle(b"cnumpy\ndtype\n" + b")" + b"\x85" * depth + b"R.", "batch")


def test_an_array_by_columns_comes_back_by_rows():
    rows = np.arange(6, dtype=np.uint8).reshape(2, 3)
    by_columns = pickled_array(rows).replace(b"\x89U\x06" + rows.tobytes(), b"\x88U\x06" + rows.T.tobytes())
    np.testing.assert_array_equal(unpickle(in_a_dict(by_columns), "batch")[b"data"], rows)


def test_an_array_is_filled_once():
    array = pickled_array(np.zeros((2, 3), np.uint8))
    state = array[array.rindex(b"(K\x01(") :]
    with pytest.raises(BadFile, match="fills something else"):
        unpickle(in_a_dict(array + state), "batch")


def test_arrays_cannot_be_written_to():
    assert not unpickle(BATCH, "batch")[b"data"].flags.writeable


def test_any_damage_ends_in_a_dict_or_in_one_error():
    draw = np.random.default_rng(1)
    small = cifar_batch(IMAGES[:1, :1, :1], labels=[1, 2], coarse_labels=[0, 3])
    refused = 0
    for _ in range(3000):
        damaged = bytearray(small)
        for position in draw.integers(0, len(small), draw.integers(1, 4)):
            damaged[position] = draw.integers(0, 256)
        content = bytes(damaged[: draw.integers(1, len(small) + 1)] if draw.random() < 0.3 else damaged)
        try:
            assert type(unpickle(content, "batch")) is dict
        except BadFile:
            refused += 1
    assert 1000 < refused < 3000
