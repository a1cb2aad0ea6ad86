"""`askew bench status`: how far a recipe is, and how long the rest will take."""

from statistics import fmean

from rich.table import Table
from rich.text import Text

from askew.cli.bench.selection import Selection
from askew.cli.terminal import out
from askew.detectors.learning import checkpoint_files
from askew.evaluation.ledger import Row, RunSettings
from askew.images import printable


def show_status(chosen: Selection) -> None:
    """Print a line for each data set, detector and preset."""
    benchmark = chosen.benchmark
    known = {row.key: row for row in benchmark.ledger.rows()}
    table = Table(box=None, pad_edge=False)
    for name in ("runs of", "done", "failed", "begun", "to come", "time left"):
        table.add_column(name, justify="left" if name == "runs of" else "right")
    kinds: dict[tuple[str, str, str], list[RunSettings]] = {}
    for run, _ in chosen.runs:
        kinds.setdefault((run.dataset, run.detector, run.preset), []).append(run)
    for kind, runs in kinds.items():
        rows = [known.get(run.key) for run in runs]
        done = [row for row in rows if row is not None and row.status == "done"]
        failed = sum(row is not None and row.status == "failed" for row in rows)
        begun = sum(bool(checkpoint_files(benchmark.file(run, "checkpoint"))) for run in runs if run.key not in known)
        left = len(runs) - len(done) - failed
        cells = (str(len(done)), str(failed), str(begun), str(left - begun), _time_left(done, left))
        table.add_row(Text(printable(", ".join(kind))), *cells)
    out.print(table)


def _time_left(done: list[Row], left: int) -> str:
    """From the runs of the same kind that are done; unknown until one is."""
    if not left:
        return ""
    seconds = [row.cost.training_seconds + row.cost.scoring_seconds for row in done if row.cost is not None]
    if not seconds:
        return "unknown"
    minutes = fmean(seconds) * left / 60
    return f"{minutes:,.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
