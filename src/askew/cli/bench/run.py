"""`askew bench run`: the runs of a recipe, one after the other, each into the ledger as soon as it is done."""

from askew.cli.bench.report import write_report
from askew.cli.bench.selection import Selection
from askew.cli.bench.table import tables
from askew.cli.terminal import err, out, speaking
from askew.errors import AskewError
from askew.evaluation.ledger import Row
from askew.evaluation.sweep import sweep
from askew.images import printable


class RunsFailed(AskewError):
    """Some runs came to nothing; the others are in the ledger."""


def run_recipe(chosen: Selection, *, again: bool, quiet: bool) -> None:
    """Make what is missing, print the tables and write the report."""
    runs = chosen.runs
    known = {row.key: row for row in chosen.benchmark.ledger.rows()}
    there = sum(run.key in known for run, _ in runs)
    if not quiet:
        err.print(f"{len(runs)} runs, {there} of them in the ledger", highlight=False)

    def told(row: Row, left: int) -> None:
        if not quiet:
            err.print(f"{_words(row)}; {left} left", highlight=False, markup=False, soft_wrap=True)

    with speaking(quiet) as watch:
        rows = sweep(runs, chosen.benchmark, device=chosen.device, again=again, watch=watch, told=told)
    if not quiet:
        for table in tables(chosen.recipe, rows):
            out.print(table.render("text"), highlight=False, markup=False, soft_wrap=True)
        write_report(chosen.name, chosen.folder, chosen.data, chosen.folder / "report.html")
    failures = [row for row in rows if row.status == "failed"]
    if failures:
        raise RunsFailed(
            f"{len(failures)} of {len(runs)} runs failed, the first: {failures[0].reason}; --again tries them again"
        )


def _words(row: Row) -> str:
    run = row.run
    name = printable(f"{run.dataset} {row.class_name}, {run.detector} {run.preset}, seed {run.seed}")
    if row.result is None or row.cost is None:
        return f"{name}: failed"
    seconds = row.cost.training_seconds + row.cost.scoring_seconds
    return f"{name}: AUROC {100 * row.result.auroc:.1f} in {seconds:,.0f} s"
