import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import psi
from scipy.stats import dirichlet

import references
from askew.errors import InvalidInput
from askew.geometry import fit_dirichlet, fit_dirichlet_moments
from askew.geometry.dirichlet import MAX_CONCENTRATION, inverse_digamma
from goldens import golden

SATURATED = [0.0, -1e-12, -1e4, -1e300, -np.inf]


def log_softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@st.composite
def answers(draw):
    """[n, k] log-probabilities, flat to saturated, their rows equal, alike or apart, some entries far out."""
    k, n = draw(st.integers(2, 128)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 30.0, 1e4]))
    spread = draw(st.sampled_from([0.0, 1e-12, 1e-3, 1.0]))
    rows = log_softmax(scale * (rng.normal(size=k) + spread * rng.normal(size=(n, k))))
    for _ in range(draw(st.integers(0, 3))):
        rows[draw(st.integers(0, n - 1)), draw(st.integers(0, k - 1))] = draw(st.sampled_from(SATURATED))
    return rows


@given(answers())
@settings(max_examples=50, deadline=None)
def test_alphas_are_finite_and_positive_whatever_the_answers(rows):
    alphas = fit_dirichlet(rows)
    assert alphas.shape == rows.shape[1:]
    assert alphas.dtype == np.float64
    assert np.isfinite(alphas).all()
    assert (alphas > 0).all()


@pytest.mark.parametrize("k", [2, 3, 72, 128])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_answers_that_all_agree_give_finite_alphas_in_their_proportions(k, n):
    row = log_softmax(np.random.default_rng(k).normal(size=k))
    alphas = fit_dirichlet(np.tile(row, (n, 1)))
    assert (alphas <= MAX_CONCENTRATION).all()
    np.testing.assert_allclose(alphas / alphas.sum(), np.exp(row), rtol=1e-4)


@pytest.mark.parametrize("value", [-1e4, -np.inf])
@pytest.mark.parametrize("n", [1, 5])
def test_saturated_answers_give_finite_alphas(value, n):
    for k in (2, 4, 72):
        rows = np.full((n, k), value)
        rows[:, 0] = 0.0
        assert np.isfinite(fit_dirichlet(rows)).all()
        rows[0] = rows[0, ::-1]
        assert np.isfinite(fit_dirichlet(rows)).all()


@given(answers(), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_stacked_fits_equal_fits_one_by_one(rows, count, seed):
    rng = np.random.default_rng(seed)
    stack = np.stack([rows, *(log_softmax(3 * rng.normal(size=rows.shape)) for _ in range(count))])
    together = fit_dirichlet(stack)
    for one, alphas in zip(stack, together, strict=True):
        np.testing.assert_allclose(fit_dirichlet(one), alphas, rtol=1e-9)


@pytest.mark.parametrize("k", [2, 4, 10, 40])
@pytest.mark.parametrize("concentration", [0.3, 2.0, 50.0])
def test_known_alphas_are_recovered_from_their_samples(k, concentration):
    rng = np.random.default_rng([k, int(10 * concentration)])
    alphas = concentration * rng.uniform(0.5, 2.0, size=k)
    samples = np.maximum(dirichlet.rvs(alphas, size=20_000, random_state=rng), 1e-300)
    np.testing.assert_allclose(fit_dirichlet(np.log(samples)), alphas, rtol=0.06)


@given(st.integers(2, 60), st.integers(20, 60), st.floats(0.5, 5.0), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_fit_is_where_the_likelihood_is_flat(k, n, scale, seed):
    rows = log_softmax(scale * np.random.default_rng(seed).normal(size=(n, k)))
    np.testing.assert_allclose(references.likelihood_slope(fit_dirichlet(rows), rows), 0, atol=1e-5)


def test_no_nearby_alphas_are_more_likely():
    rng = np.random.default_rng(0)
    samples = dirichlet.rvs([0.5, 2.0, 4.0], size=500, random_state=rng)
    best = fit_dirichlet(np.log(samples))
    likelihood = dirichlet.logpdf(samples.T, best).sum()
    for _ in range(50):
        assert dirichlet.logpdf(samples.T, best * rng.uniform(0.9, 1.1, size=3)).sum() <= likelihood


@pytest.mark.parametrize(
    ("folder", "case"), [("part", "k4"), ("full", "k4"), ("full", "k72_soft"), ("full", "k72_sharp")]
)
def test_alphas_equal_the_authors_program(folder, case):
    arrays = golden(folder, "dirichlet.npz")
    alphas = fit_dirichlet(np.log(arrays[f"{case}_train_probabilities"]))
    np.testing.assert_allclose(alphas, arrays[f"{case}_alpha"], rtol=1e-6)


@pytest.mark.parametrize("case", ["k72_soft", "k72_sharp"])
def test_alphas_from_the_two_means_equal_the_authors_program(case):
    arrays = golden("part", "dirichlet.npz")
    alphas = fit_dirichlet_moments(arrays[f"{case}_train_mean"], arrays[f"{case}_train_mean_log"])
    np.testing.assert_allclose(alphas, arrays[f"{case}_alpha"], rtol=1e-6)


def test_inverse_digamma_is_finite_where_minkas_start_would_divide_by_zero():
    at_one = psi(np.array([1.0]))
    assert inverse_digamma(at_one) == pytest.approx(1.0, abs=1e-12)
    around = at_one + np.array([-1e-12, -1e-15, 0.0, 1e-15, 1e-12])
    np.testing.assert_allclose(inverse_digamma(around), 1.0, atol=1e-10)
    np.testing.assert_allclose(psi(inverse_digamma(np.array([-2.22, -2.2200001]))), [-2.22, -2.2200001], rtol=1e-12)


@given(st.lists(st.floats(-6, 12), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_inverse_digamma_undoes_digamma_from_a_millionth_to_a_trillion(exponents):
    x = 10.0 ** np.array(exponents)
    np.testing.assert_allclose(inverse_digamma(psi(x)), x, rtol=1e-6)


def test_the_input_stays_as_it_was_and_torch_comes_back_as_torch():
    rows = log_softmax(np.random.default_rng(0).normal(size=(2, 9, 5)))
    rows[0, 0, 0] = -np.inf
    before = rows.copy()
    alphas = fit_dirichlet(rows)
    np.testing.assert_array_equal(rows, before)
    on_torch = fit_dirichlet(torch.from_numpy(rows))
    assert on_torch.dtype == torch.float64
    np.testing.assert_array_equal(on_torch.numpy(), alphas)
    for dtype in (torch.float32, torch.bfloat16):
        assert fit_dirichlet(torch.from_numpy(rows).to(dtype)).isfinite().all()


@pytest.mark.parametrize("rows", [np.zeros(4), np.zeros((0, 4)), np.zeros((3, 1)), np.zeros((1, 1, 2, 2))])
def test_answers_of_another_shape_are_refused(rows):
    with pytest.raises(InvalidInput, match=r"must be \[n, k\] or \[t, n, k\]"):
        fit_dirichlet(rows)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_answers_that_are_no_log_probabilities_are_refused(value):
    with pytest.raises(InvalidInput, match="NaN or plus infinity"):
        fit_dirichlet(np.array([[value, 0.0]]))


@pytest.mark.parametrize("rows", [np.full((3, 4), 1000.0), np.full((3, 4), 0.25), np.array([[0.0, 0.01]])])
def test_logits_and_probabilities_are_not_taken_for_their_logarithms(rows):
    with pytest.raises(InvalidInput, match=r"are 0 or less, got .* take log_softmax"):
        fit_dirichlet(rows)
    with pytest.raises(InvalidInput, match="are 0 or less"):
        fit_dirichlet_moments(np.full(rows.shape[1], 0.25), rows.mean(axis=0))


@pytest.mark.parametrize(
    ("mean", "mean_log", "words"),
    [
        ([1.0], [0.0], r"k >= 2, got \(1,\) and \(1,\)"),
        (1.0, 0.0, r"k >= 2, got \(\)"),
        ([0.5, 0.5], [-1.0, -1.0, -1.0], "k >= 2"),
        ([0.5, np.nan], [-1.0, -1.0], "between 0 and 1"),
        ([0.5, 7.0], [-1.0, -1.0], "between 0 and 1"),
        ([-0.5, 0.5], [-1.0, -1.0], "between 0 and 1"),
        ([0.5, 0.5], [-1.0, np.nan], "NaN"),
    ],
)
def test_means_of_no_answers_are_refused(mean, mean_log, words):
    with pytest.raises(InvalidInput, match=words):
        fit_dirichlet_moments(np.array(mean), np.array(mean_log))


def test_lists_of_numbers_are_arrays():
    rows = log_softmax(np.random.default_rng(0).normal(size=(9, 5)))
    np.testing.assert_array_equal(fit_dirichlet(rows.tolist()), fit_dirichlet(rows))
