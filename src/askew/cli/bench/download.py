"""`askew bench download`: a data set's published files, for those who have a network."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from askew.cli.terminal import err, speaking
from askew.errors import InvalidInput
from askew.images import printable

if TYPE_CHECKING:
    from askew.training import Watch


def fetch(name: str, data: Path | None, *, quiet: bool) -> None:
    """Fetch into the data folder."""
    from askew.datasets.download import download

    if data is None:
        raise InvalidInput("a download needs a folder: pass --data FOLDER or set ASKEW_DATA")
    with speaking(quiet) as watch:
        folder = download(name, data, None if watch is None else _teller(f"{name}, bytes", watch))
    if not quiet:
        err.print(f"{printable(name)} is in {printable(str(folder))}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _Fetched:
    """What is read of a `training.Progress`, which only torch brings; a download does without."""

    stage: str
    done: int
    total: int
    seconds: float
    seconds_left: float
    loss: None = None
    accuracy: None = None


def _teller(stage: str, watch: "Watch") -> Callable[[int, int], None]:
    """A function to call with (done, total), which tells the watcher."""
    began, start = time.monotonic(), None

    def tell(done: int, total: int) -> None:
        nonlocal start
        # The pace is this transfer's own; what was there before took no time.
        start = done if start is None else min(start, done)
        seconds = time.monotonic() - began
        left = seconds / max(done - start, 1) * (total - done)
        watch(_Fetched(stage, done, total, seconds, left))  # type: ignore[arg-type]

    return tell
