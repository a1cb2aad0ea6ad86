"""The paper's printed figures, in percent, from `printed.json` beside this file; its `source` says where they stand."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class PrintedFigure:
    """One cell of a printed table."""

    mean: float
    sem: float | None = None


@dataclass(frozen=True, eq=False)
class PrintedTable:
    """One block of a printed table: all that the paper says of one metric on one data set."""

    metric: str
    dataset: str
    title: str  # the data set's, as the paper writes it
    classes: tuple[tuple[int, str], ...]  # the data set's label and the paper's name, in the paper's order
    figures: Mapping[str, Mapping[int, PrintedFigure]]  # by detector in the paper's order, by label
    averages: Mapping[str, float]  # as printed; three are not what the printed rows average to, rounded
    hindsight: frozenset[str]  # detectors whose settings the paper chose by test AUROC

    def figure(self, detector: str, labels: Sequence[int]) -> PrintedFigure:
        """What is printed for one class, or as the average of all; of some classes, the mean to a tenth."""
        figures = self.figures[detector]
        if len(labels) == 1:
            return figures[labels[0]]
        if len(labels) == len(figures):
            return PrintedFigure(self.averages[detector])
        return PrintedFigure(round(statistics.fmean(figures[label].mean for label in labels), 1))


@cache
def printed_tables() -> Mapping[tuple[str, str], PrintedTable]:
    """Every printed table, by metric and data set."""
    content = json.loads(resources.files("askew.evaluation").joinpath("printed.json").read_text("utf-8"))
    tables = {}
    for table in content["tables"]:
        metric, dataset, detectors = table["metric"], table["dataset"], table["detectors"]
        described = content["datasets"][dataset]
        labels = [label for label, _ in described["classes"]]
        tables[metric, dataset] = PrintedTable(
            metric=metric,
            dataset=dataset,
            title=described["title"],
            classes=tuple((label, name) for label, name in described["classes"]),
            figures={name: _figures(labels, column) for name, column in detectors.items()},
            averages={name: column["average"] for name, column in detectors.items()},
            hindsight=frozenset(content["hindsight"]),
        )
    return tables


def _figures(labels: list[int], column: Mapping[str, list[float]]) -> dict[int, PrintedFigure]:
    means, sems = column["means"], column.get("sems")
    return {label: PrintedFigure(means[row], None if sems is None else sems[row]) for row, label in enumerate(labels)}
