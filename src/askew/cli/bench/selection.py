"""What the options of `askew bench` select: a recipe, its data and the benchmark's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from askew.datasets import open_dataset
from askew.datasets.dataset import DataSet
from askew.errors import InvalidInput
from askew.evaluation.ledger import RunSettings
from askew.evaluation.recipes import Recipe, recipe
from askew.evaluation.sweep import Benchmark, planned


@dataclass(frozen=True)
class Selection:
    """The options as they were given."""

    name: str
    folder: Path
    data: Path | None
    seeds: int | None
    detectors: str | None
    classes: str | None
    preset: str | None
    protocol: Literal["honest", "paper"] | None
    precision: str
    device: str = "auto"
    datasets: str | None = None

    @property
    def benchmark(self) -> Benchmark:
        """Where runs are kept."""
        return Benchmark(self.folder)

    @property
    def recipe(self) -> Recipe:
        """The recipe with the options in place of its own."""
        return recipe(
            self.name,
            seeds=self.seeds,
            datasets=names(self.datasets),
            detectors=names(self.detectors),
            labels=None if self.classes is None else _labels(self.classes),
            preset=self.preset,
            protocol=self.protocol,
        )

    @property
    def runs(self) -> list[tuple[RunSettings, DataSet]]:
        """Every run of it, with its data opened once a set."""
        opened: dict[str, DataSet] = {}

        def open_once(name: str) -> DataSet:
            if name not in opened:
                opened[name] = open_dataset(name, self.data)
            return opened[name]

        return planned(self.recipe, open_once, precision=self.precision, device=self.device)


def names(text: str | None) -> list[str] | None:
    """What an option lists with commas; None where it was not given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def _labels(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise InvalidInput(f"--classes takes labels such as 0,4,8, got {text!r}")
    return [int(word) for word in words]
