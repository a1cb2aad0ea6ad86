"""What is said of one image."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askew.images import Batch, ImageSource, fingerprints
from askew.threshold import Threshold


@dataclass(frozen=True)
class Verdict:
    """Scores and a verdict, or the error that kept an image from having them."""

    name: str
    anomaly_score: float | None = None
    p_value: float | None = None
    is_anomaly: bool | None = None
    error: str | None = None
    fitted_on: bool = False  # the detector has seen this very image, so its verdict says nothing
    notes: tuple[str, ...] = ()


def verdicts_of(
    batch: Batch,
    normality: NDArray[np.float64],
    *,
    source: ImageSource,
    line: Threshold | None,
    fitted_on: NDArray[np.uint64],
) -> Iterator[Verdict]:
    """A batch's verdicts in the source's order; `fitted_on` holds the fingerprints of the fit, ascending."""
    rows = {index: Verdict(source.names[index], error=reason) for index, reason in batch.errors}
    notes: dict[int, list[str]] = {}
    for index, note in batch.notes:
        notes.setdefault(index, []).append(note)
    seen = are_among(fingerprints(batch.images), fitted_on)
    p_values = [None] * len(normality) if line is None else line.p_values(-normality).tolist()
    alarms = [None] * len(normality) if line is None else line.is_anomaly(-normality).tolist()
    for row, index in enumerate(batch.indexes):
        rows[index] = Verdict(
            name=source.names[index],
            anomaly_score=float(-normality[row]),
            p_value=p_values[row],
            is_anomaly=alarms[row],
            fitted_on=bool(seen[row]),
            notes=tuple(notes.get(index, ())),
        )
    return (rows[index] for index in sorted(rows))


def are_among(marks: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """For each mark, whether it is among the known ones, which are ascending and may be many."""
    if not len(known):
        return np.zeros(len(marks), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, marks), len(known) - 1)
    return np.asarray(known[places] == marks)
