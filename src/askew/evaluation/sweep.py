"""Runs what a recipe lists and the ledger lacks. A crash loses at most the run in flight, which is resumed.

In the folder of a benchmark:

    ledger.jsonl                what is done, one line a run
    runs/KEY.checkpoint         the run in flight, gone once it is in the ledger
    runs/KEY.safetensors        the scores of a run that is done: its curves and pictures can be drawn again
    runs/KEY.lock               held by the process that works on the run; two processes never do the same
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew import storage
from askew.datasets.dataset import DataSet
from askew.detectors import detector_class
from askew.detectors.contract import Detector
from askew.detectors.learning import checkpoint_files
from askew.detectors.settings import DetectorSettings, named
from askew.errors import BadFile, InvalidInput
from askew.evaluation.ledger import Ledger, Row, RunSettings
from askew.evaluation.protocol import HasCandidates, commit, evaluate, failed
from askew.evaluation.recipes import Recipe, Sweep
from askew.training import Watch

try:
    import fcntl
except ImportError:  # Windows has no such lock: there, one process at a time.
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("askew")

WAIT_SECONDS = 5.0
OpenDataSet = Callable[[str], DataSet]


@dataclass(frozen=True)
class Benchmark:
    """A folder with a ledger in it."""

    folder: Path

    @property
    def ledger(self) -> Ledger:
        """The rows."""
        return Ledger(self.folder / "ledger.jsonl")

    def file(self, run: RunSettings, suffix: str) -> Path:
        """A file of one run."""
        return self.folder / "runs" / f"{run.key}.{suffix}"

    def make(self) -> None:
        """The folder and what is below it; raises one line where it cannot be made."""
        try:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadFile(f"{self.folder}: cannot be made: {error.strerror or error}") from error

    def scores(self, run: RunSettings) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """The normality of each test image and which are normal, where they were kept and are this run's."""
        path = self.file(run, "safetensors")
        if not path.exists():
            return None
        tensors, document = storage.read(path, kind="scores")
        normality, is_normal = tensors.get("normality"), tensors.get("is_normal")
        if document.get("key") != run.key or normality is None or is_normal is None:
            raise BadFile(f"{path} does not hold this run's scores; delete it, or run it again")
        return normality, is_normal


def planned(
    recipe: Recipe, open_dataset: OpenDataSet, *, precision: str = "auto", device: str = "auto"
) -> list[tuple[RunSettings, DataSet]]:
    """Every run of a recipe with its data, in the order they are made: all classes of a seed before the next seed."""
    runs = []
    for sweep in recipe.sweeps:
        data = open_dataset(sweep.dataset)
        trained = np.unique(data.train.labels).tolist()
        judged = set(np.unique(data.test.labels).tolist())
        labels = sweep.labels if sweep.labels is not None else trained
        if unjudged := [label for label in labels if label in trained and not 0 < len({label} & judged) < len(judged)]:
            raise InvalidInput(
                f"{data.title} has no test images of {data.class_names[unjudged[0]]!r}, or of nothing else: "
                "leave that class out with --classes"
            )
        if unknown := [label for label in labels if label not in trained]:
            known = ", ".join(map(str, trained))
            raise InvalidInput(f"{data.title} has no training images of label {unknown[0]}; its labels are {known}")
        for seed in range(sweep.seeds):
            for detector in sweep.detectors:
                kind = detector_class(detector)  # or a word on what is not installed
                # Without candidates to choose among, both protocols are the same run.
                protocol = sweep.protocol if issubclass(kind, HasCandidates) else "honest"
                preset, settings = _preset(kind, sweep)
                chosen = kind.engine_for(device, precision).precision
                runs += [
                    (
                        RunSettings(
                            dataset=sweep.dataset,
                            data=data.fingerprint,
                            label=label,
                            detector=detector,
                            preset=preset,
                            settings=settings.model_dump(mode="json"),
                            precision=chosen,
                            seed=seed,
                            protocol=protocol,
                        ),
                        data,
                    )
                    for label in labels
                ]
    return runs


def _preset(kind: type[Detector], sweep: Sweep) -> tuple[str, DetectorSettings]:
    """The settings a sweep asks of a detector, under a name that says so where they are cut short."""
    name = sweep.preset or kind.default_preset()
    settings = named(kind.PRESETS, name)
    if sweep.training is not None:
        name, settings = f"{name} at {100 * sweep.training:g} % of its training", settings.shortened(sweep.training)
    return name, settings if sweep.views is None else settings.with_views(sweep.views)


def sweep(
    runs: Sequence[tuple[RunSettings, DataSet]],
    benchmark: Benchmark,
    *,
    device: str = "auto",
    again: bool = False,
    watch: Watch | None = None,
    told: Callable[[Row, int], None] = lambda row, left: None,
) -> list[Row]:
    """The rows of these runs, each made now unless it is in the ledger.

    `told` hears of each new row, and of how many are left. A failed run is tried again only if `again` is said. A run
    that another process works on is waited for.
    """
    benchmark.make()
    commit()  # that of the code as it is loaded, whatever is committed while it runs
    waiting = list(runs)
    while waiting:
        busy = []
        for position, (run, data) in enumerate(waiting):
            with _alone(benchmark.file(run, "lock")) as mine:
                if not mine:
                    busy.append((run, data))
                elif not _settled(benchmark.ledger, run, again):
                    row = _made(run, data, benchmark, device, watch)
                    told(row, len(waiting) - position - 1 + len(busy))
        if len(busy) == len(waiting):
            time.sleep(WAIT_SECONDS)
        waiting, again = busy, False
    keys = {run.key for run, _ in runs}
    return [row for row in benchmark.ledger.rows() if row.key in keys]


def _settled(ledger: Ledger, run: RunSettings, again: bool) -> bool:
    """Whether the ledger, as it is now, says all there is to say of the run."""
    row = next((row for row in ledger.rows() if row.key == run.key), None)
    return row is not None and (row.status == "done" or not again)


def _made(run: RunSettings, data: DataSet, benchmark: Benchmark, device: str, watch: Watch | None) -> Row:
    checkpoint = benchmark.file(run, "checkpoint")

    def evaluated() -> tuple[Row, NDArray[np.float64], NDArray[np.bool_]]:
        return evaluate(run, data, device=device, checkpoint=checkpoint, watch=watch)

    try:
        try:
            row, normality, is_normal = evaluated()
        except BadFile as error:
            if not (begun := checkpoint_files(checkpoint)):
                raise
            # Of another version of askew or torch, or damaged: it may be hours of work, so it is not deleted.
            for file in begun:
                file.replace(file.with_name(f"{file.name}.set-aside"))
            log.warning("starting anew, the checkpoint is set aside: %s", error)
            row, normality, is_normal = evaluated()
    except Exception as error:  # a run that fails must not lose the sweep, whatever failed in it
        log.warning("%s of %s failed: %s", data.class_names[run.label], run.dataset, error, exc_info=_is_bug(error))
        row = failed(run, data, error)
    else:
        # The scores first: a run that is in the ledger has them.
        tensors = {"normality": normality, "is_normal": is_normal}
        storage.write(benchmark.file(run, "safetensors"), kind="scores", tensors=tensors, document={"key": run.key})
    benchmark.ledger.append(row)
    # What a failed run has learned is kept: --again goes on from there.
    for file in checkpoint_files(checkpoint) if row.status == "done" else ():
        file.unlink(missing_ok=True)
    return row


def _is_bug(error: Exception) -> bool:
    from askew.errors import AskewError

    return not isinstance(error, AskewError | MemoryError)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether this process alone works on what the lock file stands for; a process that dies lets go of it."""
    if fcntl is None:
        yield True
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
