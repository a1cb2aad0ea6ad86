"""From held-out normal images and a wanted false-alarm rate to verdicts, p-values and what the rate will really be.

This is split-conformal prediction. Scores here are anomaly scores: HIGHER IS WORSE. If a new normal image is drawn as
the n held-out ones were, its rank among the n + 1 is uniform; so an alarm above the k-th smallest held-out score, with
k = ceil((n + 1)(1 - rate)), is false at most at the wanted rate, whatever the detector and the images.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from askew.errors import InvalidInput, NoImages, UnreachableRate

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.int64]

_AUTO_RATE = 0.01
# 0.07 x 100 is a little more than 7 in floats, 0.29 x 100 a little less than 29: a rank must not hang on that.
_PRECISION = 10**9
_ROUNDING = 1 / _PRECISION


@dataclass(frozen=True, eq=False)
class Threshold:
    """A verdict's dividing line, and all that is known about how often it will be wrong on normal images.

    Equal held-out scores are fine: they can only make false alarms rarer than said, never more frequent.
    """

    calibration: Floats
    """The held-out normals' anomaly scores, ascending and read-only."""
    false_alarm_rate: float
    exact: bool = True
    """False where images come in groups or folds, which makes the interval an approximation."""

    def __post_init__(self) -> None:
        ascending = np.sort(_finite(self.calibration, "held-out scores").ravel())
        if not ascending.size:
            raise NoImages("a threshold needs held-out normal images, got none; give at least one")
        ascending.flags.writeable = False
        object.__setattr__(self, "calibration", ascending)
        object.__setattr__(self, "false_alarm_rate", check_rate(self.false_alarm_rate, ascending.size))

    @property
    def n(self) -> int:
        """How many normal images were held out."""
        return int(self.calibration.size)

    @property
    def k(self) -> int:
        """The rank of the threshold among the held-out scores, counted from 1."""
        return self.n + 1 - _alarm_ranks(self.n, self.false_alarm_rate)

    @property
    def value(self) -> float:
        """The score above which an image is an anomaly."""
        return float(self.calibration[self.k - 1])

    @property
    def expected_rate(self) -> float:
        """The false-alarm rate to expect, the mean of the realised one: the wanted rate or just below."""
        return (self.n + 1 - self.k) / (self.n + 1)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Where the realised false-alarm rate lies: the equal-tailed interval of Beta(n + 1 - k, k)."""
        tail = (1 - _fraction(confidence, "confidence")) / 2
        alarms, rest = self.n + 1 - self.k, self.k
        return _beta_quantile(tail, alarms, rest), _beta_quantile(1 - tail, alarms, rest)

    def realised_count_interval(self, m: int, confidence: float = 0.95) -> tuple[int, int]:
        """How many of `m` new normal images will be called anomalies: equal-tailed, beta-binomial."""
        tail = (1 - _fraction(confidence, "confidence")) / 2
        if m < 0:
            raise InvalidInput(f"the number of new images cannot be negative, got {m}")
        cumulative = _beta_binomial(m, self.n + 1 - self.k, self.k)
        low, high = np.searchsorted(cumulative, (tail, 1 - tail))
        return int(low), min(int(high), m)

    def p_values(self, scores: npt.ArrayLike) -> Floats:
        """For each score, how rarely a normal image looks this odd: (1 + held-out scores at or above it) / (n + 1).

        An image is an anomaly exactly where its p-value is at most `expected_rate`.
        """
        below = np.searchsorted(self.calibration, _finite(scores, "scores"), side="left")
        return np.asarray((1 + self.n - below) / (self.n + 1), dtype=np.float64)

    def is_anomaly(self, scores: npt.ArrayLike) -> Flags:
        """True where the score lies above the threshold."""
        return np.asarray(_finite(scores, "scores") > self.value)

    def at(self, rate: float) -> "Threshold":
        """The threshold for another false-alarm rate, from the same held-out images."""
        return Threshold(self.calibration, rate, self.exact)

    def describe(self) -> str:
        """One line that a person can trust: what was wanted or is supported, what to expect, and on which condition."""
        low, high = (_percent(end) for end in self.interval())
        images = "1 held-out normal image" if self.n == 1 else f"{self.n:,} held-out normal images"
        about = "" if self.exact else "approximate "
        # Nobody wants the rate that `auto` falls back on: it is what so few images can support.
        fallen_back = self.false_alarm_rate == smallest_rate(self.n) > _AUTO_RATE
        return (
            f"false-alarm rate {100 * self.false_alarm_rate:g} % {'supported' if fallen_back else 'wanted'}; "
            f"from {images}, {low} to {high} to be expected ({about}95 % interval), "
            "as long as new normal images resemble the held-out ones"
        )


def calibrate(scores: npt.ArrayLike, rate: float | Literal["auto"] = "auto", exact: bool = True) -> Threshold:
    """The threshold for held-out normals' anomaly scores; `"auto"` is 1 %, or the smallest rate they can support."""
    held_out = _finite(scores, "held-out scores").ravel()
    # One image stands in for none, so that `Threshold` can refuse the empty set in its own words.
    wanted = max(_AUTO_RATE, smallest_rate(max(held_out.size, 1))) if rate == "auto" else rate
    return Threshold(held_out, wanted, exact)


def normals_needed(rate: float) -> int:
    """The smallest number of held-out normal images that can support the rate."""
    # Whole quotients of huge numbers, so that the tiniest rate still gets an answer.
    numerator, denominator = _fraction(rate, "false_alarm_rate").as_integer_ratio()
    whole, rest = divmod(denominator, numerator)
    return max(1, whole - (rest * _PRECISION <= denominator))


def smallest_rate(n: int) -> float:
    """The smallest false-alarm rate that `n` held-out normal images can support: 1 / (n + 1)."""
    return 1 / (n + 1)


def check_rate(rate: float, n: int) -> float:
    """The rate as a float, when `n` held-out normal images can support it."""
    wanted = _fraction(rate, "false_alarm_rate")
    if _alarm_ranks(n, wanted) < 1:
        raise UnreachableRate(
            f"a false-alarm rate of {wanted:g} needs {normals_needed(wanted):,} held-out normal images, got {n:,}; "
            f"hold out more, or ask for {_rounded_up(smallest_rate(n))} or above"
        )
    return wanted


def holdout_size(n: int, rate: float | Literal["auto"], share: float = 0.2) -> int:
    """How many of `n` normal images to hold out for the threshold: a fifth, or what the rate needs if that is more."""
    if n < 1:
        raise NoImages("learning what is normal needs normal images, got none; give some")
    if n == 1:
        raise InvalidInput("one image cannot be both learned from and held out, got 1 sample; give at least 2")
    if not 0 < share <= 0.5:
        raise InvalidInput(f"the share to hold out must lie above 0 and up to a half, got {share}; 0.2 is a fifth")
    wanted = round(share * n)
    if rate == "auto":
        return max(1, wanted, min(normals_needed(_AUTO_RATE), n // 3))
    needed, most = normals_needed(rate), n // 2
    if needed > most:
        raise UnreachableRate(
            f"a false-alarm rate of {float(rate):g} needs {needed:,} held-out normal images, and at most half of "
            f"{n:,} may be held out; give {2 * needed:,} images, or ask for {_rounded_up(smallest_rate(most))} or above"
        )
    return min(max(wanted, needed), most)


def split_holdout(
    n: int, size: int, generator: np.random.Generator, groups: Iterable[Hashable] | None = None
) -> tuple[Indexes, Indexes]:
    """The images to train on and those held out, as ascending indexes.

    Images that belong together (of one object, one day) go to one side whole: random groups are held out until there
    are `size` images, passing over those that would take more than half; where too few fit, it is fewer than `size`.
    """
    if not 1 <= size < n:
        raise InvalidInput(f"between 1 and {n - 1} of {n} images can be held out, got {size}; change the size")
    group_of = _group_numbers(n, groups)
    counts = np.bincount(group_of)
    if counts.size == 1:
        raise InvalidInput(
            f"one group holds {n} of {n} images, so none can be held out; give groups that differ, or none"
        )
    order = generator.permutation(counts.size)
    chosen = order[:size] if groups is None else _groups_up_to(size, order, counts, most=n // 2)
    held_out = np.isin(group_of, chosen)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def folds(n: int, k: int, generator: np.random.Generator, groups: Iterable[Hashable] | None = None) -> list[Indexes]:
    """`k` parts of the images, as ascending indexes: random, of nearly equal size, no group in two of them."""
    group_of = _group_numbers(n, groups)
    counts = np.bincount(group_of)
    if not 2 <= k <= counts.size:
        what = "images" if groups is None else "groups of images"
        raise InvalidInput(f"{counts.size} {what} make 2 to {counts.size} folds, got {k}; change the number of folds")
    order = generator.permutation(counts.size)
    # The largest groups first, each into the smallest fold so far; equal ones stay in random order.
    order = order[np.argsort(-counts[order], kind="stable")]
    fold_of = np.empty(counts.size, dtype=np.int64)
    sizes = [0] * k
    for group in order:
        fold = sizes.index(min(sizes))
        fold_of[group] = fold
        sizes[fold] += int(counts[group])
    return [np.flatnonzero(fold_of[group_of] == fold) for fold in range(k)]


def benjamini_hochberg(p_values: npt.ArrayLike, false_discovery_rate: float) -> Flags:
    """True for the images of one batch to flag: on average at most the given share of the flagged ones is normal."""
    rate = _fraction(false_discovery_rate, "false_discovery_rate")
    p = _finite(p_values, "p-values").ravel()
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        raise InvalidInput(f"p-values lie between 0 and 1, got {p.min():g} to {p.max():g}; give p-values, not scores")
    ascending = np.sort(p)
    allowed = np.arange(1, p.size + 1) * (rate * (1 + _ROUNDING))
    passing = np.flatnonzero(ascending * p.size <= allowed)
    if not passing.size:
        return np.zeros(p.size, dtype=np.bool_)
    return np.asarray(p <= ascending[passing[-1]])


def fdr_obstacle(n: int, m: int, false_discovery_rate: float) -> str | None:
    """What keeps one lone anomaly among `m` images from being flagged with `n` held-out normals, or None.

    No p-value is below 1 / (n + 1), and the i smallest pass only where that is at most i x rate / m.
    """
    rate = _fraction(false_discovery_rate, "false_discovery_rate")
    fewest = math.ceil(m / (rate * (n + 1)) * (1 - _ROUNDING))
    if fewest <= 1:
        return None
    setting = f"at a false-discovery rate of {rate:g} with {n:,} held-out normal images"
    enough = f"hold out {normals_needed(rate / m):,} to flag one alone"
    if fewest > m:
        return f"none of {m:,} images can be flagged {setting}; {enough}"
    return f"at least {fewest:,} of {m:,} images must be anomalies for any to be flagged {setting}; {enough}"


def _alarm_ranks(n: int, rate: float) -> int:
    """How many of the n + 1 equally likely ranks of a new normal image raise an alarm: n + 1 - k."""
    return min(n, math.floor((n + 1) * rate * (1 + _ROUNDING)))


def _beta_quantile(probability: float, a: int, b: int) -> float:
    """The x with P(Beta(a, b) <= x) = probability, for whole a and b."""
    # That is P(Binomial(a + b - 1, x) >= a) = 1 - P(< a): a sum of few terms for a low rate, added up in logarithms.
    trials = a + b - 1
    j = np.arange(a)
    log_choices = np.concatenate(([0.0], np.cumsum(np.log((trials - j[:-1]) / (j[:-1] + 1)))))
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        fewer = np.exp(log_choices + j * math.log(middle) + (trials - j) * math.log1p(-middle)).sum()
        low, high = (middle, high) if 1 - fewer < probability else (low, middle)
    return middle


def _beta_binomial(m: int, a: int, b: int) -> Floats:
    """P(count <= j) for j = 0..m, when the count is Binomial(m, x) and x is Beta(a, b)."""
    j = np.arange(m)
    steps = np.log((m - j) / (j + 1)) + np.log((a + j) / (b + m - 1 - j))
    log_chances = np.concatenate(([0.0], np.cumsum(steps)))
    chances = np.exp(log_chances - log_chances.max())
    return np.asarray(np.cumsum(chances) / chances.sum())


def _group_numbers(n: int, groups: Iterable[Hashable] | None) -> Indexes:
    """Each image's group as a number from 0; without groups every image is its own."""
    if groups is None:
        return np.arange(n)
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(group, len(numbers)) for group in groups]
    if len(numbered) != n:
        raise InvalidInput(f"groups must name one group an image, got {len(numbered)} for {n} images")
    return np.array(numbered, dtype=np.int64)


def _groups_up_to(size: int, order: Indexes, counts: Indexes, most: int) -> list[int]:
    """The groups that are taken in this order until they hold `size` images, without those that lead over `most`."""
    # Of two groups or more, the smallest holds at most half: one is always taken, and never all are.
    chosen, held = [], 0
    for group in order.tolist():
        count = int(counts[group])
        if held < size and held + count <= most:
            chosen.append(group)
            held += count
    return chosen


def _finite(values: npt.ArrayLike, name: str) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be numbers, got {type(values).__name__}") from None
    if not np.isfinite(array).all():
        raise InvalidInput(
            f"{name} must be finite, got {int((~np.isfinite(array)).sum())} that are not; look for failures"
        )
    return array


def _fraction(value: Any, name: str) -> float:
    """The value as a float strictly between 0 and 1."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not 0 < number < 1:
        raise InvalidInput(f"{name} must lie between 0 and 1, got {value!r}; 0.01 is one in a hundred")
    return number


def _percent(rate: float) -> str:
    return f"{100 * rate:.2g} %" if rate < 0.1 else f"{100 * rate:.0f} %"


def _rounded_up(rate: float) -> str:
    """The rate in three digits, never below it: a rate that is offered must be one that works."""
    digits = 2 - math.floor(math.log10(rate))
    return f"{math.ceil(rate * 10**digits * (1 - _ROUNDING)) / 10**digits:g}"
