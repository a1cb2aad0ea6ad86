"""`askew bench report`: the ledger of a recipe as one page to look at."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew import storage
from askew.cli.bench.table import rows_of, tables
from askew.cli.terminal import err
from askew.datasets import open_dataset
from askew.datasets.dataset import DataSet
from askew.errors import AskewError, BadFile
from askew.evaluation.ledger import Result, Row
from askew.evaluation.printed import printed_tables
from askew.evaluation.protocol import judged_by
from askew.evaluation.recipes import recipe
from askew.evaluation.rendering import Table
from askew.evaluation.sweep import Benchmark
from askew.evaluation.tables import groups
from askew.images import printable
from askew.report.bench_page import RunView, TableView, bench_page
from askew.report.picture import Example

SHOWN = 8

Kept = tuple[NDArray[np.float64], NDArray[np.bool_]]


def write_report(name: str, folder: Path, data: Path | None, output: Path) -> None:
    """Write the page; pictures are left out where the images are not at hand."""
    storage.check_writable(output)
    chosen = recipe(name)
    rows = rows_of(chosen, folder)
    views: list[RunView] = []
    for dataset in dict.fromkeys(sweep.dataset for sweep in chosen.sweeps):
        mine = [row for row in rows if row.run.dataset == dataset]
        views += _run_views(mine, Benchmark(folder), _opened(dataset, data)) if mine else []
    page = bench_page(
        f"askew bench: {chosen.about}",
        [_table_view(table) for table in tables(chosen, rows)],
        views,
        _facts(row for row in rows if row.status == "done"),
    )
    storage.atomic_write(output, page)
    err.print(f"wrote {printable(str(output))}", highlight=False, markup=False, soft_wrap=True)


def _opened(name: str, data: Path | None) -> DataSet | None:
    try:
        return open_dataset(name, data)
    except AskewError as error:
        _warn(f"no pictures of {name}: {error}")
        return None


def _warn(words: str) -> None:
    err.print(printable(words), style="yellow", highlight=False, markup=False, soft_wrap=True)


def _table_view(table: Table) -> TableView:
    rows = (*table.rows, *table.summary)
    return TableView(
        title=table.title,
        header=tuple(column.name for column in table.columns),
        groups=tuple(table.groups),
        rows=tuple(tuple(str(cell) for cell in row) for row in rows),
        bold=frozenset((r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell.better),
        averages=frozenset(range(len(table.rows), len(rows))),
        notes=table.notes,
    )


def _run_views(rows: Sequence[Row], benchmark: Benchmark, data: DataSet | None) -> list[RunView]:
    """The runs of one data set in the groups and the order of its tables, and a gap for each class a group lacks."""
    dataset = rows[0].run.dataset
    paper = printed_tables().get(("auroc", dataset))
    names = dict(paper.classes) if paper else {}
    for label, name in sorted((row.run.label, row.class_name) for row in rows):
        names.setdefault(label, name)
    recorded = {row.title for row in rows}
    shown = recorded.pop() if len(recorded) == 1 else ""  # it says what part of the set was at hand
    shown = shown or (paper.title if paper else data.title if data else dataset)
    titles = groups(rows)
    views = []
    for title in dict.fromkeys(titles.values()):
        group = [row for row in rows if titles[row.key] == title]
        detector = group[0].run.detector
        printed = paper.figures.get(detector, {}) if paper else {}
        for label, name in names.items():
            gap = RunView(
                name=name,
                group=title,
                dataset=shown,
                seed=0,
                auroc=None,
                printed=printed[label].mean / 100 if label in printed else None,
                printed_with_hindsight=paper is not None and detector in paper.hindsight,
            )
            some = sorted((row for row in group if row.run.label == label), key=lambda row: row.run.seed)
            views += [_run_view(row, gap, benchmark, data, names) for row in some] or [gap]
    return views


def _run_view(row: Row, gap: RunView, benchmark: Benchmark, data: DataSet | None, names: dict[int, str]) -> RunView:
    """What fills the gap: the run's figures, or why it failed."""
    run, result, cost = row.run, row.result, row.cost
    if result is None:
        return replace(gap, seed=run.seed, reason=row.reason)
    images = data if data is not None and data.fingerprint == run.data else None
    normality, is_normal = _kept(row, result, benchmark, images) or (None, None)
    best, worst = _examples(row, images, normality, names)
    return replace(
        gap,
        seed=run.seed,
        auroc=min(result.auroc, 1.0),
        macs=float(cost.training_macs + cost.scoring_macs) or None if cost else None,
        anomaly_scores=None if normality is None else -normality,
        is_normal=is_normal,
        threshold=result.threshold,
        most_normal=best,
        least_normal=worst,
    )


def _kept(row: Row, result: Result, benchmark: Benchmark, images: DataSet | None) -> Kept | None:
    """The normality of each test image and which are normal; None, and a word, where that is not what was judged."""
    try:
        kept = benchmark.scores(row.run)
        if kept is None:
            return None
        normality, is_normal = np.asarray(kept[0], np.float64), np.asarray(kept[1], np.bool_)
        shapes = {normality.shape, is_normal.shape, (result.normals + result.anomalies,)}
        shapes |= set() if images is None else {judged_by(row.run, images).shape}
        if len(shapes) > 1 or is_normal.sum() != result.normals or not np.isfinite(normality).all():
            path = benchmark.file(row.run, "safetensors")
            raise BadFile(f"{path} does not hold the scores of the images that the run was judged by; delete it")
    except BadFile as error:
        _warn(f"no curves and pictures of {row.class_name}, seed {row.run.seed}: {error}")
        return None
    return normality, is_normal


def _examples(
    row: Row, images: DataSet | None, normality: NDArray[np.float64] | None, names: dict[int, str]
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The most and the least normal test images, of the first seed's run."""
    if normality is None or images is None or row.run.seed:
        return (), ()
    rows = judged_by(row.run, images)
    order = np.argsort(-normality, kind="stable")

    def example(place: int) -> Example:
        label = int(images.test.labels[rows[place]])
        pixels = np.asarray(images.test.images[rows[place]])
        name = names.get(label, images.class_names[label])
        return Example(pixels, -float(normality[place]), name, label == row.run.label)

    best, worst = order[:SHOWN].tolist(), order[::-1][:SHOWN].tolist()
    return tuple(map(example, best)), tuple(map(example, worst))


def _facts(rows: Iterable[Row]) -> dict[str, str]:
    """What the runs were made with, each fact once."""
    done = list(rows)
    facts: dict[str, dict[str, None]] = {}
    for row in done:
        for name, value in {**row.where, "precision": row.run.precision}.items():
            facts.setdefault(name, {})[value or "unknown"] = None
    days = sorted(row.finished[:10] for row in done)
    made = {name: ", ".join(values) for name, values in facts.items()}
    return made | ({"finished": days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"} if days else {})
