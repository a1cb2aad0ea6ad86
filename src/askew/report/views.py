"""What a benchmark page is made from: tables as text, and runs as plain figures, scores and images."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askew.errors import InvalidInput
from askew.report.charts import Floats
from askew.report.picture import Example

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TableView:
    """A table as text. `bold` and `averages` count rows and columns from 0, below the header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each row's first cell names it; a cell of a dash is a gap."""
    bold: frozenset[tuple[int, int]] = frozenset()
    averages: frozenset[int] = frozenset()
    """Rows that sum up the others, set off from them."""
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    """Titles above neighbouring columns, from left to right, and how many each spans; some may be empty."""

    def __post_init__(self) -> None:
        if self.groups and sum(count for _, count in self.groups) != len(self.header):
            raise InvalidInput(
                f"groups span all columns, got {self.groups} for {len(self.header)} columns in {self.title!r}"
            )
        for row in self.rows:
            if len(row) != len(self.header):
                raise InvalidInput(
                    f"a row is as long as the header, got {len(row)} cells for {len(self.header)} in {self.title!r}"
                )


@dataclass(frozen=True, eq=False)
class RunView:
    """One run: a class taken as normal, by one group of runs that may be averaged, from one seed.

    Figures are shares from 0 to 1; scores and threshold are anomaly scores, higher is worse. `auroc` is None where
    nothing was run, or where the run failed for that `reason`: the gap is then shown beside the printed figure. `macs`
    are all multiply-accumulates spent; runs without any have no place among the costs, whose axis is logarithmic.
    """

    name: str
    group: str
    dataset: str
    seed: int
    auroc: float | None
    printed: float | None = None
    printed_with_hindsight: bool = False
    macs: float | None = None
    anomaly_scores: Floats | None = None
    is_normal: Flags | None = None
    threshold: float | None = None
    most_normal: tuple[Example, ...] = ()
    least_normal: tuple[Example, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        for figure in (self.auroc, self.printed):
            if figure is not None and not 0 <= figure <= 1:
                raise InvalidInput(f"an AUROC is a share from 0 to 1, got {figure} for {self.words}")
        if self.reason and self.auroc is not None:
            raise InvalidInput(f"a run that failed has no AUROC, got {self.auroc} for {self.words}")
        if self.macs is not None and not 0 <= self.macs < math.inf:
            raise InvalidInput(f"multiply-accumulates are counted from 0 up, got {self.macs} for {self.words}")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InvalidInput(f"a threshold to draw must be finite, got {self.threshold} for {self.words}")
        if self.anomaly_scores is None:
            return
        scores, truth = np.asarray(self.anomaly_scores, np.float64), np.asarray(self.is_normal, np.bool_)
        if scores.ndim != 1 or truth.shape != scores.shape or not np.isfinite(scores).all():
            raise InvalidInput(
                f"curves need a flat list of finite anomaly scores and the truth of each, got shapes {scores.shape} "
                f"and {truth.shape} for {self.words}; leave unreadable images out"
            )
        if truth.all() or not truth.any():
            raise InvalidInput(f"curves need both normal images and others, got {truth.sum()} normal for {self.words}")
        object.__setattr__(self, "anomaly_scores", np.clip(scores, -1e150, 1e150))  # differences stay finite
        object.__setattr__(self, "is_normal", truth)

    @property
    def words(self) -> str:
        """What tells this run from the others."""
        return f"{self.name} of {self.dataset}, {self.group}, seed {self.seed}"

    def groups(self) -> tuple[Floats, Floats]:
        """The anomaly scores of the normal images, and of the others."""
        assert self.anomaly_scores is not None
        assert self.is_normal is not None
        return self.anomaly_scores[self.is_normal], self.anomaly_scores[~self.is_normal]
