"""Recipes: named lists of benchmark runs. A recipe says what to run, `sweep.py` runs it, the ledger remembers.

`row:DATASET/LABEL/DETECTOR` is a recipe of one row, such as `row:cifar10/5/geometric`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from askew.datasets import DATASETS
from askew.detectors import DETECTORS
from askew.errors import InvalidInput
from askew.evaluation.printed import printed_tables

PAPER_SETS: Final = ("cifar10", "cifar100", "fashion-mnist", "cats-vs-dogs")
PAPER_SEEDS: Final = 5  # Paper: figures are means over five runs.


@dataclass(frozen=True)
class Sweep:
    """One data set's classes, each taken as normal, by some detectors, from seeds 0, 1, ... of one preset."""

    dataset: str
    detectors: tuple[str, ...] = ("geometric",)
    preset: str | None = None  # None: the detector's own default
    seeds: int = PAPER_SEEDS
    labels: tuple[int, ...] | None = None  # None: every class
    views: int | None = None  # another training budget than the preset's
    training: float | None = None  # that share of the preset's training; the preset's name then says so
    protocol: Literal["honest", "paper"] = "honest"


@dataclass(frozen=True)
class Recipe:
    """What is run, and which figures its tables show."""

    about: str
    sweeps: tuple[Sweep, ...]
    metrics: tuple[str, ...] = ("auroc",)


def smoke() -> Recipe:
    """The sample in the package, in minutes: everything but the data is as in the long recipes."""
    return Recipe(
        "the sample in the package, three seeds of a short training",
        (Sweep("sample", labels=(7,), seeds=3, views=40_000),),
        ("auroc", "aupr_in", "aupr_out"),
    )


def _one_set(name: str) -> Callable[[], Recipe]:
    return lambda: Recipe(f"every class of {name}", (Sweep(name),))


def paper_table_1() -> Recipe:
    """The paper's main table: four data sets, every detector there is, the paper's settings and protocol."""
    return Recipe("the paper's main table, AUROC", _paper_sweeps())


def paper_aupr() -> Recipe:
    """The same runs, read as the supplement's tables of precision and recall."""
    return Recipe("the supplement's tables, AUPR-In and AUPR-Out", _paper_sweeps(), ("aupr_in", "aupr_out"))


def _paper_sweeps() -> tuple[Sweep, ...]:
    return tuple(Sweep(name, tuple(DETECTORS), "paper", protocol="paper") for name in PAPER_SETS)


RECIPES: Final[dict[str, Callable[[], Recipe]]] = {
    "smoke": smoke,
    **{name: _one_set(name) for name in PAPER_SETS},
    "mnist": _one_set("mnist"),
    "paper-table-1": paper_table_1,
    "paper-aupr": paper_aupr,
}


def recipe(
    name: str,
    *,
    seeds: int | None = None,
    datasets: Sequence[str] | None = None,
    detectors: Sequence[str] | None = None,
    labels: Sequence[int] | None = None,
    preset: str | None = None,
    training: float | None = None,
    protocol: Literal["honest", "paper"] | None = None,
) -> Recipe:
    """The recipe of that name, with what is given in place of its own."""
    found = _row(name) if name.startswith("row:") else _named(name)
    for detector in detectors or ():
        _check_detector(detector)
    if seeds is not None and not 1 <= seeds <= 1000:
        raise InvalidInput(f"a recipe takes 1 to 1000 seeds, got {seeds}")

    known = [sweep.dataset for sweep in found.sweeps]
    if strange := [dataset for dataset in datasets or () if dataset not in known]:
        raise InvalidInput(f"the recipe {name} has no data set {strange[0]!r}; it has {', '.join(known)}")

    def changed(sweep: Sweep) -> Sweep:
        return replace(
            sweep,
            seeds=seeds or sweep.seeds,
            detectors=tuple(detectors or sweep.detectors),
            labels=tuple(labels) if labels else sweep.labels,
            preset=preset or sweep.preset,
            # Another preset is another thing than the recipe's shortened one.
            views=sweep.views if preset is None and training is None else None,
            training=training or sweep.training,
            protocol=protocol or sweep.protocol,
        )

    sweeps = [sweep for sweep in found.sweeps if datasets is None or sweep.dataset in datasets]
    return replace(found, sweeps=tuple(changed(sweep) for sweep in sweeps))


def _named(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]()
    if name in DATASETS or name.startswith("folder:"):
        return Recipe(f"every class of {name}", (Sweep(name),))
    raise InvalidInput(
        f"there is no recipe {name!r}; there are {', '.join(RECIPES)}, folder:PATH and row:DATASET/LABEL/DETECTOR"
    )


def _row(name: str) -> Recipe:
    parts = name.removeprefix("row:").rsplit("/", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        raise InvalidInput(f"a row is row:DATASET/LABEL/DETECTOR, such as row:cifar10/5/geometric, got {name!r}")
    dataset, label, detector = parts
    _check_detector(detector)
    return Recipe(f"one row, label {label} of {dataset}", (Sweep(dataset, (detector,), labels=(int(label),)),))


def _check_detector(name: str) -> None:
    if name not in DETECTORS:
        raise InvalidInput(f"there is no detector {name!r}; there are {', '.join(DETECTORS)}")


def has_printed(dataset: str, metric: str) -> bool:
    """Whether the paper prints that figure for that data set."""
    return (metric, dataset) in printed_tables()
