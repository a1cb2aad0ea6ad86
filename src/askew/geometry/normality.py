"""How normal an image is, given a classifier's answers to its views. Higher is more normal."""

import numpy as np

from askew.errors import InvalidInput
from askew.geometry.dirichlet import Array, as_float64, as_logs, like


def dirichlet_normality(log_probabilities: Array, alphas: Array) -> Array:
    """[n, t, k] answers under Dirichlets [t, k] to normality [n]: the paper's n_S, section 4.2, as a mean over t."""
    answers, concentrations = as_logs(log_probabilities), as_float64(alphas)
    if answers.ndim != 3 or answers.shape[1:] != concentrations.shape:
        raise InvalidInput(
            f"answers [n, t, k] and alphas [t, k] must agree, got {answers.shape} and {concentrations.shape}"
        )
    if not (np.isfinite(concentrations) & (concentrations > 0)).all():
        raise InvalidInput("alphas must be positive and finite; fit them with fit_dirichlet")
    # Paper: its formula sums over t, its program takes the mean; the order of images is the same.
    normality = np.einsum("ntk,tk->n", answers, concentrations - 1.0) / answers.shape[1]
    return like(normality, log_probabilities)


def simplified_normality(log_probabilities: Array) -> Array:
    """[n, t, t] to [n]: the mean probability given to the transform that was applied. Section 4.2, last paragraph."""
    answers = as_logs(log_probabilities)
    if answers.ndim != 3 or answers.shape[1] != answers.shape[2]:
        raise InvalidInput(f"the simplified score needs one answer per transform, [n, t, t], got {answers.shape}")
    return like(np.exp(np.einsum("ntt->nt", answers)).mean(axis=1), log_probabilities)
