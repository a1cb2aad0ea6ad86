"""Our figures beside the paper's.

Only runs of one kind are averaged: where settings, precision, protocol, data or test images differ, each kind has
columns of its own. Figures are compared as they are printed, to a tenth of a percent.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from askew.errors import InvalidInput
from askew.evaluation.ledger import Row, RunSettings, content_key, latest, on_one_line
from askew.evaluation.printed import PrintedFigure, PrintedTable, printed_tables
from askew.evaluation.rendering import GAP, Cell, Column, Table

METRICS: Final = {
    "auroc": "AUROC",
    "aupr_in": "AUPR-In",
    "aupr_out": "AUPR-Out",
    "average_precision": "average precision",
    "fpr_at_95_tpr": "FPR at 95 % TPR",
}
_LONGEST_REASON = 200


def paper_table(
    metric: str, dataset: str, rows: Iterable[Row], *, class_names: Sequence[str] | None = None, printed: bool = False
) -> Table:
    """The data set's classes as the paper orders them, ours beside the printed figures, and the means over classes.

    `class_names`, by label, are for data sets that the paper has no table of; `printed` adds its other detectors.
    Each mean is over the same classes from left to right, so that nobody compares a part with the whole.
    """
    if metric not in METRICS:
        raise InvalidInput(f"there is no metric {metric!r}; choose one of {', '.join(METRICS)}")
    mine = [row for row in latest(rows) if row.run.dataset == dataset]
    classes = _classes(dataset, class_names, mine)
    if strange := {row.run.label for row in mine} - set(classes):
        raise InvalidInput(f"label {min(strange)} is none of the {len(classes)} classes of {on_one_line(dataset)}")
    groups, shared = _grouped(row for row in mine if row.status == "done")
    paper = printed_tables().get((metric, dataset))
    blocks = [_beside(group, metric, paper) for group in groups]
    if printed and paper:
        run = {group.detector for group in groups}
        blocks += [_alone(detector, paper) for detector in paper.figures if detector not in run]

    def row(name: str, labels: list[int]) -> tuple[Cell, ...]:
        return Cell(name), *(cell for block in blocks for cell in block.cells(labels))

    # Without their names nobody knows how many classes there are, and a mean is that of those that were run.
    every = list(classes) if _paper(dataset) or class_names is not None else []
    run_on = {tuple(label for label in classes if label in group.figures(metric)) for group in groups}
    averaged = [list(labels) for labels in sorted(run_on, key=lambda labels: (-len(labels), labels))]
    if blocks and not groups:
        averaged = [list(classes)]
    columns = (Column("class", words=True), *(column for block in blocks for column in block.columns))
    return Table(
        title=f"{METRICS[metric]} in percent, {_title(dataset, mine)}",
        columns=columns,
        rows=tuple(row(name, [label]) for label, name in classes.items()),
        summary=tuple(row("average" if labels == every else _mean_of(labels), labels) for labels in averaged),
        notes=(
            f"All runs: {shared}." if groups else "No run is finished yet.",
            *_meanings(columns),
            *(_failure(row) for row in mine if row.status == "failed"),
        ),
    )


def false_alarm_table(rows: Iterable[Row]) -> Table:
    """How many normal test images each finished run took for anomalies, and whether so many were to be expected."""
    done = [row for row in latest(rows) if row.status == "done"]
    datasets = sorted({row.run.dataset for row in done})
    cells: list[tuple[Cell, ...]] = []
    without = 0
    for dataset in datasets:
        mine = [row for row in done if row.run.dataset == dataset]
        classes = _classes(dataset, None, mine)
        place = {label: position for position, label in enumerate(classes)}
        for group in _grouped(mine)[0]:
            runs = f"{_title(dataset, mine)}, {group.title}" if len(datasets) > 1 else group.title
            for row in sorted(group.rows, key=lambda row: (place.get(row.run.label, len(place)), row.run.seed)):
                judged = _false_alarms(row)
                without += not judged
                name = classes.get(row.run.label, on_one_line(row.class_name))
                cells += [(Cell(runs), Cell(name), *map(Cell, judged))] if judged else []
    notes = []
    if cells:
        inside = sum(row[-1].text == "yes" for row in cells)
        notes.append(f"Inside: {inside} of {len(cells)}; of many runs, 95 % are to be expected there.")
    if without:
        notes.append(f"Finished runs without a threshold, since nothing was held out: {without}.")
    names = ("runs", "class", "seed", "wanted", "false alarms", "95 % interval", "inside")
    columns = tuple(Column(name, words=name in ("runs", "class")) for name in names)
    return Table("False alarms among the normal test images", columns, tuple(cells), notes=tuple(notes))


def groups(rows: Iterable[Row]) -> dict[str, str]:
    """The title above each run's columns, by the run's key; groups come in the order of the columns.

    A failed run has the title of its kind; a kind that nothing is finished of comes after the others.
    """

    def kind(row: Row) -> str:
        """The same for runs that differ in nothing but class and seed."""
        return row.run.model_copy(update={"label": 0, "seed": 0}).key

    every = latest(rows)
    titles: dict[str, str] = {}
    for some in ([row for row in every if row.status == "done"], every):
        for group in _grouped(some)[0]:
            titles.setdefault(kind(group.rows[0]), group.title)
    order = list(titles)
    return {row.key: titles[kind(row)] for row in sorted(every, key=lambda row: order.index(kind(row)))}


def _false_alarms(row: Row) -> tuple[str, ...]:
    result = row.result
    if result is None or result.false_alarm_rate is None or result.false_alarms is None or result.interval is None:
        return ()
    low, high = result.interval
    return (
        str(row.run.seed),
        f"{100 * result.false_alarm_rate:g} %",
        f"{result.false_alarms:,} of {result.normals:,}",
        f"{low:,} to {high:,}",
        "yes" if low <= result.false_alarms <= high else "no",
    )


# Which runs share columns, and what those are called


class _Group(NamedTuple):
    """Finished runs that differ in nothing but class and seed."""

    title: str
    detector: str
    rows: list[Row]

    def figures(self, metric: str) -> dict[int, list[float]]:
        """In percent, by label: one for each seed."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            found.setdefault(row.run.label, []).append(100 * getattr(row.result, metric))
        return found


_FACTS: tuple[Callable[[RunSettings], str], ...] = (
    lambda run: f"{run.protocol} protocol",
    lambda run: run.precision,
    lambda run: "whole test set" if run.test_images is None else f"{run.test_images:,} of the test images",
    lambda run: f"data {run.data[:8]}",
)


def _grouped(done: Iterable[Row]) -> tuple[list[_Group], str]:
    """The groups in the paper's order of detectors, titled by what differs between them, and what they all share."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in done:
        run = row.run
        settings = content_key(run.settings)
        kind = (run.detector, run.preset, settings, run.protocol, run.precision, run.data, run.test_images or 0)
        kinds.setdefault(kind, []).append(row)
    order = list(printed_tables()["auroc", "cifar10"].figures)
    ranked = sorted(kinds, key=lambda kind: (order.index(kind[0]) if kind[0] in order else len(order), kind))
    runs = [kinds[kind][0].run for kind in ranked]
    differing = [fact for fact in _FACTS if len(set(map(fact, runs))) > 1]
    groups = []
    for kind, run in zip(ranked, runs, strict=True):
        named_alike = {other[2] for other in kinds if other[:2] == kind[:2]}
        words = [run.detector, run.preset, *(fact(run) for fact in differing)]
        words += [f"settings {kind[2][:8]}"] if len(named_alike) > 1 else []
        words += [_held_out(kinds[kind]), "hindsight" if any(row.hindsight for row in kinds[kind]) else ""]
        groups.append(_Group(on_one_line(", ".join(filter(None, words))), run.detector, kinds[kind]))
    shared = ", ".join(fact(runs[0]) for fact in _FACTS if runs and fact not in differing)
    return groups, on_one_line(shared) or "nothing but the data set"


def _held_out(rows: Iterable[Row]) -> str:
    costs = [row.cost for row in rows if row.cost and row.cost.held_out]
    shares = sorted({round(100 * cost.held_out / (cost.trained_on + cost.held_out)) for cost in costs})
    return f"{' to '.join(map(str, sorted({shares[0], shares[-1]})))} % held out" if shares else ""


def _classes(dataset: str, class_names: Sequence[str] | None, rows: Iterable[Row]) -> dict[int, str]:
    """The names by label, in the order of the table: the paper's, the given ones, or those that were run."""
    if paper := _paper(dataset):
        return dict(paper.classes)
    if class_names is not None:
        return {label: on_one_line(name) for label, name in enumerate(class_names)}
    return {label: on_one_line(name) for label, name in sorted((row.run.label, row.class_name) for row in rows)}


def _title(dataset: str, rows: Iterable[Row]) -> str:
    """The data set's own title where the rows agree on one: it says what part of the set was at hand."""
    recorded = {row.title for row in rows}
    if len(recorded) == 1 and (title := recorded.pop()):
        return on_one_line(title)
    paper = _paper(dataset)
    return paper.title if paper else on_one_line(dataset)


def _paper(dataset: str) -> PrintedTable | None:
    """The paper's classes of the data set, whatever the metric."""
    return printed_tables().get(("auroc", dataset))


# What stands in the columns


class _Block(NamedTuple):
    """Columns that belong together, and what stands in them for one class or, as a mean, for several."""

    columns: list[Column]
    cells: Callable[[list[int]], list[Cell]]


def _beside(group: _Group, metric: str, paper: PrintedTable | None) -> _Block:
    """Our figures, over how many seeds, and beside them the printed ones if there are any."""
    figures = group.figures(metric)
    columns = [Column("ours", group.title, has_sem=True), Column("n", group.title)]
    if paper is None or group.detector not in paper.figures:
        return _Block(columns, lambda labels: _ours(figures, labels, None))
    columns += [Column(_printed(group.detector, paper), group.title, has_sem=True), Column("difference", group.title)]
    detector, table = group.detector, paper

    def cells(labels: list[int]) -> list[Cell]:
        printed = table.figure(detector, labels)
        ours = _ours(figures, labels, printed)
        # What a reader works out from the figures as they stand.
        apart = GAP if ours[0].text == GAP else _signed(float(ours[0].text) - printed.mean)
        return [*ours, _figure(printed), Cell(apart)]

    return _Block(columns, cells)


def _alone(detector: str, paper: PrintedTable) -> _Block:
    """The printed figures of a detector that was not run."""
    column = Column(_printed(detector, paper), detector, has_sem=True)
    return _Block([column], lambda labels: [_figure(paper.figure(detector, labels))])


def _printed(detector: str, paper: PrintedTable) -> str:
    return "printed (hindsight)" if detector in paper.hindsight else "printed"


def _ours(figures: Mapping[int, list[float]], labels: list[int], printed: PrintedFigure | None) -> list[Cell]:
    """The mean over seeds with its standard error, and how many; or the mean of such means, over all those classes."""
    if not all(label in figures for label in labels):
        return [Cell(), Cell()]
    seeds = figures[labels[0]] if len(labels) == 1 else []
    mean = statistics.fmean(statistics.fmean(figures[label]) for label in labels)
    sem = statistics.stdev(seeds) / math.sqrt(len(seeds)) if len(seeds) > 1 else None
    cell = _figure(PrintedFigure(mean, sem))
    better = printed is not None and float(cell.text) > printed.mean
    return [Cell(cell.text, cell.sem, better), Cell(str(len(seeds)) if seeds else "")]


def _figure(figure: PrintedFigure) -> Cell:
    return Cell(f"{figure.mean:.1f}", "" if figure.sem is None else f"{figure.sem:.1f}")


def _signed(difference: float) -> str:
    text = f"{difference:+.1f}"
    return "0.0" if float(text) == 0 else text


def _mean_of(labels: list[int]) -> str:
    return f"mean of {len(labels)} class{'es' if len(labels) > 1 else ''}"


def _meanings(columns: Iterable[Column]) -> list[str]:
    """What the words above the columns mean."""
    heads = " ".join(f"{column.group} {column.name}" for column in columns)
    meanings = {
        "ours": "n: seeds; ± is the standard error of the mean over them.",
        "% held out": "held out: normal images kept for the threshold and not learned from; the paper kept none.",
        "hindsight": "hindsight: test labels chose among a detector's candidates.",
    }
    return [meaning for words, meaning in meanings.items() if words in heads]


def _failure(row: Row) -> str:
    run, reason = row.run, on_one_line(row.reason)
    short = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ..."
    return f"failed: {on_one_line(', '.join((run.detector, run.preset, row.class_name)))}, seed {run.seed}: {short}"
