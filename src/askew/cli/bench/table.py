"""`askew bench table`: what the ledger holds of a recipe, beside what the paper prints."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from askew.cli.bench.selection import names
from askew.cli.terminal import err
from askew.errors import NoImages
from askew.evaluation.ledger import Row
from askew.evaluation.recipes import Recipe, recipe
from askew.evaluation.rendering import Table
from askew.evaluation.sweep import Benchmark
from askew.evaluation.tables import false_alarm_table, paper_table


def print_tables(
    name: str,
    folder: Path,
    style: Literal["text", "markdown", "latex", "csv"],
    *,
    metrics: str | None,
    printed: bool,
) -> None:
    """Print every table of a recipe; options of its runs do not matter, all that is in the ledger is shown."""
    chosen = recipe(name)
    chosen = replace(chosen, metrics=tuple(names(metrics) or chosen.metrics))
    rows = rows_of(chosen, folder)
    print("\n".join(table.render(style) for table in tables(chosen, rows, printed=printed)))


def rows_of(chosen: Recipe, folder: Path) -> list[Row]:
    """The rows of the recipe's data sets and, of a row, of its class; and a word where there are none."""
    wanted = {sweep.dataset: sweep.labels for sweep in chosen.sweeps}
    rows = [
        row
        for row in Benchmark(folder).ledger.rows()
        if row.run.dataset in wanted and row.run.label in (wanted[row.run.dataset] or (row.run.label,))
    ]
    if not rows:
        raise NoImages(f"{Benchmark(folder).ledger.path} holds no run of this recipe; `askew bench run` makes them")
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        err.print(f"{failed} runs failed; the notes under the tables say why", style="yellow", highlight=False)
    return rows


def tables(chosen: Recipe, rows: list[Row], *, printed: bool = False) -> list[Table]:
    """The tables of a recipe: each figure of each data set, and the false alarms where thresholds were set."""
    ran = {row.run.dataset for row in rows}
    datasets = [name for name in dict.fromkeys(sweep.dataset for sweep in chosen.sweeps) if name in ran]
    made = [paper_table(metric, name, rows, printed=printed) for name in datasets for metric in chosen.metrics]
    if any(row.result is not None and row.result.false_alarm_rate is not None for row in rows):
        made.append(false_alarm_table(rows))
    return made
