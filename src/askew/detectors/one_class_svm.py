"""One-class support vector machines with Gaussian kernels on rows of whole numbers: a grid for the price of a few.

Rows are whole numbers, so a squared distance is an exact sum in float64 in whatever order it is taken, and an image's
score does not depend on its companions. The distances of all rows are computed once, the kernel once per gamma, and the
machines are fitted on all cores; scikit-learn's solver fits each from its kernel matrix.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from sklearn.svm import OneClassSVM

from askew.detectors.files import Arrays
from askew.detectors.passes import passes
from askew.errors import BadFile

Floats = NDArray[np.float64]
Rows = NDArray[Any]  # [n, d] of some integer type

# A multiple of what a processor takes at once, so that no row is rounded differently as a remainder.
BLOCK = 256
VALIDATED = 0.2  # the share of rows on which a gamma's consistency is looked at


@dataclass(frozen=True)
class Machine:
    """A fitted machine: normality is the offset plus the kernels with its support rows, times their coefficients."""

    gamma: float
    nu: float
    support: NDArray[np.int64]  # which rows
    coefficients: Floats
    offset: float

    @property
    def name(self) -> str:
        """What the candidate is called."""
        return f"nu {self.nu:g}, gamma {self.gamma:g}"


def squared_distances(rows: Rows, others: Rows, unit: float) -> Floats:
    """[n, m]: exact sums of squares of whole numbers, times the square of the unit they are in."""
    a, b = rows.astype(np.float64), others.astype(np.float64)
    found: Floats = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * (a @ b.T)
    found *= unit**2
    return found


def fit_grid(distances: Floats, gammas: Sequence[float], nus: Sequence[float]) -> list[Machine]:
    """A machine for every gamma and nu, from the squared distances [n, n] of the rows."""

    def of_gamma(gamma: float) -> list[Machine]:
        kernel = np.exp(-gamma * distances)
        return [_fitted(kernel, gamma, nu) for nu in nus]

    # The solver lets go of Python's lock. A kernel matrix for each thread is what bounds the memory.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [machine for machines in pool.map(of_gamma, gammas) for machine in machines]


def _fitted(kernel: Floats, gamma: float, nu: float) -> Machine:
    solved = OneClassSVM(kernel="precomputed", nu=nu).fit(kernel)
    return Machine(gamma, nu, solved.support_.astype(np.int64), solved.dual_coef_[0], float(solved.intercept_[0]))


def consistent_gamma(
    distances: Floats, gammas: Sequence[float], nu: float, draw: np.random.Generator
) -> tuple[float, bool]:
    """The tightest gamma whose machine rejects no more of some rows kept aside than it should, and if there is one.

    Tax and Müller's consistency: a machine should reject a share nu of its own kind, and one that rejects clearly more
    has learned its rows by heart. Where even the smoothest does, it is taken.
    """
    order = draw.permutation(len(distances))
    aside = max(1, round(VALIDATED * len(order)))
    kept, tried = np.sort(order[aside:]), np.sort(order[:aside])
    bound = nu + 2 * np.sqrt(nu * (1 - nu) / aside)
    near = distances[np.ix_(kept, kept)]
    for gamma in sorted(gammas, reverse=True):
        (machine,) = fit_grid(near, [gamma], [nu])
        kernel = np.exp(-gamma * distances[np.ix_(tried, kept[machine.support])])
        if (decisions(kernel, machine) < 0).mean() <= bound:
            return gamma, True
    return min(gammas), False


def decisions(kernel: Floats, machine: Machine) -> Floats:
    """[n]: a machine's normality, from kernels [n, its support rows]."""
    # Summed row by row: a product of matrices would round a row by where it stands among its companions.
    return np.asarray((kernel * machine.coefficients).sum(axis=1) + machine.offset)


class SvmSettings(BaseModel):
    """Which machines are fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    gammas: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, max_length=64)
    nus: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(min_length=1, max_length=64)
    nu: float = Field(gt=0, lt=1)  # of the machine that is used; its gamma is chosen without labels
    relative: bool  # whether gammas are in units of one over the median squared distance
    grid: bool  # whether every machine is fitted, so that a protocol may choose among them
    most_images: dict[int, int]  # by the smallest side it is for; more are drawn from

    def most_at(self, side: int) -> int | None:
        """How many images there may be, at that side."""
        fitting = [smallest for smallest in self.most_images if smallest <= side]
        return self.most_images[max(fitting)] if fitting else None


# Paper: nine by ten machines.
PAPER_GRID = SvmSettings(
    gammas=tuple(2.0**k for k in range(-7, 3)),
    nus=tuple(k / 10 for k in range(1, 10)),
    nu=0.1,
    relative=False,
    grid=True,
    most_images={},
)
SOUND_GRID = SvmSettings(
    gammas=tuple(2.0**k for k in range(-6, 5)), nus=(0.1,), nu=0.1, relative=True, grid=False, most_images={8: 5000}
)


class SvmRecord(BaseModel):
    """What a model file says of a machine besides its arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    gamma: float = Field(gt=0)
    nu: float = Field(gt=0, lt=1)
    offset: float
    consistent: bool


@dataclass(frozen=True)
class Svm:
    """The machine that is used and, where a grid was asked for, all of them; all point into the same rows."""

    machine: Machine
    rows: Rows
    unit: float
    consistent: bool
    grid: tuple[Machine, ...] = ()

    @classmethod
    def fit(cls, rows: Rows, unit: float, settings: SvmSettings, *, side: int, seed: int) -> "Svm":
        """The machines that the settings ask for, on rows of whole numbers in that unit."""
        draw = np.random.default_rng(seed)
        most = settings.most_at(side)
        if most is not None and most < len(rows):
            rows = rows[np.sort(draw.choice(len(rows), most, replace=False))]
        distances = squared_distances(rows, rows, unit)
        scale = _median_distance(distances) if settings.relative else 1.0
        gammas = [gamma / scale for gamma in settings.gammas]
        gamma, consistent = consistent_gamma(distances, gammas, settings.nu, draw)
        grid = tuple(fit_grid(distances, gammas, settings.nus)) if settings.grid else ()
        same = [machine for machine in grid if (machine.gamma, machine.nu) == (gamma, settings.nu)]
        (machine,) = same or fit_grid(distances, [gamma], [settings.nu])
        return cls(machine, rows, unit, consistent, grid)

    def normality(self, rows: Rows) -> Floats:
        """[n]: of rows like those it was fitted on."""
        (scores,) = self._scores(rows, [self.machine])
        return np.asarray(scores)

    def candidates(self, rows: Rows) -> dict[str, Floats]:
        """The normality of the rows by every machine of the grid, by its name."""
        return dict(zip([machine.name for machine in self.grid], self._scores(rows, self.grid), strict=True))

    def _scores(self, rows: Rows, machines: Sequence[Machine]) -> Floats:
        scores = np.empty((len(machines), -(-len(rows) // BLOCK) * BLOCK))
        for number, piece in enumerate(passes(rows, BLOCK)):
            block = slice(number * BLOCK, (number + 1) * BLOCK)
            distances = squared_distances(piece, self.rows, self.unit)
            for gamma, alike in groupby(enumerate(machines), key=lambda pair: pair[1].gamma):
                kernel = np.exp(-gamma * distances)
                for index, machine in alike:
                    scores[index, block] = decisions(kernel[:, machine.support], machine)
        return scores[:, : len(rows)]

    @property
    def macs_per_row(self) -> int:
        """Multiply-accumulates of a row's score: its products with the support rows."""
        return len(self.machine.support) * int(self.rows.shape[1])

    @property
    def fit_macs(self) -> int:
        """Multiply-accumulates of the distances of all rows; what the solver does beside it is not counted."""
        return len(self.rows) ** 2 * int(self.rows.shape[1])

    def weaknesses(self) -> list[str]:
        """A line where no gamma was consistent."""
        if self.consistent:
            return []
        return ["the images are too few or too different for a border around them: even the smoothest rejects too many"]

    def tensors(self) -> Arrays:
        """The machine that is used, with its support rows alone."""
        return {"svm/support": self.rows[self.machine.support], "svm/coefficients": self.machine.coefficients}

    def record(self) -> SvmRecord:
        """What there is to say of it besides arrays."""
        machine = self.machine
        return SvmRecord(gamma=machine.gamma, nu=machine.nu, offset=machine.offset, consistent=self.consistent)

    @classmethod
    def restored(cls, tensors: Mapping[str, NDArray[Any]], record: SvmRecord, *, like: Rows, unit: float) -> "Svm":
        """What `tensors` and `record` gave, from a file that may be hostile; rows are to be `like` these."""
        rows, coefficients = tensors["svm/support"], tensors["svm/coefficients"]
        if rows.dtype != like.dtype or rows.ndim != 2 or rows.shape[1] != like.shape[1] or not len(rows):
            raise BadFile("its support vectors do not fit its images")
        if (
            coefficients.shape != (len(rows),)
            or coefficients.dtype != np.float64
            or not np.isfinite(coefficients).all()
        ):
            raise BadFile("its support vectors' coefficients do not fit them")
        machine = Machine(record.gamma, record.nu, np.arange(len(rows)), coefficients, record.offset)
        return cls(machine, rows, unit, record.consistent)


def _median_distance(distances: Floats) -> float:
    apart = distances[np.triu_indices(len(distances), 1)]
    return float(np.median(apart)) or 1.0 if len(apart) else 1.0
