"""Maximum-likelihood Dirichlet distributions: how a classifier's answers to one transform spread over normal images.

The start is Wicker et al.'s, the fixed point and the inverse digamma are Minka's, as in the authors' program. Only two
means of the data enter (of the probabilities and of their logarithms), so answers can be summed up batch by batch and
never need to be kept.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from askew.errors import InvalidInput, extra_for

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", NDArray[np.float64], "torch.Tensor")

MAX_STEPS = 1000
TOLERANCE = 1e-9
# A saturated softmax or identical images have no finite maximum: these bounds keep every number finite and are far
# outside what a classifier's answers reach.
LOG_FLOOR = -1e6
LOG_CEILING = 1e-3  # rounding in low precision can lift a certain answer above 0, but not far
MAX_CONCENTRATION = 1e8


def fit_dirichlet(log_probabilities: Array) -> Array:
    """[n, k] to the alphas [k]; [t, n, k] to [t, k], one fit per t. Float64, of the kind given. Section 4.2."""
    values = as_logs(log_probabilities)
    if values.ndim not in (2, 3) or values.shape[-2] < 1 or values.shape[-1] < 2:
        raise InvalidInput(f"log-probabilities must be [n, k] or [t, n, k] with n >= 1 and k >= 2, got {values.shape}")
    alphas = fit_dirichlet_moments(np.exp(values).mean(axis=-2), values.mean(axis=-2))
    return like(alphas, log_probabilities)


def fit_dirichlet_moments(mean: NDArray[np.float64], mean_log: NDArray[np.float64]) -> NDArray[np.float64]:
    """[..., k] alphas from the mean probabilities [..., k] and the mean log-probabilities [..., k]; k >= 2."""
    if mean.shape != mean_log.shape or not mean.ndim or mean.shape[-1] < 2:
        raise InvalidInput(f"both means must be [..., k] with k >= 2, got {mean.shape} and {mean_log.shape}")
    if not ((mean >= 0) & (mean <= np.exp(LOG_CEILING))).all():
        raise InvalidInput("mean probabilities must lie between 0 and 1; take the softmax of finite logits")
    mean_log = as_logs(mean_log)
    with extra_for("Dirichlet fits"):
        from scipy.special import psi
    alphas = np.atleast_2d(_wicker_start(mean, mean_log))
    target = np.atleast_2d(mean_log).reshape(-1, mean.shape[-1])
    alphas = alphas.reshape(target.shape)
    moving = np.arange(len(alphas))
    for _ in range(MAX_STEPS):
        before = alphas[moving]
        after = inverse_digamma(psi(before.sum(axis=1, keepdims=True)) + target[moving])
        after = np.minimum(after, MAX_CONCENTRATION)
        alphas[moving] = after
        moving = moving[np.linalg.norm(after - before, axis=1) >= TOLERANCE]
        if not len(moving):
            break
    return alphas.reshape(mean.shape)


def _wicker_start(mean: NDArray[np.float64], mean_log: NDArray[np.float64]) -> NDArray[np.float64]:
    """Alphas to start from: the mean answer times a concentration from the first-order likelihood."""
    tiny = np.finfo(np.float64).tiny
    f = np.maximum(mean, tiny)
    spread = (f * np.log(f)).sum(axis=-1) - (f * mean_log).sum(axis=-1)
    # The spread is 0 where all answers agree, and rounding can push it below.
    scale = (f.shape[-1] - 1) * np.euler_gamma
    concentration = (scale / np.maximum(spread, scale / MAX_CONCENTRATION))[..., None]
    start: NDArray[np.float64] = np.maximum(f * concentration, np.finfo(np.float32).tiny)
    return start


def inverse_digamma(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x > 0 with psi(x) = y, by Minka's start and five Newton steps."""
    with extra_for("Dirichlet fits"):
        from scipy.special import polygamma, psi
    # psi(1) lies above -2.22, so the second branch never divides by zero; `where` evaluates both, hence the bound.
    below = np.minimum(y, -2.22)
    x = np.where(y >= -2.22, np.exp(np.minimum(y, 50.0)) + 0.5, -1.0 / (below + np.euler_gamma))
    for _ in range(5):
        x = x - (psi(x) - y) / polygamma(1, x)
    return x


def as_logs(values: Any) -> NDArray[np.float64]:
    """Log-probabilities as float64, minus infinity lifted to a finite floor; anything else not finite is refused."""
    array = as_float64(values)
    if np.isnan(array).any() or (array == np.inf).any():
        raise InvalidInput("log-probabilities hold NaN or plus infinity; take log_softmax of finite logits")
    if (array > LOG_CEILING).any():
        raise InvalidInput(f"log-probabilities are 0 or less, got {array.max():g}; take log_softmax of the logits")
    return np.maximum(array, LOG_FLOOR)


def as_float64(values: Any) -> NDArray[np.float64]:
    """What is numpy, torch or a list of numbers, as numpy's float64."""
    return np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values, dtype=np.float64)


def like(values: NDArray[np.float64], given: Array) -> Array:
    """`values` as torch where `given` is, on its device where that knows float64, and else as numpy."""
    if isinstance(given, np.ndarray | list | tuple):
        return values
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor if given.device.type == "mps" else tensor.to(given.device)
