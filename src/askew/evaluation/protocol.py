"""One class is normal, the rest is not: the paper's protocol, from run settings to a row of the ledger.

The detector sees the normal class's training images and nothing else; the whole test set is scored; the last epoch
counts. Under `honest` no test label is read before the final figures. Under `paper` a detector that exposes a grid of
candidates gets the one with the best test AUROC, as the paper gave its one-class SVMs; such rows say `hindsight`.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from askew import __version__
from askew.datasets.dataset import DataSet
from askew.detectors import detector_class
from askew.detectors.contract import Detector
from askew.errors import InvalidInput
from askew.evaluation.ledger import Cost, Result, Row, RunSettings
from askew.evaluation.metrics import aupr_in, aupr_out, auroc, average_precision, fpr_at_95_tpr
from askew.threshold import Threshold
from askew.training import Watch

Scores = NDArray[np.float64]


@runtime_checkable
class HasCandidates(Protocol):
    """A fitted detector whose settings are a grid: it exposes every candidate's scores, and the protocol chooses."""

    def candidate_scores(self, X: Any) -> Mapping[str, Scores]:
        """The normality of X under each candidate, by the candidate's name."""
        ...


def evaluate(
    run: RunSettings,
    data: DataSet,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    watch: Watch | None = None,
) -> tuple[Row, Scores, NDArray[np.bool_]]:
    """The row of a run that went well, the normality of each test image, and which of them are normal.

    With a checkpoint a run that was interrupted goes on where it was.
    """
    if run.data != data.fingerprint:
        raise InvalidInput(f"the run is of {run.dataset} {run.data}, the images are {data.fingerprint}")
    chosen_images = judged_by(run, data)
    is_normal = data.test.labels[chosen_images] == run.label
    if not 0 < is_normal.sum() < len(is_normal):
        raise InvalidInput(
            f"the test images are all of {data.class_names[run.label]!r}, or none is: nothing to tell apart"
        )
    _forget_peak()
    kind = detector_class(run.detector)
    detector = kind(
        preset=kind.Settings.model_validate(run.settings),
        random_state=run.seed,
        side=data.train.images.shape[1],
        size="stretch",  # they have that side already
        device=device,
        precision=run.precision,
        checkpoint=None if checkpoint is None else str(checkpoint),
        watch=watch,
    )
    detector.fit(data.train.images[data.train.labels == run.label])
    fitted = time.perf_counter()
    normality, chosen = _scores(run, detector, data, chosen_images)
    scored = time.perf_counter()

    row = Row(
        key=run.key,
        run=run,
        class_name=data.class_names[run.label],
        title=data.title,
        status="done",
        hindsight=bool(chosen),
        chosen=chosen,
        # The detector's threshold is on its own scores, not on a candidate's.
        result=measured(is_normal, normality, None if chosen else detector.threshold_),
        cost=_cost(detector, len(normality), scored - fitted),
        where=where(detector),
        finished=now(),
    )
    return row, normality, is_normal


def _cost(detector: Detector, judged: int, scoring_seconds: float) -> Cost:
    """What the run took: the fit in all its legs, the scores of the held-out normals among it, and the judging."""
    effort, record = detector.effort_, detector.training_
    views = effort.training_views + record.held_out * effort.views_per_image, effort.views_per_image * judged
    return Cost(
        trained_on=record.images,
        held_out=record.held_out,
        training_seconds=record.seconds,
        scoring_seconds=round(scoring_seconds, 3),
        peak_memory_bytes=_peak_bytes(detector.engine_.device),
        training_views=views[0],
        scoring_views=views[1],
        training_macs=effort.training_macs + record.held_out * effort.macs_per_image,
        scoring_macs=effort.macs_per_image * judged,
        training_views_per_second=round(views[0] / max(record.seconds, 1e-3), 1),
        scoring_views_per_second=round(views[1] / max(scoring_seconds, 1e-3), 1),
    )


def judged_by(run: RunSettings, data: DataSet) -> NDArray[np.int64]:
    """The rows of the test set that the run is judged by: all of them, or so many, evenly drawn."""
    count = len(data.test.labels)
    if run.test_images is None or run.test_images >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, run.test_images).astype(np.int64)


def measured(is_normal: NDArray[np.bool_], normality: Scores, line: Threshold | None) -> Result:
    """The figures of merit; those of the threshold where there is one."""
    normals = int(is_normal.sum())
    alarms = None if line is None else line.is_anomaly(-normality)
    return Result(
        auroc=auroc(is_normal, normality),
        aupr_in=aupr_in(is_normal, normality),
        aupr_out=aupr_out(is_normal, normality),
        average_precision=average_precision(is_normal, normality),
        fpr_at_95_tpr=fpr_at_95_tpr(is_normal, normality),
        threshold=None if line is None else line.value,
        false_alarm_rate=None if line is None else line.false_alarm_rate,
        false_alarms=None if alarms is None else int(alarms[is_normal].sum()),
        interval=None if line is None else line.realised_count_interval(normals),
        normals=normals,
        anomalies=len(is_normal) - normals,
        found=None if alarms is None else int(alarms[~is_normal].sum()),
    )


def failed(run: RunSettings, data: DataSet, error: Exception) -> Row:
    """The row of a run that came to nothing, with its reason on one line."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return Row(
        key=run.key,
        run=run,
        class_name=data.class_names[run.label],
        title=data.title,
        status="failed",
        reason=reason,
        result=None,
        cost=None,
        where=where(None),
        finished=now(),
    )


def _scores(
    run: RunSettings, detector: Detector, data: DataSet, rows: NDArray[np.int64]
) -> tuple[Scores, dict[str, Any]]:
    """The normality of the test images, and the candidate that was chosen with hindsight, if one was."""
    images = data.test.images if len(rows) == len(data.test.images) else data.test.images[rows]
    if run.protocol == "honest" or not isinstance(detector, HasCandidates):
        return detector.score_samples(images), {}
    # Paper: its one-class SVMs get the settings with the best AUROC on the test set.
    is_normal = data.test.labels[rows] == run.label
    candidates = detector.candidate_scores(images)
    best = max(candidates, key=lambda name: auroc(is_normal, candidates[name]))
    return candidates[best], {"candidate": best, "of": len(candidates)}


def where(detector: Detector | None) -> dict[str, str]:
    """What the run was computed with and on."""
    device = "cpu" if detector is None else detector.engine_.device.type
    return {
        "askew": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "hardware": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }


def now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str:
    """The commit of the checkout that askew runs from, `+` where something in it was changed; empty outside one."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return ""
    git = ["git", "-C", str(source)]
    with suppress(OSError, subprocess.SubprocessError):
        ask = {"capture_output": True, "text": True, "check": True, "timeout": 10}
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], **ask).stdout.strip()  # type: ignore[call-overload]  # noqa: S603
        changed = subprocess.run([*git, "status", "--porcelain", "src"], **ask).stdout  # type: ignore[call-overload]  # noqa: S603
        return f"{commit}+" if changed else commit
    return ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0]}" if names else platform.processor() or platform.machine()


_STATUS = Path("/proc/self/status")


def _forget_peak() -> None:
    """Let the peak of memory be counted anew, where the system can."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes(device: torch.device) -> int:
    """The peak of this process, or of the GPU, since `_forget_peak`, or since the start where that cannot be."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    with suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return 0
