"""A mixture of Gaussians and the energy of a point under it: minus the logarithm of its density."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.errors import BadFile, Diverged

ALIVE = 0.01  # the share that a component has at least, unless it is dead
SINGULAR = 1e-6  # the least eigenvalue of correlations that are more than rounding in single precision
LEAST = 1e-30  # what stands in for a weight or a variance of 0 where it divides
PREFIX = "mixture/"


@dataclass(frozen=True)
class Mixture:
    """Gaussians on the CPU: shares [k], means [k, d], covariances [k, d, d]."""

    shares: Tensor
    means: Tensor
    covariances: Tensor

    dtype: ClassVar[torch.dtype] = torch.float64

    @classmethod
    def of(cls, features: Tensor, answers: Tensor) -> Self:
        """The mixture of features [n, d], of which answers [n, k] say how much is each component's."""
        features, answers = features.cpu().to(cls.dtype), answers.cpu().to(cls.dtype)
        weights = answers.sum(0).clamp_min(LEAST)
        means = answers.T @ features / weights[:, None]
        apart = features - means[:, None]
        covariances = (answers.T[:, :, None] * apart).mT @ apart / weights[:, None, None]
        return cls(weights / len(features), means, covariances)

    def widened(self, variances: Tensor) -> Self:
        """The same with variances [k, d] added."""
        return replace(self, covariances=self.covariances + torch.diag_embed(variances.to(self.dtype)))

    def precisions(self) -> Tensor:
        """[k, d]: one over each variance."""
        return self.covariances.diagonal(dim1=1, dim2=2).reciprocal()

    def energy(self, features: Tensor) -> Tensor:
        """[n]: minus the logarithm of the density at features [n, d]."""
        factors = cholesky(self.covariances)
        apart = (features.cpu().to(self.dtype) - self.means[:, None]).mT
        distances = torch.linalg.solve_triangular(factors, apart, upper=False).square().sum(1)
        roots = factors.diagonal(dim1=1, dim2=2).log().sum(1) + apart.shape[1] / 2 * math.log(2 * math.pi)
        energy: Tensor = -(self.shares.log()[:, None] - distances / 2 - roots[:, None]).logsumexp(0)
        return energy

    @property
    def alive(self) -> Tensor:
        """[k]: which components count."""
        return self.shares >= ALIVE

    def is_singular(self, images: int) -> bool:
        """Whether a component of a mixture of that many images has lost a dimension, and not for want of images."""
        many = self.shares * images > 2 * self.means.shape[1]
        return any(_is_singular(covariance) for covariance in self.covariances[self.alive & many].double())

    def tensors(self) -> dict[str, NDArray[np.float64]]:
        """The arrays that it is kept as."""
        return {f"{PREFIX}{name}": getattr(self, name).double().numpy() for name in ("shares", "means", "covariances")}

    @classmethod
    def restored(cls, tensors: dict[str, NDArray[np.float64]], *, components: int, features: int) -> Self:
        """What `tensors` gave, from a file that may be hostile."""
        shares, means, covariances = (tensors[f"{PREFIX}{name}"] for name in ("shares", "means", "covariances"))
        shapes = [(components,), (components, features), (components, features, features)]
        arrays = (shares, means, covariances)
        if any(a.shape != shape or a.dtype != np.float64 for a, shape in zip(arrays, shapes, strict=True)):
            raise BadFile("its mixture does not fit its network")
        if not all(np.isfinite(array).all() for array in arrays):
            raise BadFile("its mixture is not finite")
        if (shares < 0).any() or not shares.any():
            raise BadFile("its mixture has no shares")
        mixture = cls(*(torch.from_numpy(array).to(cls.dtype) for array in arrays))
        mixture.energy(mixture.means)  # raises where no energy can be computed
        return mixture


class CappedMixture(Mixture):
    """A mixture and its energy as the authors' program has them: in single precision, and never above the cap."""

    dtype: ClassVar[torch.dtype] = torch.float32
    epsilon: ClassVar[float] = 1e-7  # Keras's

    def energy(self, features: Tensor) -> Tensor:
        """[n]: at features [n, d]; not always finite."""
        apart = features.cpu().to(self.dtype) - self.means[:, None]
        distances = (apart @ torch.linalg.inv_ex(self.covariances).inverse * apart).sum(2)
        # Paper: epsilon stands inside the root and is added to each component: points far from all of them tie.
        roots = (torch.linalg.det(2 * math.pi * self.covariances) + self.epsilon).sqrt()
        densities = self.shares[:, None] * (-distances / 2).exp() / roots[:, None] + self.epsilon
        energy: Tensor = -densities.sum(0).log()
        return energy

    @property
    def cap(self) -> float:
        """What no energy is above: 15.02 for three components."""
        return -math.log(len(self.shares) * self.epsilon)


def cholesky(covariances: Tensor) -> Tensor:
    """[k, d, d]: the factors, each of its covariance and as little on its diagonal as makes it definite."""
    scale = covariances.detach().diagonal(dim1=1, dim2=2).mean(1).clamp_min(LEAST)
    jitter = 1e-12 * scale
    identity = torch.eye(covariances.shape[1], dtype=covariances.dtype)
    # But for rounding a covariance is never indefinite, so that the first try or the next ones do.
    for _ in range(13):
        factors: Tensor
        factors, failed = torch.linalg.cholesky_ex(covariances + jitter[:, None, None] * identity)
        if not failed.any():
            return factors
        jitter = torch.where(failed > 0, 10 * jitter, jitter)
    raise Diverged(
        "the covariances of the mixture are not finite, or none at all; fit it again with a lower learning rate"
    )


def _is_singular(covariance: Tensor) -> bool:
    deviations = covariance.diagonal().sqrt()
    if not (deviations > 0).all():  # nor where one is not a number
        return True
    return bool(torch.linalg.eigvalsh(covariance / deviations / deviations[:, None])[0] < SINGULAR)
