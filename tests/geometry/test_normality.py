import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import dirichlet

import references
from askew.errors import InvalidInput
from askew.geometry import dirichlet_normality, fit_dirichlet, simplified_normality
from goldens import golden

log_probability = st.one_of(st.floats(-50, 0), st.sampled_from([0.0, -1e4, -1e300, -np.inf]))


def random_answers(n, t, k, seed=0, scale=3.0):
    logits = scale * np.random.default_rng(seed).normal(size=(n, t, k))
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("case", ["k4", "k72_soft", "k72_sharp"])
@pytest.mark.parametrize("folder", ["part", "full"])
def test_scores_equal_the_authors_program(folder, case):
    arrays = golden(folder, "dirichlet.npz")
    answers = np.log(arrays[f"{case}_test_probabilities"])[:, None]
    scores = dirichlet_normality(answers, arrays[f"{case}_alpha"][None])
    np.testing.assert_allclose(scores, arrays[f"{case}_score"], rtol=1e-8)


@given(st.integers(1, 6), st.integers(1, 8), st.integers(2, 9), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_scores_are_those_summed_one_by_one(n, t, k, seed):
    answers = random_answers(n, t, k, seed)
    alphas = np.random.default_rng(seed).uniform(0.01, 100, (t, k))
    np.testing.assert_allclose(dirichlet_normality(answers, alphas), references.normality(answers, alphas), rtol=1e-9)


@given(hnp.arrays(np.float64, st.tuples(*3 * [st.integers(1, 4)]), elements=log_probability), st.data())
@settings(max_examples=100, deadline=None)
def test_scores_are_finite_whatever_the_answers(answers, data):
    alphas = data.draw(hnp.arrays(np.float64, answers.shape[1:], elements=st.floats(1e-6, 1e8)))
    assert np.isfinite(dirichlet_normality(answers, alphas)).all()
    if answers.shape[1] == answers.shape[2]:
        assert np.isfinite(simplified_normality(answers)).all()


@given(hnp.arrays(np.float64, (5, 2, 3), elements=log_probability), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_scores_under_alphas_fitted_on_saturated_answers_are_finite(seen, seed):
    alphas = fit_dirichlet(np.swapaxes(seen, 0, 1))
    assert np.isfinite(dirichlet_normality(random_answers(4, 2, 3, seed), alphas)).all()
    assert np.isfinite(dirichlet_normality(seen, alphas)).all()


def test_a_zero_probability_gives_no_infinite_score_where_the_authors_program_does():
    answers = np.array([[[0.0, -np.inf, -np.inf]], [[-np.inf, 0.0, -np.inf]]])
    scores = dirichlet_normality(answers, np.array([[2.0, 0.5, 0.5]]))
    assert np.isfinite(scores).all()
    assert scores[0] > scores[1]


def test_a_score_is_the_likelihood_up_to_a_constant():
    rng = np.random.default_rng(0)
    alphas = rng.uniform(0.5, 5, (1, 6))
    samples = dirichlet.rvs(alphas[0], size=20, random_state=rng)
    scores = dirichlet_normality(np.log(samples)[:, None], alphas)
    np.testing.assert_allclose(np.ptp(scores - dirichlet.logpdf(samples.T, alphas[0])), 0, atol=1e-9)


@pytest.mark.parametrize("shape", [(33, 72, 72), (7, 36, 4), (5, 1, 2)])
def test_a_score_does_not_depend_on_its_companions(shape):
    answers = random_answers(*shape)
    alphas = np.random.default_rng(1).uniform(0.01, 100, shape[1:])
    together = dirichlet_normality(answers, alphas)
    alone = np.concatenate([dirichlet_normality(answers[i : i + 1], alphas) for i in range(len(answers))])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(dirichlet_normality(answers[::-1], alphas), together[::-1])


def test_the_simplified_score_is_the_mean_probability_of_the_right_answer():
    answers = random_answers(5, 8, 8)
    slow = [np.mean([np.exp(image[t, t]) for t in range(8)]) for image in answers]
    np.testing.assert_allclose(simplified_normality(answers), slow, rtol=1e-12)
    assert simplified_normality(np.where(np.eye(4), 0.0, -np.inf)[None]) == pytest.approx(1.0)


def test_torch_comes_back_as_torch_with_the_same_numbers():
    answers, alphas = random_answers(3, 4, 4), np.full((4, 4), 2.0)
    scores = dirichlet_normality(torch.from_numpy(answers), torch.from_numpy(alphas))
    assert scores.dtype == torch.float64
    np.testing.assert_array_equal(scores.numpy(), dirichlet_normality(answers, alphas))
    np.testing.assert_array_equal(
        simplified_normality(torch.from_numpy(answers)).numpy(), simplified_normality(answers)
    )


def test_shapes_that_do_not_agree_are_refused():
    with pytest.raises(InvalidInput, match=r"must agree, got \(2, 3, 4\) and \(3, 5\)"):
        dirichlet_normality(np.zeros((2, 3, 4)), np.ones((3, 5)))
    with pytest.raises(InvalidInput, match=r"one answer per transform, \[n, t, t\], got \(2, 3, 4\)"):
        simplified_normality(np.zeros((2, 3, 4)))


def test_answers_that_are_not_numbers_are_refused():
    with pytest.raises(InvalidInput, match="NaN"):
        dirichlet_normality(np.full((1, 2, 2), np.nan), np.ones((2, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -1.0])
def test_alphas_that_no_dirichlet_has_are_refused(value):
    with pytest.raises(InvalidInput, match="positive and finite"):
        dirichlet_normality(np.full((1, 2, 2), -1.0), np.array([[1.0, 1.0], [1.0, value]]))


def test_logits_are_not_taken_for_log_probabilities():
    for score in (simplified_normality, lambda answers: dirichlet_normality(answers, np.ones((2, 2)))):
        with pytest.raises(InvalidInput, match="are 0 or less, got 5"):
            score(np.array([[[5.0, -5.0], [0.0, -1.0]]]))


def test_lists_of_numbers_are_arrays():
    answers, alphas = random_answers(3, 4, 4), np.full((4, 4), 2.0)
    scores = dirichlet_normality(answers.tolist(), alphas.tolist())
    np.testing.assert_array_equal(scores, dirichlet_normality(answers, alphas))
