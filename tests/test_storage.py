import csv
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

import fuzz_storage
from askew import storage
from askew.errors import BadFile, InvalidInput

TENSORS = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "steps": np.int64(7),
    "flags": np.array([True, False]),
}
DOCUMENT = {"preset": "quick", "rate": 0.01, "classes": ["a", "ü", None]}
DTYPES = ["?", "u1", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">i4", ">i8", ">u8", ">f2", ">f4", ">f8"]

in_one_folder = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(max_size=8)
documents = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


@pytest.fixture
def blob(path):
    storage.write(path, kind="model", tensors=TENSORS, document=DOCUMENT)
    return path.read_bytes()


def refusal(path, kind="model"):
    with pytest.raises(BadFile) as caught:
        storage.read(path, kind=kind)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message.removeprefix(f"{path}: ")


def relabelled(blob, **changes):
    """The file with other metadata; None takes an entry away."""
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    metadata = {**header["__metadata__"], **changes}
    header["__metadata__"] = {key: value for key, value in metadata.items() if value is not None}
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + blob[8 + length :]


def resigned(blob, document):
    """The file with another document and the checksum to match, as somebody would forge it."""
    digest = storage._digest("model", document, {name: np.asarray(value) for name, value in TENSORS.items()})
    return relabelled(blob, document=document, sha256=digest)


# What is written is what is read


@given(st.dictionaries(texts.filter(lambda name: name != "__metadata__"), arrays, max_size=4), documents)
@in_one_folder
def test_what_is_written_is_what_is_read(tmp_path, tensors, document):
    path = tmp_path / "a.safetensors"
    storage.write(path, kind="model", tensors=tensors, document=document)
    read, read_document = storage.read(path, kind="model")
    assert read_document == document
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype.newbyteorder("=")
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.astype(read[name].dtype).tobytes()
        assert read[name].flags.writeable
        assert read[name].flags.aligned


def test_any_array_layout_is_stored_by_its_values(path):
    grid = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    layouts = {"turned": grid.T, "strided": grid[:, ::-2], "fortran": np.asfortranarray(grid), "alike": grid}
    storage.write(path, kind="model", tensors=layouts, document={})
    read, _ = storage.read(path, kind="model")
    for name, array in layouts.items():
        np.testing.assert_array_equal(read[name], array)


def test_the_safetensors_package_reads_our_files_and_we_read_its_copies(path, blob):
    theirs = load_file(path)
    assert theirs.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(theirs[name], value)
    metadata = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    save_file(theirs, path, metadata)
    assert storage.read(path, kind="model")[1] == DOCUMENT


def test_the_same_content_gives_the_same_bytes(path, blob):
    other = dict(reversed(DOCUMENT.items()))
    storage.write(path, kind="model", tensors=dict(reversed(TENSORS.items())), document=other)
    assert path.read_bytes() == blob
    program = (
        "import numpy as np, sys; from askew import storage; tensors = {c: np.ones(3) for c in 'abcdef'};"
        "storage.write(sys.argv[1], kind='k', tensors=tensors, document={c: 1 for c in 'xyz'})"
    )
    made = []
    for seed in "12":
        subprocess.run([sys.executable, "-c", program, path], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        made.append(path.read_bytes())
    assert made[0] == made[1]


def test_arrays_are_aligned_in_the_file(blob):
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    for entry in (header[name] for name in TENSORS):
        itemsize = storage._DTYPES[entry["dtype"]].itemsize
        assert (8 + length + entry["data_offsets"][0]) % itemsize == 0


def test_reading_and_writing_need_no_second_copy_of_the_tensors(path):
    program = """
        import resource, sys, numpy as np
        from askew import storage
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        before = peak()
        storage.write(sys.argv[1], kind="model", tensors={"w": np.ones(2**24, np.float32)}, document={})
        written = peak()
        storage.read(sys.argv[1], kind="model")
        print(written - before, peak() - written)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), path], check=True, capture_output=True)
    writing, reading = map(float, done.stdout.split())
    assert writing < 64 * 1.5  # the array itself takes 64 MiB
    assert reading < 64 * 0.5  # the first one's room is free again


# What cannot be stored


@pytest.mark.parametrize(
    "document",
    [
        {"a": float("nan")},
        {"a": [{"b": float("inf")}]},
        {1: 2},
        {"a": {None: 1}},
        {"a": object()},
        {"a": np.arange(2)},
        {"a": b"bytes"},
        {"a": 10**5000},
        {"a": {1, 2}},
    ],
)
def test_a_document_that_json_would_change_is_refused(path, document):
    with pytest.raises(InvalidInput, match="cannot be stored as JSON"):
        storage.write(path, kind="model", tensors={}, document=document)
    assert not path.exists()


def test_a_document_nested_without_end_is_refused(path):
    endless = {}
    endless["self"] = endless
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        storage.write(path, kind="model", tensors={}, document=endless)


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([object()]), np.array([1j]), np.zeros(2, "datetime64[s]"), np.zeros(2, "i4,i4")]
)
def test_dtypes_that_are_not_stored_are_refused(path, value):
    with pytest.raises(InvalidInput, match="tensor 'a' has dtype"):
        storage.write(path, kind="model", tensors={"a": value}, document={})


def test_names_and_kinds_that_would_confuse_are_refused(path):
    with pytest.raises(InvalidInput, match="__metadata__"):
        storage.write(path, kind="model", tensors={"__metadata__": np.ones(1)}, document={})
    with pytest.raises(InvalidInput, match="kind"):
        storage.write(path, kind="My Model", tensors={}, document={})


def test_what_could_not_be_read_back_is_not_written(path, monkeypatch):
    monkeypatch.setattr(storage, "_LARGEST_HEADER", 1000)
    with pytest.raises(InvalidInput, match="store less"):
        storage.write(path, kind="model", tensors={}, document={"a": "x" * 1000})
    assert not path.exists()


# Files that are damaged, foreign or hostile


def test_a_file_cut_anywhere_is_refused(path, blob):
    for length in range(len(blob)):
        path.write_bytes(blob[:length])
        refusal(path)
    path.write_bytes(blob + b"\0")
    assert "too long" in refusal(path)


@given(st.data())
@in_one_folder
def test_a_bit_flipped_anywhere_is_noticed(path, blob, data):
    at, bit = data.draw(st.integers(0, len(blob) - 1)), data.draw(st.integers(0, 7))
    damaged = bytearray(blob)
    damaged[at] ^= 1 << bit
    path.write_bytes(damaged)
    refusal(path)


def test_a_flipped_bit_in_a_tensor_is_told_as_damage(path, blob):
    path.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    assert refusal(path).startswith("does not match its checksum")


@given(st.binary(max_size=400))
@in_one_folder
def test_random_bytes_are_refused(path, data):
    path.write_bytes(data)
    refusal(path)


def test_other_programs_files_are_refused(path, tmp_path):
    save_file({"a": np.ones(3)}, path)
    assert "lacks askew's metadata" in refusal(path)
    save_file({"a": np.ones(3)}, path, {"format": "pt"})
    assert "another program wrote it" in refusal(path)
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    assert refusal(tmp_path / "a.npz") == "is not an askew file, or is damaged"
    path.write_bytes(b"")
    assert refusal(path) == "is not an askew file, or is damaged"


def test_a_file_from_the_future_says_upgrade_even_if_it_holds_what_we_do_not_know(path, blob):
    path.write_bytes(relabelled(blob, schema="7", document=None).replace(b'"F32"', b'"Q99"'))
    assert refusal(path) == "was written by a newer askew (schema 7; this one reads up to 1): upgrade askew"


def test_another_kind_of_file_is_refused(path, blob):
    assert refusal(path, kind="checkpoint") == "is a model, not a checkpoint; give the checkpoint's file"


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": None},
        {"schema": "0"},
        {"schema": "1.0"},
        {"schema": "\u0661"},
        {"schema": 1},
        {"schema": "9" * 5000},
        {"kind": None},
        {"kind": "\x1b[31m\n"},
        {"kind": ["model"]},
        {"document": None},
        {"document": "{}"},
        {"sha256": None},
        {"sha256": "0" * 64},
        {"sha256": 5},
        {"format": None},
        {"format": "Askew"},
    ],
)
def test_metadata_that_is_not_as_written_is_refused(path, blob, changes):
    path.write_bytes(relabelled(blob, **changes))
    refusal(path)


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "null",
        "3",
        '"a"',
        "",
        "{",
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":1e999}',
        '{"a":1,"a":2}',
        "[" * 100_000,
        '{"a":' * 65 + "1" + "}" * 65,
        '{"a":' + "9" * 5000 + "}",
    ],
)
def test_a_forged_document_is_refused_though_its_checksum_fits(path, blob, document):
    path.write_bytes(resigned(blob, document))
    assert "checksum" not in refusal(path)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"{" * 9,
        b'{"__metadata__":' * 3000,
        b'{"__metadata__":{},"__metadata__":{}}',
        b'{"a":NaN}',
        b"{}",
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"\xff":1}',
        b"{\x00}",
        b'{"__metadata__":[]}',
    ],
)
def test_a_hostile_header_is_refused(path, header):
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    refusal(path)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 33, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]},
        {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1},
    ],
)
def test_an_array_that_does_not_lie_in_the_file_is_refused(path, blob, entry):
    metadata = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    head = json.dumps({"__metadata__": metadata, "a": entry}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    assert "checksum" not in refusal(path)


@pytest.mark.parametrize("spans", [[(0, 4), (0, 4)], [(0, 4), (2, 6)], [(0, 4), (8, 12)], [(4, 8), (8, 12)]])
def test_arrays_with_gaps_or_overlaps_are_refused_though_their_checksum_fits(path, blob, spans):
    metadata = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    arrays = {name: np.zeros(1, np.float32) for name in "ab"}
    metadata["sha256"] = storage._digest("model", metadata["document"], arrays)
    entries = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": span} for name, span in zip("ab", spans, strict=True)
    }
    head = json.dumps({"__metadata__": metadata, **entries}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(spans[-1][1]))
    assert "gaps or overlaps" in refusal(path)


def test_truth_values_are_0_or_1_even_in_a_forged_file(path):
    forged = {"a": np.array([2, 1], np.uint8).view(np.bool_)}
    storage.write(path, kind="model", tensors=forged, document={})
    assert "truth values" in refusal(path)


def test_a_file_too_large_is_refused_unread(path):
    with path.open("wb") as stream:
        stream.truncate(4 * 2**30 + 1)
    assert "up to 4,294,967,296" in refusal(path)
    path.write_bytes((16 * 2**20 + 1).to_bytes(8, "little") + b"{" + bytes(100))
    assert "not an askew file" in refusal(path)
    path.write_bytes((1000).to_bytes(8, "little") + b"{" + bytes(100))
    assert "cut short" in refusal(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "is not a regular file"
    assert refusal(tmp_path) == "is a folder, not a file"
    assert refusal(tmp_path / "none") == "no such file"
    assert refusal(Path("/dev/zero")) == "is not a regular file"
    assert "cannot be read: File name too long" in refusal(tmp_path / ("x" * 300))
    for odd in ("a\0b", "a\nb"):
        with pytest.raises(BadFile) as caught:
            storage.read(tmp_path / odd, kind="model")
        assert str(caught.value).isprintable()


def test_fuzzing_for_a_moment_finds_nothing():
    outcomes = fuzz_storage.fuzz(seconds=1.5, seed=1)
    assert outcomes["damaged, refused"] > 50
    assert outcomes["forged, read"] > 5


# Whole or not at all


def assert_untouched(path, before):
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, blob):
    program = """
        import resource, sys, numpy as np
        from askew import storage, errors
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            storage.write(sys.argv[1], kind="model", tensors={"w": np.ones(10**6)}, document={})
        except errors.BadFile as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), path], check=True, capture_output=True)
    assert done.stdout.decode() == f"{path}: cannot be written: File too large\n"
    assert_untouched(path, blob)


@pytest.mark.parametrize("call", ["fsync", "open", "replace"])
def test_a_system_call_that_fails_leaves_the_old_file(path, blob, monkeypatch, call):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(BadFile, match="cannot be written: No space left on device"):
            storage.write(path, kind="model", tensors={}, document={})
    assert_untouched(path, blob)


def test_a_process_killed_while_writing_leaves_the_old_file(path, blob):
    program = """
        import sys, time
        from askew import storage
        with storage.atomic_file(sys.argv[1]) as stream:
            stream.write(b"half of it")
            stream.flush()
            print("half", flush=True)
            time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == blob
    left = [entry for entry in path.parent.iterdir() if entry != path]
    assert [entry.read_bytes() for entry in left] == [b"half of it"]
    assert all(entry.suffix == ".partial" for entry in left)


def test_a_process_killed_at_any_moment_leaves_a_whole_file(path, blob):
    program = """
        import sys, numpy as np
        from askew import storage
        print("ready", flush=True)
        while True:
            for step in range(1000):
                storage.write(sys.argv[1], kind="model", tensors={"w": np.full(50_000, step)}, document={"step": step})
    """
    for milliseconds in (1, 7, 19):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), path], stdout=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(milliseconds / 1000)
            process.kill()
        tensors, document = storage.read(path, kind="model")
        assert "step" not in document or (tensors["w"] == document["step"]).all()


@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), KeyboardInterrupt(), FileNotFoundError(2, "gone", "other.png")]
)
def test_what_the_block_raises_passes_and_the_old_file_stays(path, blob, error):
    def half_a_file():
        with storage.atomic_file(path) as stream:
            stream.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        half_a_file()
    assert caught.value is error
    assert_untouched(path, blob)


def test_the_umask_decides_who_may_read(path):
    old = os.umask(0o027)
    try:
        storage.write(path, kind="model", tensors={}, document={})
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o666])
def test_a_file_that_is_replaced_keeps_its_permissions(path, blob, mode):
    path.chmod(mode)
    with storage.atomic_file(path) as stream:
        stream.write(b"new")
        (partial,) = path.parent.glob(".askew-*.partial")
        assert stat.S_IMODE(partial.stat().st_mode) == mode
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_file_system_without_permissions_is_written_to_all_the_same(path, blob, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", refuse)
        storage.atomic_write(path, b"new")
    assert_untouched(path, b"new")


def test_a_link_keeps_pointing_to_the_file_that_is_replaced(path, blob, tmp_path):
    (tmp_path / "link").symlink_to(path.name)
    storage.atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert path.read_bytes() == b"new"


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, complaint in {"": "folder", "pipe": "not a regular file", "none/a": "no folder", "a\0": "null"}.items():
        with pytest.raises(BadFile, match=complaint):
            storage.atomic_write(tmp_path / name, b"")
    with pytest.raises(BadFile, match="not a regular file"):
        storage.atomic_write("/dev/null", b"")
    with pytest.raises(BadFile, match="cannot be written: File name too long"):
        storage.atomic_write(tmp_path / ("x" * 300), b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_what_cannot_be_written_is_known_beforehand(path, blob, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for name, complaint in {
        "": "is a folder",
        "pipe": "not a regular file",
        "none/a": "there is no folder .*none; make it first",
        f"{path.name}/a": "there is no folder",
        "a\0": "null",
        "x" * 300: "cannot be written: File name too long",
    }.items():
        with pytest.raises(BadFile, match=complaint):
            storage.check_writable(tmp_path / name)
    storage.check_writable(path)
    storage.check_writable(tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda folder, _: folder != tmp_path)
        for name in (path.name, "new"):
            with pytest.raises(BadFile, match=r"cannot be written: the folder .* is read-only; choose another"):
                storage.check_writable(tmp_path / name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name, "pipe"]
    assert path.read_bytes() == blob


def test_text_tables_and_pictures_go_the_same_way(tmp_path):
    path = tmp_path / ("x" * 255)
    storage.atomic_write(path, "ü\r\n")
    assert path.read_bytes() == b"\xc3\xbc\r\n"
    with storage.atomic_text(path) as text:
        csv.writer(text).writerow(["path", "ü,1"])
        assert path.read_bytes() == b"\xc3\xbc\r\n"
    assert path.read_bytes() == 'path,"ü,1"\r\n'.encode()
    with storage.atomic_file(path) as stream:
        for part in (b"P", b"N", b"G"):
            stream.write(part)
    assert path.read_bytes() == b"PNG"
