"""Verdicts as rows of CSV and JSON lines, safe to open: one line each, and no cell that a spreadsheet would run."""

import csv
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from askew.errors import BadFile, InvalidInput
from askew.images import printable
from askew.images.names import unmistakable

if TYPE_CHECKING:
    from askew.detectors.verdicts import Verdict

FORMULA = ("=", "+", "-", "@", "\t", "\r")
SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Row:
    """One line of a table of verdicts; `verdict` is normal, anomaly, or empty where there is none."""

    path: str
    anomaly_score: float | None
    threshold: float | None
    p_value: float | None
    verdict: str
    error: str

    @classmethod
    def of(cls, verdict: "Verdict", threshold: float | None) -> Self:
        """The row of a verdict under a threshold."""
        word = "" if verdict.is_anomaly is None else "anomaly" if verdict.is_anomaly else "normal"
        error = printable(verdict.error or "")
        line = None if verdict.error else threshold
        return cls(unmistakable(verdict.name), verdict.anomaly_score, line, verdict.p_value, word, error)


def check_suffix(output: Path) -> None:
    """Raise where verdicts cannot be written to such a file."""
    if output.suffix.lower() not in SUFFIXES:
        raise InvalidInput(
            f"verdicts are written to a file such as scores.csv or scores.jsonl, got {printable(str(output))}"
        )


def writer_for(output: Path | None, stream: TextIO) -> Callable[[Row], None]:
    """A function that writes one row, as the file's checked suffix wants; CSV where there is no file."""
    if output is not None and output.suffix.lower() == ".jsonl":
        return lambda row: print(json.dumps(asdict(row), ensure_ascii=False, allow_nan=False), file=stream)
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(Row.__dataclass_fields__)
    return lambda row: table.writerow([_cell(value) for value in asdict(row).values()])


def _cell(value: Any) -> Any:
    """A cell that a spreadsheet shows as text instead of running it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


class Spool:
    """Verdicts put aside in a temporary file, to be read again once all are known."""

    def __enter__(self) -> Self:
        with _room_for_spools():
            self._file = tempfile.TemporaryFile("w+", encoding="ascii")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what could not be written cannot be written now, either
            self._file.close()

    def filled(self, verdicts: "Iterable[Verdict]") -> "Iterator[Verdict]":
        """The verdicts, each put aside as it passes."""
        for verdict in verdicts:
            # ASCII escapes carry file names that are not Unicode, too.
            with _room_for_spools():
                print(json.dumps(asdict(verdict)), file=self._file)
            yield verdict

    def verdicts(self) -> "Iterator[Verdict]":
        """What was put aside, in order."""
        from askew.detectors.verdicts import Verdict

        with _room_for_spools():
            self._file.seek(0)
        for line in self._file:
            values = json.loads(line)
            yield Verdict(**{**values, "notes": tuple(values["notes"])})


@contextmanager
def _room_for_spools() -> Iterator[None]:
    """A block that writes to the temporary folder, and says that it was there where it fails."""
    try:
        yield
    except OSError as error:
        folder = printable(tempfile.tempdir or "the temporary folder")
        reason = printable(error.strerror or str(error))
        raise BadFile(
            f"{folder}: verdicts cannot be put aside for --fdr: {reason}; set TMPDIR to a folder with room for them"
        ) from error
