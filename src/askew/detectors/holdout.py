"""Which normals are learned from and which are kept for the threshold: decided before any training."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askew import threshold
from askew.errors import InvalidInput

log = logging.getLogger("askew")

DEFAULT_SHARE = 0.2
WANTED_RATE = 0.01  # what `false_alarm_rate="auto"` aims at

Indexes = NDArray[np.int64]
Rate = float | Literal["auto"]


@dataclass(frozen=True)
class HoldOut:
    """Rows to learn from and rows to calibrate on; with `parts`, each part calibrates a detector fitted on the rest."""

    learned_on: Indexes
    kept: Indexes
    parts: tuple[Indexes, ...] = ()
    exact: bool = True  # whether the rate's interval is more than an approximation

    @classmethod
    def plan(
        cls,
        fingerprints: NDArray[np.uint64],
        groups: Sequence[Any] | None,
        *,
        rate: Rate,
        share: float,
        cross_fit: int,
        draw: np.random.Generator,
    ) -> "HoldOut":
        """The hold-out that the rate needs; raises `UnreachableRate` where there are too few images."""
        everything = np.arange(len(fingerprints))
        if not 0 <= share <= 0.5:
            raise InvalidInput(f"holdout must lie between 0 and 0.5, got {share}")
        if cross_fit:
            return cls._cross_fitted(everything, groups, rate, cross_fit, draw)
        if share == 0 and rate == "auto":
            return cls(everything, everything[:0])
        # A copy of an image that was learned from is no test: exact repeats count once, and stay on one side.
        distinct = everything if groups is not None else np.sort(np.unique(fingerprints, return_index=True)[1])
        if len(everything) > 1 == len(distinct):
            raise InvalidInput(f"all {len(everything)} images are the same picture; give different normal images")
        size = threshold.holdout_size(len(distinct), rate, share or DEFAULT_SHARE)
        _, chosen = threshold.split_holdout(len(distinct), size, draw, groups)
        kept = distinct[chosen]
        if not isinstance(rate, str):
            threshold.check_rate(rate, len(kept))  # whole groups can make the hold-out smaller than was asked
        learned_on = everything[~np.isin(fingerprints, fingerprints[kept])]
        if not len(learned_on):
            raise InvalidInput("every image repeats a held-out one, so none is left to learn from")
        if rate == "auto" and threshold.smallest_rate(len(kept)) > WANTED_RATE:
            log.info(
                "%d held-out images support a false-alarm rate of %.2g %% at the least, so that is the rate; "
                "1 %% takes %d",
                len(kept),
                100 * threshold.smallest_rate(len(kept)),
                threshold.normals_needed(WANTED_RATE),
            )
        return cls(learned_on, kept, exact=groups is None)

    @classmethod
    def _cross_fitted(
        cls, everything: Indexes, groups: Sequence[Any] | None, rate: Rate, parts: int, draw: np.random.Generator
    ) -> "HoldOut":
        if not 2 <= parts <= len(everything):
            raise InvalidInput(
                f"cross_fit must lie between 2 and the number of images ({len(everything)}), got {parts}"
            )
        if not isinstance(rate, str):
            threshold.check_rate(rate, len(everything))
        log.info("fitting %d times more to calibrate on all images: the rate's interval is approximate", parts)
        folds = threshold.folds(len(everything), parts, draw, groups)
        return cls(everything, everything, tuple(folds), exact=False)
