"""Named arrays and one JSON document in one `.safetensors` file, written whole or not at all.

Models and checkpoints are such files. Any safetensors reader opens them; nothing in them is ever executed, so reading a
stranger's file is safe. The checksum shows damage, not malice: it proves that the file is what somebody wrote, not who.

The container (8 bytes of length, a JSON header, the arrays' bytes) is laid out here and not by the safetensors package,
which orders its metadata at random, keeps the file mapped while others may cut it, and copies what it reads.
"""

import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from askew.errors import BadFile, InvalidInput

Array = npt.NDArray[Any]
AnyPath = str | os.PathLike[str]

SCHEMA = 1
_LARGEST_FILE = 4 * 2**30
_LARGEST_HEADER = 16 * 2**20
_DEEPEST_DOCUMENT = 64
_MOST_DIMENSIONS = 32  # numpy 1.26 has no more

_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
DEVICE_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # a full disk, a limit, or a broken one


class _Span(NamedTuple):
    """Where one array lies: counted from the end of the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def write(path: AnyPath, *, kind: str, tensors: Mapping[str, npt.ArrayLike], document: Mapping[str, Any]) -> None:
    """Put the tensors and the document into `path`; on any failure the file that was there stays as it was.

    The same content gives the same bytes. Tuples in the document come back as lists, and its keys come back sorted.
    """
    if not _KIND.fullmatch(kind):
        raise InvalidInput(f"a kind of file is a short lower-case word such as 'model', got {kind!r}")
    text = _document_text(document)
    arrays = {name: _storable(name, tensors[name]) for name in sorted(tensors)}
    header: dict[str, Any] = {
        "__metadata__": {
            "document": text,
            "format": "askew",
            "kind": kind,
            "schema": str(SCHEMA),
            "sha256": _digest(kind, text, arrays),
        }
    }
    # Wide numbers first keeps every array aligned, for readers that map the file.
    in_file_order = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    end = 0
    for name, array in in_file_order:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": (begin, end)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > _LARGEST_HEADER or 8 + len(head) + end > _LARGEST_FILE:
        raise InvalidInput(
            f"a file holds up to {_LARGEST_FILE:,} bytes and a document of {_LARGEST_HEADER:,}, "
            f"got {8 + len(head) + end:,} and {len(head):,}; store less"
        )
    with atomic_file(path) as stream:
        stream.write(len(head).to_bytes(8, "little"))
        stream.write(head)
        for _, array in in_file_order:
            stream.write(_raw(array))


def read(path: AnyPath, *, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """The tensors and the document of a file that `write` made, after everything in it was checked.

    Whatever is wrong becomes one `BadFile` that names the file. The checksum covers all of the content, so what comes
    back is what was written; it is no signature, and a file changed on purpose may carry a new one.
    """
    try:
        with _opened(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            metadata, header, start = _header(stream, size)
            text, checksum = _checked_metadata(metadata, kind)
            spans = _spans(header, size - start)
            tensors = {name: _array(stream, start, spans[name]) for name in sorted(spans)}
        if _digest(kind, text, tensors) != checksum:
            raise ValueError("does not match its checksum: it is damaged or was changed; get it again")
        for array in tensors.values():
            # The digest may have been made anew: numpy must not meet a truth value that is neither 0 nor 1.
            if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
                raise ValueError("holds truth values that are neither true nor false; get it again")
        document = _parsed(text)
        if complaint := _unfit_for_json(document):
            raise ValueError(f"has a document that askew would not write: {complaint}")
        if not isinstance(document, dict):
            raise ValueError("has a document that is not an object; get it again")
    except OSError as error:
        raise BadFile(f"{_shown(path)}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, ValueError) else "is nested too deep or needs too much memory"
        raise BadFile(f"{_shown(path)}: {reason}") from error
    return tensors, document


@contextmanager
def atomic_file(path: AnyPath) -> Iterator[BinaryIO]:
    """A binary stream whose bytes become `path` when the block ends well, and vanish when it does not.

    Until then `path` is what it was before, even if the power goes. A file that is replaced keeps its permissions. What
    the block itself raises passes through.
    """
    target, permissions = _replaceable(path)
    # Nobody can guess the name, so nobody can put a link there first. A killed process leaves this one file behind.
    partial = target.with_name(f".askew-{secrets.token_hex(8)}.partial")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        # From the first byte on, nobody may read it who might not read the old file; the umask may take more away.
        descriptor = os.open(partial, flags, 0o666 if permissions is None else permissions)
        try:
            if permissions is not None:
                with suppress(OSError):  # not every file system keeps permissions
                    partial.chmod(permissions)
            # A text wrapper closes the stream when it is done; the descriptor stays ours, to be synced.
            with os.fdopen(descriptor, "wb", closefd=False) as stream:
                yield stream
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(target)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        # The block may fail to open something of its own: that is its caller's error, not this file's.
        if isinstance(error, OSError) and (error.filename == str(partial) or error.errno in DEVICE_REFUSED):
            raise BadFile(f"{_shown(path)}: cannot be written: {error.strerror or error}") from error
        raise
    _sync_folder(target.parent)


@contextmanager
def atomic_text(path: AnyPath) -> Iterator[TextIO]:
    r"""A UTF-8 text stream like `atomic_file`; line ends are written as given, as the `csv` module wants it."""
    with atomic_file(path) as stream, io.TextIOWrapper(stream, encoding="utf-8", newline="") as text:
        yield text


def atomic_write(path: AnyPath, data: bytes | str) -> None:
    """Put `data` (text as UTF-8) into `path`, whole or not at all."""
    with atomic_file(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def check_writable(path: AnyPath) -> None:
    """Nothing; raises `BadFile` now where `atomic_file` would find only later that it cannot write `path`."""
    _replaceable(path)


def _replaceable(path: AnyPath) -> tuple[Path, int | None]:
    """The real file behind `path`, never a folder, a device or a pipe, and its permissions if there is one already."""
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise ValueError("is a folder; give the name of a file in it")
        if mode is not None and not stat.S_ISREG(mode):
            raise ValueError("is not a regular file; give another name")
        if not target.parent.is_dir():
            raise ValueError(f"there is no folder {_shown(target.parent)}; make it first")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise ValueError(f"cannot be written: the folder {_shown(target.parent)} is read-only; choose another")
    except OSError as error:
        raise BadFile(f"{_shown(path)}: cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        raise BadFile(f"{_shown(path)}: {error}") from error
    return target, None if mode is None else stat.S_IMODE(mode) & 0o777


def _mode(target: Path) -> int | None:
    """What kind of file it is and who may do what with it, or None where there is none."""
    try:
        return target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync_folder(folder: Path) -> None:
    # Makes the new name last. Not every system can; the file is whole either way, the old one or the new.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _opened(path: AnyPath) -> BinaryIO:
    try:
        # Opening a pipe must not wait for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise ValueError("no such file") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError("is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file")
    return os.fdopen(descriptor, "rb")


def _header(stream: BinaryIO, size: int) -> tuple[Any, dict[str, Any], int]:
    """The metadata, the entries of the arrays, and where their bytes start."""
    if size > _LARGEST_FILE:
        raise ValueError(f"has {size:,} bytes, and askew's files have up to {_LARGEST_FILE:,}")
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > _LARGEST_HEADER or stream.read(1) != b"{":
        raise ValueError("is not an askew file, or is damaged")
    if 8 + length > size:
        raise ValueError(f"is cut short: it has {size:,} bytes and its header alone {8 + length:,}; get it again")
    stream.seek(8)
    try:
        header = _parsed(stream.read(length).decode())
    except (ValueError, RecursionError):
        raise ValueError("is not an askew file, or is damaged: its header cannot be read") from None
    if "__metadata__" not in header:
        raise ValueError("is not an askew file: it lacks askew's metadata")
    return header.pop("__metadata__"), header, 8 + length


def _checked_metadata(metadata: Any, kind: str) -> tuple[str, str]:
    """The document's text and the checksum, of a file of the right format, schema and kind."""
    if not isinstance(metadata, dict) or metadata.get("format") != "askew":
        raise ValueError("is not an askew file: another program wrote it")
    schema = metadata.get("schema")
    if not isinstance(schema, str) or not re.fullmatch(r"[1-9][0-9]{0,8}", schema):
        raise ValueError("does not say which schema it follows: it is damaged or was changed; get it again")
    if int(schema) > SCHEMA:
        newer = f"schema {schema}; this one reads up to {SCHEMA}"
        raise ValueError(f"was written by a newer askew ({newer}): upgrade askew")
    found, text, checksum = (metadata.get(key) for key in ("kind", "document", "sha256"))
    # A stranger's words are not repeated before they are known to be harmless to a terminal.
    if not isinstance(found, str) or not _KIND.fullmatch(found):
        raise ValueError("does not say what kind of file it is: it is damaged or was changed; get it again")
    if found != kind:
        raise ValueError(f"is a {found}, not a {kind}; give the {kind}'s file")
    if not isinstance(text, str) or not isinstance(checksum, str):
        raise ValueError("lacks its document or its checksum: it is damaged or was changed; get it again")
    return text, checksum


def _spans(header: Mapping[str, Any], size: int) -> dict[str, _Span]:
    """Where each array lies, when they tell of numpy arrays that fill the rest of the file without gap or overlap."""
    spans = {name: _span(entry) for name, entry in header.items()}
    if None in spans.values():
        raise ValueError("describes tensors that askew cannot hold; get it again")
    valid = {name: span for name, span in spans.items() if span is not None}
    end = 0
    for span in sorted(valid.values(), key=lambda span: (span.begin, span.end)):
        if span.begin != end:
            raise ValueError("has gaps or overlaps between its tensors: it is damaged or was changed; get it again")
        end = span.end
    if end != size:
        raise ValueError(f"is cut short or too long: its tensors take {end:,} bytes, it has {size:,}; get it again")
    return valid


def _span(entry: Any) -> _Span | None:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if not rest:
            if code not in _DTYPES or len(shape) > _MOST_DIMENSIONS:
                return None
            if not all(type(length) is int and length >= 0 for length in shape):
                return None
            itemsize = _DTYPES[code].itemsize
            # numpy counts this far even for an array that is empty because one of its lengths is 0.
            if math.prod(max(length, 1) for length in shape) * itemsize > np.iinfo(np.intp).max:
                return None
            if end - begin != math.prod(shape) * itemsize:
                return None
            return _Span(_DTYPES[code], tuple(shape), begin, end)
    return None


def _array(stream: BinaryIO, start: int, span: _Span) -> Array:
    array = np.empty(span.shape, span.dtype)
    stream.seek(start + span.begin)
    filled = stream.readinto(_raw(array))  # type: ignore[attr-defined]  # typeshed gives BinaryIO no readinto
    if filled != array.nbytes:
        raise ValueError("became shorter while it was read; try again")
    return array


def _storable(name: str, value: npt.ArrayLike) -> Array:
    """The value as a contiguous little-endian array of a dtype that is stored."""
    if not isinstance(name, str) or name == "__metadata__":
        raise InvalidInput(f"a tensor's name is any text but '__metadata__', got {name!r}")
    array = np.asarray(value)
    little = array.dtype.newbyteorder("<")
    if little not in _CODES or array.ndim > _MOST_DIMENSIONS:
        kinds = ", ".join(dtype.name for dtype in _CODES)
        raise InvalidInput(f"tensor {name!r} has dtype {array.dtype} and {array.ndim} dimensions; store one of {kinds}")
    return np.asarray(array, dtype=little, order="C")


def _raw(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _digest(kind: str, text: str, tensors: Mapping[str, Array]) -> str:
    """The SHA-256 of the kind, the document and every tensor's name, dtype, shape and bytes, as hex."""
    described = [(name, _CODES[tensors[name].dtype], tensors[name].shape) for name in sorted(tensors)]
    contents = json.dumps([kind, text, described], separators=(",", ":")).encode()
    digest = hashlib.sha256(len(contents).to_bytes(8, "little"))
    digest.update(contents)
    for name in sorted(tensors):
        digest.update(_raw(tensors[name]))
    return digest.hexdigest()


def _document_text(document: Mapping[str, Any]) -> str:
    content = dict(document)
    if complaint := _unfit_for_json(content):
        raise InvalidInput(f"the document cannot be stored as JSON: {complaint}")
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidInput(f"the document cannot be stored as JSON: {error}") from error


def _unfit_for_json(value: Any, depth: int = 0) -> str | None:
    """What keeps the value from going through JSON and back unchanged, or None."""
    if depth > _DEEPEST_DOCUMENT:
        return f"it is nested deeper than {_DEEPEST_DOCUMENT} levels"
    if value is None or isinstance(value, bool | int | str):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else "it holds a number that is not finite"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "it has a key that is not text"
        parts: Sequence[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        parts = value
    else:
        return f"it holds a {type(value).__name__}; give numbers, text, lists and objects"
    return next((complaint for part in parts if (complaint := _unfit_for_json(part, depth + 1))), None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"has broken JSON: {error.msg}; get it again") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("gives one name twice: it is damaged or was changed; get it again")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which is not JSON; get it again")


def _shown(path: AnyPath) -> str:
    """The path as it stands, or quoted and escaped where it would break the line."""
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)
