import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from askew.errors import InvalidInput, NoImages, UnreachableRate
from askew.threshold import (
    Threshold,
    benjamini_hochberg,
    calibrate,
    check_rate,
    fdr_obstacle,
    folds,
    holdout_size,
    normals_needed,
    smallest_rate,
    split_holdout,
)

rates = st.decimals("0.0005", "0.9995", places=4).map(float)
quick = settings(max_examples=100, deadline=None)


def rank(n, rate):
    """k in exact arithmetic on the decimal number that a person wrote."""
    return math.ceil((n + 1) * (1 - Fraction(str(rate))))


# The rank and the rates that can be reached


@given(st.integers(1, 5000), rates)
@quick
def test_the_rank_is_the_one_of_exact_arithmetic(n, rate):
    k = rank(n, rate)
    if k > n:
        with pytest.raises(UnreachableRate, match=f"needs {normals_needed(rate):,} held-out"):
            calibrate(np.arange(float(n)), rate)
    else:
        threshold = calibrate(np.arange(float(n)), rate)
        assert (threshold.k, threshold.value) == (k, k - 1.0)
        assert threshold.expected_rate <= rate * (1 + 1e-12)


@pytest.mark.parametrize(
    ("n", "rate", "k"),
    [
        (99, 0.01, 99),
        (100, 0.01, 100),
        (199, 0.01, 198),
        (19, 0.05, 19),
        (9, 0.1, 9),
        (1, 0.5, 1),
        (99, 0.07, 93),
        (99, 0.29, 71),
        (2, 1 / 3, 2),
        (999_999, 0.01, 990_000),
        (3, 1 - 1e-15, 1),
    ],
)
def test_ranks_on_the_boundary_do_not_hang_on_rounding(n, rate, k):
    assert calibrate(np.arange(float(n)), rate).k == k


@pytest.mark.parametrize(("rate", "n"), [(0.01, 99), (0.05, 19), (0.001, 999), (0.03, 33), (1 / 3, 2), (0.9, 1)])
def test_normals_needed_is_the_fewest_that_support_the_rate(rate, n):
    assert normals_needed(rate) == n
    assert check_rate(rate, n) == rate
    with pytest.raises(UnreachableRate):
        check_rate(rate, n - 1)


@given(st.integers(1, 10**6))
@quick
def test_the_smallest_rate_of_n_images_needs_n_images(n):
    assert normals_needed(smallest_rate(n)) == n
    assert calibrate(np.zeros(min(n, 5000)), smallest_rate(min(n, 5000))).k == min(n, 5000)


def test_even_the_tiniest_rate_gets_an_answer():
    assert normals_needed(5e-324) > 10**300


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, math.nan, math.inf, "1%", "0.1", None, [0.1]])
def test_a_rate_is_a_number_between_0_and_1(rate):
    for asked in (lambda: calibrate([1.0, 2.0], rate), lambda: normals_needed(rate), lambda: holdout_size(10, rate)):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            asked()


def test_auto_is_one_percent_or_the_smallest_rate_the_images_support():
    assert calibrate(np.arange(500.0)).false_alarm_rate == 0.01
    assert calibrate(np.arange(99.0)).false_alarm_rate == 0.01
    assert calibrate(np.arange(98.0)).false_alarm_rate == 1 / 99
    assert calibrate([3.0]).value == 3.0


# The promise: how often a normal image is called an anomaly


@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), rates)
@quick
def test_no_rate_of_false_alarms_above_the_wanted_one_over_exchangeable_draws(scores, rate):
    # Every image in turn is the new one: the share of alarms is the exact probability, ties included.
    scores = np.array(scores, dtype=float)
    n = len(scores) - 1
    if rank(n, rate) > n:
        return
    alarms, p_values = [], []
    for new in range(len(scores)):
        threshold = calibrate(np.delete(scores, new), rate)
        alarms.append(bool(threshold.is_anomaly(scores[new])))
        p_values.append(float(threshold.p_values(scores[new])))
    assert np.mean(alarms) <= rate + 1e-12
    for level in p_values:
        assert np.mean(np.array(p_values) <= level) <= level + 1e-12


def test_the_realised_rate_follows_the_beta_law():
    generator = np.random.default_rng(20180)
    realised = []
    for _ in range(2000):
        threshold = calibrate(generator.uniform(size=150), 0.05)
        realised.append(1 - threshold.value)  # exactly: of uniform scores, this share lies above
    law = stats.beta(threshold.n + 1 - threshold.k, threshold.k)
    assert stats.kstest(realised, law.cdf).pvalue > 0.01
    low, high = threshold.interval()
    assert np.mean((np.array(realised) < low) | (np.array(realised) > high)) == pytest.approx(0.05, abs=0.015)
    assert np.mean(realised) == pytest.approx(threshold.expected_rate, abs=0.002)


@given(st.integers(1, 3000), rates, st.sampled_from([0.5, 0.8, 0.95, 0.999]))
@quick
def test_the_interval_is_scipys_beta(n, rate, confidence):
    if rank(n, rate) > n:
        return
    threshold = calibrate(np.zeros(n), rate)
    law = stats.beta(n + 1 - threshold.k, threshold.k)
    assert threshold.interval(confidence) == pytest.approx(law.interval(confidence), rel=1e-8, abs=1e-13)
    assert threshold.expected_rate == pytest.approx(law.mean())


@given(st.integers(1, 500), rates, st.integers(0, 400), st.sampled_from([0.5, 0.95]))
@quick
def test_the_count_of_alarms_is_scipys_beta_binomial(n, rate, m, confidence):
    if rank(n, rate) > n:
        return
    threshold = calibrate(np.zeros(n), rate)
    low, high = threshold.realised_count_interval(m, confidence)
    law = stats.betabinom(m, n + 1 - threshold.k, threshold.k)
    tail = (1 - confidence) / 2
    # The smallest counts that reach each level; a hair's breadth either way is rounding in the reference.
    assert law.cdf(low) >= tail - 1e-9
    assert law.cdf(low - 1) < tail + 1e-9
    assert law.cdf(high) >= 1 - tail - 1e-9
    assert law.cdf(high - 1) < 1 - tail + 1e-9


def test_intervals_narrow_as_images_are_added_and_hold_for_many():
    widths = []
    for n in (99, 999, 99_999, 999_999):
        threshold = calibrate(np.zeros(n), 0.01)
        low, high = threshold.interval()
        assert low < 0.01 < high
        assert (low, high) == pytest.approx(stats.beta(n + 1 - threshold.k, threshold.k).interval(0.95), rel=1e-7)
        widths.append(high - low)
    assert all(wide > narrow for wide, narrow in pairwise(widths))


# Verdicts and p-values


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.lists(st.integers(-1, 10), max_size=20), rates)
@quick
def test_verdicts_and_p_values_agree_with_counting(held_out, scores, rate):
    if rank(len(held_out), rate) > len(held_out):
        return
    threshold = calibrate(held_out, rate)
    slow = [(1 + sum(one >= score for one in held_out)) / (len(held_out) + 1) for score in scores]
    p_values = threshold.p_values(scores)
    np.testing.assert_array_equal(p_values, slow)
    np.testing.assert_array_equal(threshold.is_anomaly(scores), [s > threshold.value for s in scores])
    np.testing.assert_array_equal(threshold.is_anomaly(scores), p_values <= threshold.expected_rate)


@given(st.lists(st.floats(-1e9, 1e9), min_size=20, max_size=60), st.tuples(rates, rates))
@quick
def test_a_higher_rate_never_raises_the_threshold_and_a_worse_score_never_has_a_higher_p_value(held_out, pair):
    low, high = sorted(max(rate, 0.05) for rate in pair)
    threshold = calibrate(held_out, low)
    assert threshold.at(high).value <= threshold.value
    assert (np.diff(threshold.p_values(np.sort(held_out))) <= 0).all()


def test_all_held_out_scores_equal_means_no_false_alarms():
    threshold = calibrate(np.full(200, 7.0), 0.1)
    assert not threshold.is_anomaly(np.full(50, 7.0)).any()
    assert threshold.is_anomaly([7.5]).all()


def test_scores_keep_their_shape():
    threshold = calibrate(np.arange(50.0))
    for scores in (3.0, [1.0, 2.0], np.zeros((2, 3)), []):
        assert threshold.p_values(scores).shape == threshold.is_anomaly(scores).shape == np.shape(scores)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused_everywhere(bad):
    threshold = calibrate([1.0, 2.0, 3.0])
    for asked in (threshold.p_values, threshold.is_anomaly, calibrate):
        with pytest.raises(InvalidInput, match="must be finite, got 1 "):
            asked([1.0, bad])


def test_no_held_out_images_no_threshold():
    with pytest.raises(NoImages, match="got none"):
        calibrate([])
    with pytest.raises(InvalidInput, match="must be numbers"):
        calibrate("scores")


def test_a_threshold_cannot_be_changed_nor_changes_with_the_array_it_was_made_from():
    scores = np.array([3.0, 1.0, 2.0])
    threshold = Threshold(scores, 0.25)
    scores[:] = 99
    assert threshold.calibration.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="read-only"):
        threshold.calibration[0] = 5
    with pytest.raises(AttributeError):
        threshold.false_alarm_rate = 0.5


def test_the_description_says_what_can_be_trusted():
    threshold = calibrate(np.arange(500.0), 0.01)
    assert threshold.describe() == (
        "false-alarm rate 1 % wanted; from 500 held-out normal images, 0.33 % to 2 % to be expected (95 % interval), "
        "as long as new normal images resemble the held-out ones"
    )
    assert "(approximate 95 % interval)" in calibrate(np.arange(500.0), 0.01, exact=False).describe()
    assert "from 1 held-out normal image, 2.5 %" in calibrate([1.0]).describe()


def test_a_rate_that_nobody_asked_for_is_not_called_wanted():
    assert calibrate(np.arange(60.0)).describe().startswith("false-alarm rate 1.63934 % supported; from 60 ")
    assert calibrate(np.arange(99.0)).describe().startswith("false-alarm rate 1 % wanted; ")
    assert calibrate(np.arange(60.0), 0.05).describe().startswith("false-alarm rate 5 % wanted; ")


# Which images to hold out


@pytest.mark.parametrize(
    ("n", "rate", "size"),
    [
        (1000, "auto", 200),
        (400, "auto", 99),
        (90, "auto", 30),
        (2, "auto", 1),
        (3, "auto", 1),
        (7, "auto", 2),
        (1000, 0.01, 200),
        (198, 0.01, 99),
        (300, 0.01, 99),
        (38, 0.05, 19),
        (2, 0.5, 1),
        (10_000, 0.001, 2000),
    ],
)
def test_a_fifth_is_held_out_or_what_the_rate_needs(n, rate, size):
    assert holdout_size(n, rate) == size


def test_a_rate_out_of_reach_is_refused_before_training_with_what_it_would_take():
    with pytest.raises(UnreachableRate, match=r"0\.01 needs 99 .* give 198 images, or ask for 0\.0102 or above"):
        holdout_size(197, 0.01)
    assert holdout_size(198, 0.01) == 99
    assert holdout_size(197, 0.0102) == 98


@given(st.integers(2, 3000), rates)
@quick
def test_what_the_refusal_offers_works(n, rate):
    try:
        size = holdout_size(n, rate)
    except UnreachableRate as refusal:
        offered = float(str(refusal).split("ask for ")[1].split(" ")[0])
        assert check_rate(offered, holdout_size(n, offered)) == offered
        assert holdout_size(2 * normals_needed(rate), rate) == normals_needed(rate)
    else:
        assert 1 <= size <= n // 2
        check_rate(rate, size)


def test_one_image_or_none_cannot_be_split():
    with pytest.raises(InvalidInput, match="1 sample"):
        holdout_size(1, "auto")
    with pytest.raises(NoImages):
        holdout_size(0, "auto")
    for share in (0, -1, 0.6, math.nan):
        with pytest.raises(InvalidInput, match="share"):
            holdout_size(100, "auto", share)


@given(st.data(), st.integers(0, 2**32))
@quick
def test_a_split_parts_the_images_and_keeps_groups_whole(data, seed):
    groups = data.draw(st.none() | st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=40))
    n = data.draw(st.integers(2, 60)) if groups is None else len(groups)
    size = data.draw(st.integers(1, n - 1))
    if groups is not None and len(set(groups)) == 1:
        with pytest.raises(InvalidInput, match="one group"):
            split_holdout(n, size, np.random.default_rng(seed), groups)
        return
    train, held_out = split_holdout(n, size, np.random.default_rng(seed), groups)
    assert sorted([*train, *held_out]) == list(range(n))
    assert train.size
    assert held_out.size
    assert (np.diff(train) > 0).all()
    assert (np.diff(held_out) > 0).all()
    if groups is None:
        assert held_out.size == size
    else:
        trained = {groups[i] for i in train}
        assert trained.isdisjoint(groups[i] for i in held_out)
        assert held_out.size <= n // 2
        # Fewer than wanted only where each group that is left would take more than half.
        assert held_out.size >= size or all(held_out.size + groups.count(group) > n // 2 for group in trained)
    again = split_holdout(n, size, np.random.default_rng(seed), groups)
    np.testing.assert_array_equal(again[1], held_out)


def test_a_group_of_nearly_all_images_is_never_held_out():
    groups = ["large"] * 90 + [f"small {index}" for index in range(10)]
    for seed in range(50):
        train, held_out = split_holdout(100, 20, np.random.default_rng(seed), groups)
        assert train.tolist() == list(range(90))
        assert held_out.tolist() == list(range(90, 100))


def test_groups_are_held_out_until_there_are_enough_and_never_over_half():
    counts = {"a": 40, "b": 30, "c": 20, "d": 10}
    groups = [group for group, count in counts.items() for _ in range(count)]
    made = set()
    for seed in range(200):
        train, held_out = split_holdout(100, 20, np.random.default_rng(seed), groups)
        chosen = {groups[index] for index in held_out}
        assert chosen.isdisjoint(groups[index] for index in train)
        made.add("".join(sorted(chosen)))
    # One that is enough by itself, or d and the one drawn after it.
    assert made == {"a", "b", "c", "ad", "bd", "cd"}


def test_without_groups_the_split_is_the_one_that_recorded_results_were_made_with():
    for n, size in ((10, 3), (100, 20), (10, 9)):
        drawn = np.random.default_rng(5).permutation(n)[:size]
        assert split_holdout(n, size, np.random.default_rng(5))[1].tolist() == sorted(drawn.tolist())
    # numpy keeps `permutation` of one seed as it is, so these never change.
    assert split_holdout(10, 3, np.random.default_rng(0))[1].tolist() == [2, 4, 6]


def test_images_that_are_all_of_one_group_are_not_split():
    with pytest.raises(InvalidInput, match=r"one group holds 5 of 5 images.*; give groups that differ, or none"):
        split_holdout(5, 1, np.random.default_rng(0), "aaaaa")


def test_every_image_is_held_out_equally_often():
    generator = np.random.default_rng(3)
    counts = np.zeros(10)
    for _ in range(2000):
        counts[split_holdout(10, 3, generator)[1]] += 1
    np.testing.assert_allclose(counts / 2000, 0.3, atol=0.04)


@given(st.data(), st.integers(0, 2**32))
@quick
def test_folds_part_the_images_evenly_and_keep_groups_whole(data, seed):
    groups = data.draw(st.none() | st.lists(st.integers(0, 8), min_size=2, max_size=40))
    n = data.draw(st.integers(2, 60)) if groups is None else len(groups)
    parts = n if groups is None else len(set(groups))
    if parts == 1:
        return
    k = data.draw(st.integers(2, parts))
    made = folds(n, k, np.random.default_rng(seed), groups)
    assert len(made) == k
    assert sorted(np.concatenate(made)) == list(range(n))
    sizes = [fold.size for fold in made]
    assert min(sizes) >= 1
    if groups is None:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert sum(len({groups[i] for i in fold}) for fold in made) == parts


def test_large_groups_do_not_make_folds_uneven():
    for seed in range(10):
        made = folds(12, 2, np.random.default_rng(seed), "aaaaaabcdefg")
        assert [fold.size for fold in made] == [6, 6]


@pytest.mark.parametrize(("n", "k", "groups"), [(5, 1, None), (5, 6, None), (4, 3, "aabb"), (4, 2, "aaaa")])
def test_folds_that_cannot_be_made_are_refused(n, k, groups):
    with pytest.raises(InvalidInput, match="folds"):
        folds(n, k, np.random.default_rng(0), groups)


def test_groups_and_sizes_that_do_not_fit_are_refused():
    generator = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="one group an image, got 2 for 3"):
        split_holdout(3, 1, generator, ["a", "b"])
    for size in (0, 3):
        with pytest.raises(InvalidInput, match="between 1 and 2 of 3"):
            split_holdout(3, size, generator)


# A batch


def slow_benjamini_hochberg(p_values, rate):
    m, largest = len(p_values), None
    for i, p in enumerate(sorted(p_values), start=1):
        if p * m <= i * rate:
            largest = p
    return [largest is not None and p <= largest for p in p_values]


@given(st.integers(1, 60), st.lists(st.integers(1, 61), max_size=40), rates)
@quick
def test_benjamini_hochberg_equals_the_slow_loop_in_exact_arithmetic(n, ranks, rate):
    exact = [Fraction(min(r, n + 1), n + 1) for r in ranks]
    mask = benjamini_hochberg([float(p) for p in exact], rate)
    assert mask.tolist() == slow_benjamini_hochberg(exact, Fraction(str(rate)))


def test_a_p_value_on_the_line_passes_though_floats_put_it_above():
    assert 0.1 * 3 > 0.3
    assert benjamini_hochberg([0.1, 1, 1], 0.3).tolist() == [True, False, False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), rates)
@quick
def test_benjamini_hochberg_equals_scipy(p_values, rate):
    adjusted = stats.false_discovery_control(p_values)
    mask = benjamini_hochberg(p_values, rate)
    clear = np.abs(adjusted - rate) > 1e-8 * rate
    np.testing.assert_array_equal(mask[clear], (adjusted <= rate)[clear])


@pytest.mark.parametrize("p_values", [[-0.1], [1.1], [math.nan], ["a"]])
def test_what_is_no_p_value_is_refused(p_values):
    with pytest.raises(InvalidInput):
        benjamini_hochberg(p_values, 0.1)


@given(st.integers(1, 300), st.integers(1, 100), rates)
@quick
def test_the_obstacle_is_the_number_of_anomalies_it_takes(n, m, rate):
    p = 1 / (n + 1)

    def flagged(anomalies):
        return benjamini_hochberg([p] * anomalies + [1.0] * (m - anomalies), rate)[:anomalies].any()

    fewest = next((i for i in range(1, m + 1) if flagged(i)), None)
    word = fdr_obstacle(n, m, rate)
    if fewest == 1:
        assert word is None
    elif fewest is None:
        assert word.startswith(f"none of {m:,} images")
    else:
        assert word.startswith(f"at least {fewest:,} of {m:,} images")
    if word is not None:
        enough = int(word.split("hold out ")[1].split(" ")[0].replace(",", ""))
        assert fdr_obstacle(enough, m, rate) is None
        assert fdr_obstacle(enough - 1, m, rate) is not None
