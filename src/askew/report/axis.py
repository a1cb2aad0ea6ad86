"""Bins, ticks and numbers of an axis that a person can read."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Bins:
    """Equal bins over groups of scores, one edge on the threshold; a few far scores are counted in the outermost bins.

    `shares[g, b]` is the share of group g in bin b; `beyond` counts the scores further left and further right.
    """

    def __init__(self, groups: Sequence[NDArray[np.float64]], threshold: float | None) -> None:
        line = [] if threshold is None else [threshold]
        low, high = _span([*groups, np.array(line)] if line else groups)
        # One long tail must not squeeze everything else into a single bar.
        near_low, near_high = _span([np.quantile(group, [0.01, 0.99]) for group in groups] + [np.array(line or [])])
        if 0 < near_high - near_low < 0.4 * (high - low):
            reach = 0.1 * (near_high - near_low)
            low, high = max(low, near_low - reach), min(high, near_high + reach)
        least = max(0.02 * max(abs(low), abs(high)), 1.0) if high == low else 1e-9 * max(abs(low), abs(high))
        if high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2

        count = int(np.clip(2 * math.sqrt(sum(map(len, groups))), 16, 64))
        self.width = (high - low) / count
        self.low = low if threshold is None else threshold - math.ceil((threshold - low) / self.width) * self.width
        # A hair is taken off so that a highest score on the last edge does not ask for another bin.
        self.count = max(math.ceil((high - self.low) / self.width - 1e-9), 1)
        self.high = self.low + self.count * self.width
        places = [np.floor((group - self.low) / self.width) for group in groups]
        inside = [np.clip(place, 0, self.count - 1).astype(np.int64) for place in places]
        self.shares = np.array([np.bincount(place, minlength=self.count) / len(place) for place in inside])
        every = np.concatenate(groups)
        slack = 1e-9 * self.width
        self.beyond = int((every < self.low - slack).sum()), int((every > self.high + slack).sum())


def _span(groups: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    every = np.concatenate(groups)
    return float(every.min()), float(every.max())


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Up to `most` multiples of 1, 2 or 5 times a power of ten between the two."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [tick * step for tick in range(first, last + 1)]


def number(value: float) -> str:
    """A few digits that a person reads at a glance."""
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.2e}"
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}" if size else "0"


def tick_words(ticks: list[float]) -> list[str]:
    """What stands under each tick, all with the same decimals."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    if max(map(abs, ticks)) >= 1e6 or step < 1e-3:
        return [f"{tick:.4g}" for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick + 0.0:,.{decimals}f}" for tick in ticks]
