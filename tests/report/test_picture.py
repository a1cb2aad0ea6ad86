import io
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from askew.errors import InvalidInput, NoImages
from askew.report.axis import Bins, number, round_ticks, tick_words
from askew.report.picture import NORMAL, OTHER, UNKNOWN, Example, verdict_picture

GREY = np.tile(np.arange(28, dtype=np.uint8) * 9, (28, 1))
COLOUR = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
SCORES = np.concatenate([np.linspace(-2, 2, 50), np.linspace(1, 9, 30)])
TRUTH = np.arange(80) < 50


def opened(png):
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        return np.asarray(image)


def count(pixels, colour):
    return int((pixels == np.array(colour, np.uint8)).all(axis=2).sum())


def examples(n=8, **known):
    return [Example(GREY, float(score), f"sneaker/{score:04}.png", **known) for score in range(n)]


def test_the_picture_is_a_png_twice_as_large_as_laid_out_and_always_the_same():
    arguments = ("Sneakers", examples(is_normal=True), examples(is_normal=False), SCORES)
    options = {"is_normal": TRUTH, "threshold": 1.9, "false_alarm_rate": 0.01, "subtitle": "80 images"}
    png = verdict_picture(*arguments, **options)
    pixels = opened(png)
    assert pixels.shape[1] == 1920
    assert 1400 < pixels.shape[0] < 2000
    assert len(png) < 500_000
    assert png == verdict_picture(*arguments, **options)


def test_truth_is_shown_in_two_colours_and_its_absence_in_a_third():
    known = opened(verdict_picture("", examples(is_normal=True), examples(is_normal=False), SCORES, is_normal=TRUTH))
    unknown = opened(verdict_picture("", examples(), examples(), SCORES))
    assert count(known, NORMAL) > 5000
    assert count(known, OTHER) > 5000
    assert not count(known, UNKNOWN)
    assert count(unknown, UNKNOWN)
    assert not count(unknown, NORMAL)
    assert not count(unknown, OTHER)


def test_a_misjudged_image_wears_the_colour_of_the_truth():
    right = opened(verdict_picture("", [], examples(is_normal=False), SCORES))
    wrong = opened(verdict_picture("", [], examples(is_normal=True), SCORES))
    assert count(right, OTHER) > count(right, NORMAL)
    assert count(wrong, NORMAL) > count(wrong, OTHER)


def test_thumbnails_keep_their_colours_and_shape():
    red = np.zeros((10, 40, 3), np.uint8)
    red[:, :, 0] = 201
    one = opened(verdict_picture("", [Example(red, 0.0)], [], SCORES))
    rows, columns = np.nonzero((one == (201, 0, 0)).all(axis=2))
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (46, 184)
    grey = opened(verdict_picture("", [Example(np.full((9, 9, 1), 77, np.uint8), 0.0)], [], SCORES))
    assert count(grey, (77, 77, 77)) == 184 * 184


@pytest.mark.parametrize("scores", [[0.0], [5.0] * 10, [1e-12, 2e-12], [-1e300, 0.0, 1e300], [123456.789, 123456.790]])
@pytest.mark.parametrize("threshold", [None, 0.0, 5.0, -1e6, 1e300])
@pytest.mark.parametrize("known", [False, True])
def test_any_scores_and_any_threshold_can_be_drawn(scores, threshold, known):
    truth = [True] * len(scores) if known else None
    shown = [Example(COLOUR, score) for score in scores]
    pixels = opened(verdict_picture("t", shown, shown, scores, is_normal=truth, threshold=threshold))
    assert pixels.shape[1] == 1920


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30), st.data())
@settings(max_examples=25, deadline=None)
def test_any_finite_numbers_can_be_drawn(scores, data):
    threshold = data.draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
    truth = data.draw(st.none() | st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    assert opened(verdict_picture("", [], [], scores, is_normal=truth, threshold=threshold)).shape[1] == 1920


def test_a_hundred_thousand_scores_are_drawn_at_once():
    scores = np.random.default_rng(0).standard_cauchy(100_000)
    began = time.monotonic()
    verdict_picture("", examples(), examples(), scores, is_normal=scores < 3, threshold=3.0)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("words", ["x" * 5000, "Übergrößenträger\n\t\u202e\x1b[31m", "运动鞋", "", " "])
def test_names_of_any_length_and_script_leave_the_layout_as_it_is(words):
    usual = opened(verdict_picture("", [Example(GREY, 0.0, "a")], [], SCORES, subtitle="a"))
    shown = [Example(GREY, 0.0, words, is_normal=True)]
    pixels = opened(
        verdict_picture(words, shown, [], SCORES, subtitle=words or "a", is_normal=TRUTH, groups=(words, words))
    )
    assert pixels.shape == usual.shape
    assert (pixels[:, -60:] == 255).all()


def test_more_examples_than_fit_are_left_out():
    eight = verdict_picture("", examples(8), examples(8), SCORES)
    assert verdict_picture("", examples(50), examples(50), SCORES) == eight


def test_a_row_without_examples_is_left_out():
    both = opened(verdict_picture("", examples(), examples(), SCORES))
    one = opened(verdict_picture("", examples(), [], SCORES))
    none = opened(verdict_picture("", [], [], SCORES))
    assert both.shape[0] > one.shape[0] > none.shape[0]


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8)],
)
def test_pictures_of_another_kind_are_refused(pixels):
    with pytest.raises(InvalidInput, match="a picture to show is uint8"):
        verdict_picture("", [Example(pixels, 0.0)], [], [0.0])


def test_what_cannot_be_drawn_is_refused_in_clear_words():
    with pytest.raises(NoImages, match="no anomaly score"):
        verdict_picture("", [], [], [])
    for scores in ([np.nan], [np.inf], [[1.0]]):
        with pytest.raises(InvalidInput, match="finite anomaly scores"):
            verdict_picture("", [], [], scores)
    with pytest.raises(InvalidInput, match="truth of every score"):
        verdict_picture("", [], [], [1.0, 2.0], is_normal=[True])
    with pytest.raises(InvalidInput, match="threshold to draw must be finite"):
        verdict_picture("", [], [], [1.0], threshold=np.inf)


finite = st.floats(-1e9, 1e9)


@given(st.lists(st.lists(finite, min_size=1, max_size=40), min_size=1, max_size=2), st.none() | finite)
@settings(max_examples=100, deadline=None)
def test_every_score_is_in_one_bin_and_no_bin_straddles_the_threshold(groups, threshold):
    groups = [np.array(group) for group in groups]
    bins = Bins(groups, threshold)
    assert bins.shares.shape == (len(groups), bins.count)
    np.testing.assert_allclose(bins.shares.sum(axis=1), 1)
    assert bins.low < bins.high
    assert bins.count <= 66
    if threshold is not None:
        place = (threshold - bins.low) / bins.width
        assert -1e-6 <= place <= bins.count + 1e-6
        assert abs(place - round(place)) < 1e-6


def test_one_far_score_does_not_squeeze_the_others_into_one_bar():
    bins = Bins([np.append(np.linspace(0, 1, 500), 1e6)], threshold=0.9)
    assert bins.beyond == (0, 1)
    assert bins.high < 2
    assert (bins.shares > 0).sum() > 20


def test_ticks_are_round_numbers_within_the_axis():
    assert round_ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert tick_words(round_ticks(-0.31, 0.32, 8)) == ["-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3"]
    assert tick_words(round_ticks(900, 4100, 8)) == ["1,000", "1,500", "2,000", "2,500", "3,000", "3,500", "4,000"]
    assert tick_words([1e7, 2e7]) == ["1e+07", "2e+07"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (12.345, "12.3"),
        (-53, "-53.0"),
        (1.5, "1.50"),
        (0.1234, "0.123"),
        (12345.6, "12,346"),
        (2e-7, "2.00e-07"),
    ],
)
def test_numbers_have_the_digits_that_matter(value, words):
    assert number(value) == words
