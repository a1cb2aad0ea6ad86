"""The results of runs, appended to one file of JSON lines that processes share and a crash cannot spoil.

A row is keyed by the content of its settings, so a run that is there need not be run again. Each row is one write under
a lock; what a killed process leaves of a row is no row, and goes when the next one comes.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from askew.errors import BadFile, InvalidInput
from askew.storage import check_writable

try:
    import fcntl
except ImportError:  # Windows has no such lock: there, one process at a time.
    fcntl = None  # type: ignore[assignment]

SCHEMA: Final = 1
_LONGEST_LINE = 2**20
_LARGEST_FILE = 2**28
_ROW_STARTS = b'{"schema_version":'
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _as_read_back(value: Any) -> Any:
    """The value as JSON gives it back, so that its key is the same before and after it was stored."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"must go into JSON: {error}") from error


Document = Annotated[dict[str, Any], BeforeValidator(_as_read_back)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]  # sums of many shares may end a rounding above 1
Seconds = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(ge=0)]


class RunSettings(BaseModel):
    """Everything that decides a run's numbers."""

    model_config = _STRICT
    dataset: str
    data: str  # the fingerprint of what was read
    label: Count  # of the normal class
    detector: str
    preset: str
    settings: Document
    precision: Literal["fp32", "bf16"]
    seed: Count
    protocol: Literal["honest", "paper"]
    test_images: Annotated[int, Field(ge=1, lt=2**63)] | None = None  # that many, evenly drawn; None: all

    @property
    def key(self) -> str:
        """What the run is known by. A setting added later leaves the key as it is where it has its default."""
        return content_key(self.model_dump(mode="json", exclude_defaults=True))


class Result(BaseModel):
    """How well the run did on the test set."""

    model_config = _STRICT
    auroc: Share
    aupr_in: Share
    aupr_out: Share
    average_precision: Share
    fpr_at_95_tpr: Share
    threshold: float | None = None  # the anomaly score above which an image is an anomaly
    false_alarm_rate: Share | None  # wanted; None: nothing was held out, so there is no threshold
    false_alarms: Count | None  # realised, among the test normals
    interval: tuple[Count, Count] | None  # where 95 % of such counts lie
    normals: Count
    anomalies: Count
    found: Count | None  # anomalies above the threshold


class Cost(BaseModel):
    """What the run took."""

    model_config = _STRICT
    trained_on: Count
    held_out: Count
    training_seconds: Seconds
    scoring_seconds: Seconds
    peak_memory_bytes: Count
    training_views: Count
    scoring_views: Count
    training_macs: Count  # multiply-accumulates
    scoring_macs: Count
    training_views_per_second: Rate | None = None  # by the clock: whatever else the machine did is in it
    scoring_views_per_second: Rate | None = None


class Row(BaseModel):
    """One finished run: its figures, or why there are none."""

    model_config = _STRICT
    schema_version: Literal[1] = SCHEMA
    key: str
    run: RunSettings
    class_name: str
    title: str = ""  # the data set's, which says what part of it was at hand
    status: Literal["done", "failed"]
    reason: str = ""
    hindsight: bool = False  # test labels chose among a detector's candidates
    chosen: Document = {}
    result: Result | None
    cost: Cost | None
    where: dict[str, str]  # askew, torch, python, commit, hardware, device, threads
    finished: str  # ISO 8601, UTC

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.key != self.run.key:
            raise ValueError(f"the key of these settings is {self.run.key}, not the one given")
        if (self.status == "done") != (self.result is not None):
            raise ValueError("a run has a result if it is done, and only then")
        if self.status == "failed" and not self.reason:
            raise ValueError("a failed run has a reason")
        return self


def content_key(content: Mapping[str, Any]) -> str:
    """16 hex digits of the content: the same for equal content, whatever its order and whether 1 is written 1.0."""
    text = json.dumps(_with_whole_numbers(content), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def on_one_line(text: str) -> str:
    """The text as it stands, or escaped where it would break the line or repaint a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each key, in the order of the keys; a failed run never hides one that is done."""
    chosen: dict[str, Row] = {}
    for row in rows:
        before = chosen.get(row.key)
        if before is None or before.status == "failed" or row.status == "done":
            chosen[row.key] = row
    return list(chosen.values())


class Ledger:
    """A file of rows. It need not be there yet; its folder must be when the first row comes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._shown = on_one_line(str(self.path))

    def rows(self) -> list[Row]:
        """What is known of every run, as `latest` has it; none where there is no file."""
        try:
            with self._opened() as stream:
                return latest(_parsed(stream))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadFile(f"{self._shown}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise BadFile(f"{self._shown}: {error}") from error

    def done(self, key: str) -> bool:
        """Whether the run of that key is there with its result."""
        return any(row.key == key and row.status == "done" for row in self.rows())

    def append(self, row: Row) -> None:
        """Put the row at the end, on the disk when this returns. Nothing else of the file is lost by it, ever."""
        line = json.dumps(row.model_dump(mode="json"), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > _LONGEST_LINE:
            raise InvalidInput(f"a row holds up to {_LONGEST_LINE:,} bytes, got {len(line):,}; record less")
        check_writable(self.path)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            with os.fdopen(descriptor, "r+b", buffering=0) as stream, _locked(stream, alone=True):
                _write_whole(stream.fileno(), _healed(stream) + line)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise BadFile(f"{self._shown}: cannot be written: {error.strerror or error}") from error

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        # Opening a pipe must not wait for somebody to write into it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(self.path, flags), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("is not a regular file; give the ledger's")
            if found.st_size > _LARGEST_FILE:
                raise ValueError(f"has {found.st_size:,} bytes, and a ledger up to {_LARGEST_FILE:,}; start another")
            # Readers wait for a torn row to be cut off and replaced: half of either would look like damage.
            with _locked(stream, alone=False):
                yield stream


def _parsed(stream: BinaryIO) -> Iterator[Row]:
    """The rows of the file; the last line may be what a killed process left of one, and is passed over."""
    number = 0
    while line := stream.readline(_LONGEST_LINE + 1):
        number += 1
        whole = line.endswith(b"\n")
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"line {number} is longer than the {_LONGEST_LINE:,} bytes of a row; remove it")
        try:
            yield _row(line)
        except ValueError as error:
            if whole or not _is_torn(line):
                raise ValueError(f"line {number} {error}") from error


def _row(line: bytes) -> Row:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON: it is damaged or no ledger's; remove it") from None
    schema = content.get("schema_version") if isinstance(content, dict) else None
    if type(schema) is int and schema > SCHEMA:
        raise ValueError(f"was written by a newer askew, with schema {min(schema, 10**9)}: upgrade askew")
    try:
        return Row.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = on_one_line(".".join(map(str, first["loc"])))[:60]
        what = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"is no row of a ledger: {place or 'all of it'}: {what[:200]}; remove it") from None
    except RecursionError:
        raise ValueError("is nested too deep for a row; remove it") from None


def _is_torn(tail: bytes) -> bool:
    """Whether bytes without a line end are the beginning of a row, or zeros that a power cut left instead."""
    left = tail.rstrip(b"\0")
    if not left.startswith(_ROW_STARTS):
        return _ROW_STARTS.startswith(left)
    with suppress(ValueError, RecursionError):
        json.loads(left)
        return False  # a whole row, if not one that can be read here: it is somebody's result
    return True


def _healed(stream: BinaryIO) -> bytes:
    """What must precede the next row: a line end where the last line lacks one. A torn row is cut off."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - _LONGEST_LINE, 0))
    end = stream.read(_LONGEST_LINE)
    tail = end[end.rfind(b"\n") + 1 :]
    if not tail:
        return b""
    with suppress(ValueError):
        _row(tail)
        return b"\n"
    if _is_torn(tail):
        os.ftruncate(stream.fileno(), size - len(tail))
        return b""
    return b"\n"  # not ours to cut off: reading will name the line


def _write_whole(descriptor: int, line: bytes) -> None:
    """One write, all or nothing as long as this process lives."""
    before = os.fstat(descriptor).st_size
    if os.write(descriptor, line) < len(line):
        os.ftruncate(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


@contextmanager
def _locked(stream: BinaryIO, alone: bool) -> Iterator[None]:
    """The file, waited for until nobody else writes it (or, alone, reads it)."""
    if fcntl is None:
        yield
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except OSError:
        # Some file systems have no locks, or none for readers: reading is safe enough there, writing is not.
        if alone:
            raise
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_UN)


def _sync_folder(folder: Path) -> None:
    # Makes a new file's name last. Not every system can.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _with_whole_numbers(value: Any) -> Any:
    """The value with every float that is a whole number as an integer: settings that are equal are written alike."""
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
