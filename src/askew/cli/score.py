"""`askew score`: verdicts, streamed to a file as they are reached, the worst on the terminal."""

import heapq
import io
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
from rich.table import Table
from rich.text import Text

from askew import storage, threshold
from askew.cli.places import check_place
from askew.cli.rows import Row, Spool, check_suffix, writer_for
from askew.cli.terminal import err, out, speaking
from askew.detectors import load
from askew.errors import InvalidInput, NoImages
from askew.images import open_images, printable

if TYPE_CHECKING:
    from askew.detectors.contract import Detector
    from askew.detectors.verdicts import Verdict
    from askew.training import Watch


@dataclass
class Summary:
    """What is kept of a batch, however long it is: counts, and the worst few rows."""

    top: int
    images: int = 0
    anomalies: int = 0
    unreadable: int = 0
    fitted_on: int = 0
    first_error: str = ""
    notes: Counter[str] = field(default_factory=Counter)
    worst: list[tuple[float, int, Row]] = field(default_factory=list)

    def add(self, row: Row, verdict: "Verdict") -> None:
        """Count one image."""
        self.images += 1
        self.anomalies += row.verdict == "anomaly"
        self.fitted_on += verdict.fitted_on
        self.notes.update(verdict.notes)
        if row.error:
            self.unreadable += 1
            self.first_error = self.first_error or f"{row.path}: {row.error}"
        else:
            entry = (row.anomaly_score or 0.0, -self.images, row)
            (heapq.heappush if len(self.worst) < self.top else heapq.heappushpop)(self.worst, entry)


def score(
    model: Path,
    images: list[str],
    *,
    output: Path | None,
    false_alarm_rate: float | None,
    fdr: float | None,
    top: int,
    needs_threshold: bool,
    device: str,
    quiet: bool,
) -> int:
    """How many anomalies there were."""
    if fdr is not None and false_alarm_rate is not None:
        raise InvalidInput("--fdr and --false-alarm-rate are two ways to draw the line; give one")
    if fdr is not None and not 0 < fdr < 1:
        raise InvalidInput(f"a false-discovery rate lies between 0 and 1, got {fdr}")
    if output is not None:
        check_suffix(output)
        check_place(output, [model, *images])
    summary = Summary(top)
    with ExitStack() as stack:
        watch = stack.enter_context(speaking(quiet))
        detector = load(model, device=device)
        if needs_threshold or fdr is not None:
            _ = detector.fitted_threshold  # or a word on how to get one
        source = open_images(images)
        for note in () if quiet else source.notes:
            err.print(note, highlight=False, markup=False, soft_wrap=True)
        stream = _stream(output, stack)
        write = writer_for(output, stream) if stream is not None else None
        verdicts = _watched(detector.verdicts(source, false_alarm_rate=false_alarm_rate), len(source), watch)
        rows = (
            _rows(detector, verdicts, false_alarm_rate)
            if fdr is None
            else _fdr_rows(detector, verdicts, fdr, stack, quiet)
        )
        for row, verdict in rows:
            summary.add(row, verdict)
            if write is not None:
                write(row)
    if summary.unreadable == summary.images:
        raise NoImages(f"none of the {summary.images:,} images can be scored; the first: {summary.first_error}")
    if not quiet:
        _report(summary, detector, output, false_alarm_rate, fdr)
    return summary.anomalies


def _stream(output: Path | None, stack: ExitStack) -> TextIO | None:
    """Where rows go: the file, or standard output when it is not a terminal."""
    if output is not None:
        return stack.enter_context(storage.atomic_text(output))
    if sys.stdout.isatty():
        return None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")  # names are what they are, whatever the locale
    return sys.stdout


def _rows(detector: "Detector", verdicts: "Iterable[Verdict]", rate: float | None) -> "Iterator[tuple[Row, Verdict]]":
    line = detector.threshold_ if rate is None else detector.fitted_threshold.at(rate)
    for verdict in verdicts:
        yield Row.of(verdict, None if line is None else line.value), verdict


def _fdr_rows(
    detector: "Detector", verdicts: "Iterable[Verdict]", fdr: float, stack: ExitStack, quiet: bool
) -> "Iterator[tuple[Row, Verdict]]":
    """Rows whose verdict needs all p-values first: verdicts wait in a file, numbers in memory."""
    n = detector.fitted_threshold.n
    spool = stack.enter_context(Spool())
    p_values = np.fromiter((v.p_value for v in spool.filled(verdicts) if v.p_value is not None), np.float64)
    if not quiet and (obstacle := threshold.fdr_obstacle(n, len(p_values), fdr)):
        err.print(obstacle, style="yellow", highlight=False, soft_wrap=True)
    flagged = p_values[threshold.benjamini_hochberg(p_values, fdr)]
    cut = flagged.max() if len(flagged) else -1.0
    for verdict in spool.verdicts():
        if verdict.p_value is not None:
            verdict = replace(verdict, is_anomaly=verdict.p_value <= cut)
        yield Row.of(verdict, None), verdict


def _watched(verdicts: "Iterable[Verdict]", total: int, watch: "Watch | None") -> "Iterator[Verdict]":
    from askew.training import Progress

    began = told = time.monotonic()
    for done, verdict in enumerate(verdicts, 1):
        yield verdict
        now = time.monotonic()
        if watch and now - told > 0.5:
            told = now
            watch(Progress("scoring", done, total, now - began))


def _report(summary: Summary, detector: "Detector", output: Path | None, rate: float | None, fdr: float | None) -> None:
    on_terminal = sys.stdout.isatty() and output is None
    if on_terminal:
        out.print(_table(summary))
    for note, count in sorted(summary.notes.items()):
        err.print(f"{count:,} images: {note}", highlight=False, markup=False)
    if summary.unreadable:
        line = f"{summary.unreadable:,} images cannot be read, the first: {summary.first_error}"
        if on_terminal and summary.unreadable > 1:
            line += "; -o scores.csv keeps all reasons"
        err.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if summary.fitted_on:
        line = f"{summary.fitted_on:,} images were used in fitting: their verdicts say nothing about new images"
        err.print(line, style="yellow", highlight=False, soft_wrap=True)
    if fdr is None and (chosen := detector.threshold_ if rate is None else detector.fitted_threshold.at(rate)):
        err.print(chosen.describe(), highlight=False, soft_wrap=True)
    if detector.threshold_ is None:
        err.print(f"{summary.images:,} images scored; the model has no threshold, so no verdicts", highlight=False)
    else:
        err.print(f"{summary.anomalies:,} anomalies among {summary.images:,} images", highlight=False)
    if output is not None:
        err.print(f"wrote {printable(str(output))}", highlight=False, markup=False, soft_wrap=True)


def _table(summary: Summary) -> Table:
    """The worst images, worst first."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("anomaly score", "right"), ("p-value", "right"), ("verdict", "left"), ("image", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for _, _, row in sorted(summary.worst, reverse=True):
        p_value = "" if row.p_value is None else f"{row.p_value:.4f}"
        style = "bold red" if row.verdict == "anomaly" else ""
        table.add_row(f"{row.anomaly_score:.3f}", p_value, Text(row.verdict, style), Text(row.path))
    if summary.images > len(summary.worst):
        table.caption = f"the {len(summary.worst)} worst of {summary.images:,}; -o scores.csv keeps all"
    return table
