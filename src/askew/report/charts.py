"""Coordinates of the benchmark page's charts: numbers in, places out; the page's template draws them.

Lines lie in a square of `SIDE` units, which the browser stretches over the plot; words and marks lie at percentages of
it. So a chart fits any width while its letters and strokes keep their size.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from askew.report.axis import Bins, number, round_ticks, tick_words

SIDE: Final = 1000
VERTICES: Final = 200

Floats = NDArray[np.float64]


class Tick(NamedTuple):
    """A line of an axis, at a percentage of it."""

    at: float
    words: str


class Point(NamedTuple):
    """A place in a plot: percentages from the left and from the top."""

    x: float
    y: float


class Histogram(NamedTuple):
    """The stairs of each group, in the order given, over one axis of scores."""

    stairs: tuple[str, ...]
    ticks: tuple[Tick, ...]
    threshold: Tick | None
    beyond: int


class CostAxes(NamedTuple):
    """A logarithmic axis of cost below, an axis of AUROC beside it, and each run's place."""

    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    points: tuple[Point, ...]


def roc_curve(normal: Floats, other: Floats) -> Floats:
    """The corners [v, 2] of the ROC curve: the share of false alarms and of anomalies found, each from 0 to 1."""
    scores = np.concatenate([normal, other])
    order = np.argsort(-scores, kind="stable")
    ranked, false_alarms = scores[order], np.cumsum(order < len(normal))
    last_of_its_score = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    alarms = np.append(0, false_alarms[last_of_its_score])
    found = np.append(0, last_of_its_score + 1) - alarms
    # Only where the curve turns does it need a point.
    along, up = np.diff(alarms), np.diff(found)
    turns = np.concatenate([[True], along[1:] * up[:-1] != up[1:] * along[:-1], [True]])
    return np.stack([alarms[turns] / len(normal), found[turns] / len(other)], axis=1)


def thinned(curve: Floats, most: int = VERTICES) -> Floats:
    """The curve with at most so many of its vertices, those left out that matter least.

    A vertex matters as much as the triangle it makes with its neighbours (Visvalingam and Whyatt's measure). Of two
    that matter about equally the one goes that brings the area back, so what stairs lose and gain evens out.
    """
    points: list[tuple[float, float]] = [(x, y) for x, y in curve.tolist()]
    before, after = list(range(-1, len(points) - 1)), list(range(1, len(points) + 1))
    gains = [0.0] * len(points)
    bulges: list[tuple[float, int]] = []  # leaving these out loses area
    dents: list[tuple[float, int]] = []  # and these gains some

    def weigh(vertex: int) -> None:
        if 0 < vertex < len(points) - 1:
            (x0, y0), (x1, y1), (x2, y2) = (points[place] for place in (before[vertex], vertex, after[vertex]))
            gains[vertex] = ((x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)) / 2
            heappush(dents if gains[vertex] > 0 else bulges, (abs(gains[vertex]), vertex))

    for vertex in range(len(points)):
        weigh(vertex)
    drift, left = 0.0, len(points)
    while left > most:
        for heap in (bulges, dents):
            while heap and abs(gains[heap[0][1]]) != heap[0][0]:
                heappop(heap)  # its neighbours have changed since, or it is gone
        evens, adds = (bulges, dents) if drift > 0 else (dents, bulges)
        heap = evens if evens and (not adds or evens[0][0] <= 4 * adds[0][0]) else adds
        _, vertex = heappop(heap)
        drift, left = drift + gains[vertex], left - 1
        gains[vertex] = math.nan
        after[before[vertex]], before[after[vertex]] = after[vertex], before[vertex]
        weigh(before[vertex])
        weigh(after[vertex])
    return curve[[not math.isnan(gain) for gain in gains]]


def place(across: float, up: float) -> Point:
    """Where a point of the unit square lies in the plot."""
    return Point(round(100 * float(across), 2), round(100 * (1 - float(up)), 2))


def line(curve: Floats) -> str:
    """An SVG path through the points [v, 2] of the unit square, whose second axis points up."""
    places = np.rint(curve * (SIDE, -SIDE) + (0, SIDE)).astype(int).tolist()
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def histogram(groups: Sequence[Floats], threshold: float | None) -> Histogram:
    """Stairs of equal bins, one edge on the threshold; the highest stair of all is as high as the plot."""
    bins = Bins(groups, threshold)
    heights = np.rint(SIDE * (1 - bins.shares / bins.shares.max())).astype(int)
    edges = [round(SIDE * edge / bins.count) for edge in range(1, bins.count + 1)]

    def percent(score: float) -> float:
        return round(100 * (score - bins.low) / (bins.high - bins.low), 2)

    ticks = round_ticks(bins.low, bins.high, 3)
    return Histogram(
        stairs=tuple(_stairs(edges, stairs) for stairs in heights.tolist()),
        ticks=tuple(Tick(percent(tick), minus(words)) for tick, words in zip(ticks, tick_words(ticks), strict=True)),
        threshold=None if threshold is None else Tick(percent(threshold), minus(number(threshold))),
        beyond=sum(bins.beyond),
    )


def _stairs(edges: list[int], heights: list[int]) -> str:
    path = f"M0 {SIDE}"
    for height, flat in groupby(zip(edges, heights, strict=True), key=itemgetter(1)):
        path += f"V{height}H{list(flat)[-1][0]}"
    return f"{path}V{SIDE}"


class Scale(NamedTuple):
    """An axis of shares that ends at 1, as percentages of its length."""

    low: float

    @classmethod
    def over(cls, shares: Iterable[float]) -> "Scale":
        """The scale that holds all the shares."""
        return cls(min(math.floor(20 * min(shares) + 1e-9) / 20, 0.9))

    def place(self, share: float) -> float:
        """Where the share lies on the axis, in percent of its length."""
        return round(100 * (share - self.low) / (1 - self.low), 2)

    def ticks(self, most: int) -> tuple[Tick, ...]:
        """Round percentages."""
        return tuple(Tick(self.place(tick / 100), f"{tick:.0f}") for tick in round_ticks(100 * self.low, 100, most))


def cost_axes(macs: Sequence[float], aurocs: Sequence[float]) -> CostAxes:
    """The places of runs by cost, in decades from left to right, and by AUROC, from the bottom up."""
    logs = np.log10(macs)
    first, last = math.floor(logs.min() + 1e-9), math.ceil(logs.max() - 1e-9)
    last = max(last, first + 1)
    every = math.ceil((last - first) / 6)
    across = tuple(
        Tick(round(100 * (power - first) / (last - first), 2), f"10{superscript(power)}")
        for power in range(first, last + 1, every)
    )
    scale = Scale.over(aurocs)
    points = tuple(
        Point(round(100 * (log - first) / (last - first), 2), round(100 - scale.place(auroc), 2))
        for log, auroc in zip(logs.tolist(), aurocs, strict=True)
    )
    return CostAxes(across, tuple(Tick(round(100 - tick.at, 2), tick.words) for tick in scale.ticks(5)), points)


def minus(words: str) -> str:
    """A number's words with a sign as wide as the plus."""
    return words.replace("-", "\N{MINUS SIGN}")


def superscript(power: int) -> str:
    """The power in small raised digits."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def powers_of_ten(value: float) -> str:
    """A large number as people write it: 1.8 × 10¹⁴."""
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa} \N{MULTIPLICATION SIGN} 10{superscript(int(power))}"
