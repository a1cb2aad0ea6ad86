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
        share: float | None,
        preset_share: float,
        cross_fit: int,
        draw: np.random.Generator,
    ) -> "HoldOut":
        """The hold-out that the rate needs; raises `UnreachableRate` where there are too few images.

        A copy of an image that was learned from is no test: exact repeats count once and stay on one side.
        """
        everything = np.arange(len(fingerprints))
        asked = preset_share if share is None else share
        if not 0 <= asked <= 0.5:
            raise InvalidInput(f"holdout must lie between 0 and 0.5, got {asked}")
        distinct = np.sort(np.unique(fingerprints, return_index=True)[1])
        if len(everything) > 1 == len(distinct):
            raise InvalidInput(f"all {len(everything)} images are the same picture; give different normal images")
        together = _together(fingerprints, groups)
        if cross_fit:
            return cls._cross_fitted(everything, distinct, together, rate, cross_fit, draw)
        if asked == 0 and rate == "auto":
            return cls(everything, everything[:0])
        if share == 0:
            raise InvalidInput(
                f"holdout=0 leaves no image to keep a false-alarm rate of {rate}; leave out one of the two"
            )
        size = threshold.holdout_size(len(distinct), rate, asked or DEFAULT_SHARE)
        units = None if groups is None else together[distinct]
        _, chosen = threshold.split_holdout(len(distinct), size, draw, units)
        kept = distinct[chosen]
        if rate == "auto":
            say_what_is_supported(len(kept))
        else:
            threshold.check_rate(rate, len(kept))  # whole groups can make the hold-out smaller than was asked
        return cls(everything[~np.isin(together, together[kept])], kept, exact=groups is None)

    @classmethod
    def _cross_fitted(
        cls,
        everything: Indexes,
        distinct: Indexes,
        together: Indexes,
        rate: Rate,
        parts: int,
        draw: np.random.Generator,
    ) -> "HoldOut":
        if not 2 <= parts <= len(distinct):
            raise InvalidInput(f"cross_fit must lie between 2 and the number of images ({len(distinct)}), got {parts}")
        if rate != "auto":
            threshold.check_rate(rate, len(distinct))
        log.info("fitting %d times more to calibrate on all images: the rate's interval is approximate", parts)
        folds = threshold.folds(len(everything), parts, draw, together)
        return cls(everything, distinct, tuple(folds), exact=False)


def _together(fingerprints: NDArray[np.uint64], groups: Sequence[Any] | None) -> Indexes:
    """A number per image, the same for images that must stay on one side: repeats, and those of one group."""
    _, numbers = np.unique(fingerprints, return_inverse=True)
    if groups is None:
        return np.asarray(numbers, dtype=np.int64)
    # Groups that share a picture are one.
    leader = {number: number for number in numbers.tolist()}

    def root(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    first: dict[Any, int] = {}
    for number, group in zip(numbers.tolist(), groups, strict=True):
        leader[root(number)] = root(first.setdefault(group, number))
    return np.array([root(number) for number in numbers.tolist()], dtype=np.int64)


def say_what_is_supported(kept: int) -> None:
    """Tell of the rate that `auto` becomes where there are too few images for the wanted one."""
    if threshold.smallest_rate(kept) > WANTED_RATE:
        log.info(
            "%d held-out images support a false-alarm rate of %.2g %% at the least, so that is the rate; 1 %% takes %d",
            kept,
            100 * threshold.smallest_rate(kept),
            threshold.normals_needed(WANTED_RATE),
        )
