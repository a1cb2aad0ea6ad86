"""What a run says while it works: a bar on a terminal, plain lines in a log, nothing when quiet."""

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from askew.training import Progress as Step
    from askew.training import Watch

LOG_SECONDS = 10.0


class _Terminal(Console):
    """A console that passes on the error of a closed pipe, where rich would exit with 1: anomalies found."""

    def on_broken_pipe(self) -> None:
        raise


out = _Terminal()
err = _Terminal(stderr=True)


class _Lines(logging.Handler):
    """Notices of the library, above the bar and out of the way of what is piped."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        err.print(record.getMessage(), style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def speaking(quiet: bool) -> "Iterator[Watch | None]":
    """A watcher for the time of the block, or None when quiet; the library's notices are shown alike."""
    log = logging.getLogger("askew")
    handler = _Lines()
    log.addHandler(handler)
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    # What Pillow remarks about an odd file, askew says itself where it matters.
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")
            if quiet:
                yield None
            elif err.is_terminal:
                with _bar() as watch:
                    yield watch
            else:
                yield _line_watch()
    finally:
        log.removeHandler(handler)


@contextmanager
def _bar() -> "Iterator[Watch]":
    columns = ("{task.description:24}", BarColumn(24), "{task.percentage:>3.0f}%", TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=err, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def watch(step: "Step") -> None:
            if step.stage not in tasks:
                tasks[step.stage] = progress.add_task(step.stage, total=step.total, figures="")
            progress.update(tasks[step.stage], completed=step.done, total=step.total, figures=_figures(step))

        yield watch


def _line_watch() -> "Watch":
    told: dict[str, float] = {}

    def watch(step: "Step") -> None:
        now = time.monotonic()
        if step.done < step.total and now - told.setdefault(step.stage, now) < LOG_SECONDS:
            return
        told[step.stage] = now
        left = f", {step.seconds_left:.0f} s left" if step.done < step.total else f", {step.seconds:.0f} s"
        print(f"{step.stage}: {step.done:,} of {step.total:,}{left}{_figures(step)}", file=sys.stderr, flush=True)

    return watch


def _figures(step: "Step") -> str:
    loss = "" if step.loss is None else f"  loss {step.loss:.3f}"
    return loss if step.accuracy is None else f"{loss}  accuracy {100 * step.accuracy:.0f} %"
