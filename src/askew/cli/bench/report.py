"""`askew bench report`: the ledger of a recipe as one page to look at."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew import storage
from askew.cli.bench.table import rows_of, tables
from askew.cli.terminal import err
from askew.datasets import open_dataset
from askew.datasets.dataset import DataSet
from askew.errors import AskewError
from askew.evaluation.ledger import Row
from askew.evaluation.printed import printed_tables
from askew.evaluation.protocol import judged_by
from askew.evaluation.recipes import recipe
from askew.evaluation.rendering import Table
from askew.evaluation.sweep import Benchmark
from askew.images import printable
from askew.report.bench_page import RunView, TableView, bench_page
from askew.report.picture import Example

SHOWN = 8


def write_report(name: str, folder: Path, data: Path | None, output: Path) -> None:
    """Write the page; pictures are left out where the images are not at hand."""
    storage.check_writable(output)
    chosen = recipe(name)
    rows = rows_of(chosen, folder)
    done = [row for row in rows if row.status == "done"]
    images = {name: _opened(name, data) for name in {row.run.dataset for row in done}}
    page = bench_page(
        f"askew bench: {chosen.about}",
        [_table_view(table) for table in tables(chosen, rows)],
        [_run_view(row, Benchmark(folder), images[row.run.dataset]) for row in _in_order(done)],
        _facts(done),
    )
    storage.atomic_write(output, page)
    err.print(f"wrote {printable(str(output))}", highlight=False, markup=False, soft_wrap=True)


def _opened(name: str, data: Path | None) -> DataSet | None:
    try:
        return open_dataset(name, data)
    except AskewError as error:
        err.print(f"no pictures of {printable(name)}: {error}", style="yellow", highlight=False, soft_wrap=True)
        return None


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """Kinds of runs together, classes as the paper orders them."""
    places = {
        (dataset, label): place
        for (_, dataset), table in printed_tables().items()
        for place, (label, _) in enumerate(table.classes)
    }

    def key(row: Row) -> tuple[str, str, str, int, int]:
        run = row.run
        return run.dataset, run.detector, run.preset, places.get((run.dataset, run.label), run.label), run.seed

    return sorted(rows, key=key)


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


def _run_view(row: Row, benchmark: Benchmark, data: DataSet | None) -> RunView:
    run, result, cost = row.run, row.result, row.cost
    assert result is not None
    assert cost is not None
    paper = printed_tables().get(("auroc", run.dataset))
    figure = paper.figures[run.detector].get(run.label) if paper and run.detector in paper.figures else None
    kept = benchmark.scores(run)
    normality, is_normal = kept or (None, None)
    best, worst = _examples(row, data, normality)
    return RunView(
        name=row.class_name,
        group=f"{run.detector}, {run.preset}",
        dataset=data.title if data else run.dataset,
        seed=run.seed,
        auroc=result.auroc,
        printed=None if figure is None else figure.mean / 100,
        macs=float(cost.training_macs + cost.scoring_macs) or None,
        anomaly_scores=None if normality is None else -normality,
        is_normal=is_normal,
        threshold=result.threshold,
        most_normal=best,
        least_normal=worst,
    )


def _examples(
    row: Row, data: DataSet | None, normality: NDArray[np.float64] | None
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The most and the least normal test images, of the first seed's run."""
    if normality is None or data is None or data.fingerprint != row.run.data or row.run.seed:
        return (), ()
    rows = judged_by(row.run, data)
    order = np.argsort(-normality, kind="stable")

    def example(place: int) -> Example:
        label = int(data.test.labels[rows[place]])
        pixels = np.asarray(data.test.images[rows[place]])
        return Example(pixels, -float(normality[place]), data.class_names[label], label == row.run.label)

    best, worst = order[:SHOWN].tolist(), order[::-1][:SHOWN].tolist()
    return tuple(map(example, best)), tuple(map(example, worst))


def _facts(rows: Iterable[Row]) -> dict[str, str]:
    """What the runs were made with, each fact once."""
    facts: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in {**row.where, "precision": row.run.precision}.items():
            facts.setdefault(name, {})[value or "unknown"] = None
    days = sorted(row.finished[:10] for row in rows)
    made = {name: ", ".join(values) for name, values in facts.items()}
    return made | ({"finished": days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"} if days else {})
