"""Mixtures against scipy's densities and against sums written out; matrices that no Cholesky likes."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import references
from askew.detectors.gaussian_mixture import CappedMixture, Mixture, cholesky
from askew.errors import BadFile, Diverged

DRAW = np.random.default_rng(0)
POINTS = DRAW.normal(size=(40, 7)) @ DRAW.normal(size=(7, 7)) + 3
ANSWERS = DRAW.dirichlet([1, 1, 1], size=40)
NEAR_AND_FAR = np.concatenate([POINTS, 30 * POINTS])


def mixture(kind=Mixture, points=POINTS, answers=ANSWERS):
    return kind.of(torch.from_numpy(points), torch.from_numpy(answers))


def numbers(found):
    return [array.double().numpy() for array in (found.shares, found.means, found.covariances)]


@pytest.mark.parametrize(("kind", "tolerance"), [(Mixture, 1e-12), (CappedMixture, 1e-4)])
def test_a_mixture_is_what_the_answers_say_point_by_point(kind, tolerance):
    for array, slow in zip(numbers(mixture(kind)), references.mixture_of(POINTS, ANSWERS), strict=True):
        np.testing.assert_allclose(array, slow, rtol=tolerance, atol=tolerance)


def test_the_energy_is_scipys_mixture_of_normals():
    found = mixture()
    shares, means, covariances = numbers(found)
    logs = [multivariate_normal(*pair).logpdf(NEAR_AND_FAR) for pair in zip(means, covariances, strict=True)]
    expected = -logsumexp(np.transpose(logs), b=shares, axis=1)
    assert expected.max() > 700  # where a density is 0 in float64
    np.testing.assert_allclose(found.energy(torch.from_numpy(NEAR_AND_FAR)), expected, rtol=1e-8)


def test_the_programs_energy_is_its_formula_and_ties_at_its_cap():
    found = mixture(CappedMixture)
    energies = found.energy(torch.from_numpy(NEAR_AND_FAR)).numpy()
    expected = [references.capped_energy(point, *numbers(found)) for point in NEAR_AND_FAR]
    np.testing.assert_allclose(energies, expected, rtol=1e-4)
    assert found.cap == pytest.approx(15.0195, abs=1e-4)
    assert np.ptp(energies[40:]) == 0
    assert energies[40] == pytest.approx(found.cap, rel=1e-6)


def test_a_component_that_no_answer_names_leaves_finite_energies_and_gradients():
    features = torch.from_numpy(POINTS).requires_grad_()
    answers = torch.from_numpy(np.column_stack([ANSWERS[:, 0], 1 - ANSWERS[:, 0], np.zeros(40)])).requires_grad_()
    found = Mixture.of(features, answers).widened(torch.full((3, 7), 1e-3))
    found.energy(features).mean().backward()
    assert found.alive.tolist() == [True, True, False]
    assert found.energy(features).isfinite().all()
    assert features.grad.isfinite().all()
    assert answers.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("rank", range(8))
def test_a_cholesky_factor_is_found_of_every_covariance(scale, rank):
    directions = np.random.default_rng(rank).normal(size=(3, rank, 7))
    covariances = scale * torch.from_numpy(directions.transpose(0, 2, 1) @ directions)
    factors = cholesky(covariances)
    assert factors.isfinite().all()
    assert (factors.diagonal(dim1=1, dim2=2) > 0).all()
    torch.testing.assert_close(factors @ factors.mT, covariances, rtol=1e-9, atol=1e-9 * scale)


def test_rounding_that_makes_a_covariance_indefinite_costs_it_alone_a_little_more():
    odd = torch.diag(torch.tensor([1.0, -1e-9], dtype=torch.float64))
    even = torch.eye(2, dtype=torch.float64)
    factors = cholesky(torch.stack([odd, even]))
    torch.testing.assert_close(factors[0] @ factors[0].mT, odd, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(factors[1], even, rtol=1e-11, atol=0)


@pytest.mark.parametrize("matrix", [-np.eye(7), np.full((7, 7), np.nan)])
def test_what_is_no_covariance_is_an_error_in_one_line(matrix):
    with pytest.raises(Diverged, match="covariances"):
        cholesky(torch.from_numpy(np.stack([matrix])))


def test_a_singular_covariance_is_told_from_one_of_too_few_images():
    told = np.concatenate([POINTS[:, :6], POINTS[:, :1] + POINTS[:, 1:2]], axis=1)
    steady = np.concatenate([POINTS[:, :6], np.ones((40, 1))], axis=1)
    single = np.ones((40, 1))
    for kind in (Mixture, CappedMixture):
        assert not mixture(kind, POINTS, single).is_singular(40)
        assert mixture(kind, steady, single).is_singular(40)
        assert mixture(kind, told, single).is_singular(40)
        assert not mixture(kind, POINTS[:5], single[:5]).is_singular(5)


@pytest.mark.parametrize("kind", [Mixture, CappedMixture])
def test_a_mixture_goes_through_arrays_and_odd_ones_are_refused(kind):
    found = mixture(kind)
    arrays = found.tensors()

    def restored(**changes):
        changed = {f"mixture/{name}": array for name, array in changes.items()}
        return kind.restored({**arrays, **changed}, components=3, features=7)

    for array, other in zip(numbers(restored()), numbers(found), strict=True):
        np.testing.assert_array_equal(array, other)
    odd = {
        "shares": [np.zeros(3), np.array([1.0, 1.0, -1.0]), np.ones(4), np.ones(3, np.float32)],
        "means": [np.full((3, 7), np.inf), np.zeros((3, 6))],
        "covariances": [np.full((3, 7, 7), np.nan), np.zeros((3, 7, 6)), np.zeros((7, 7))],
    }
    for name, values in odd.items():
        for value in values:
            with pytest.raises(BadFile, match="mixture"):
                restored(**{name: value})
