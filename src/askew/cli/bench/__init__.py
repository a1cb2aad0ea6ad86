"""`askew bench`: the paper's tables, made again. A file a verb here, too, each imported when its verb is called."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="smoke, cifar10, cifar100, fashion-mnist, mnist, cats-vs-dogs, paper-table-1, paper-aupr, "
        "row:DATASET/LABEL/DETECTOR, or folder:PATH.",
    ),
]
Folder = Annotated[Path, typer.Option(help="Where the ledger and the runs are kept.")]
Data = Annotated[Path | None, typer.Option(envvar="ASKEW_DATA", help="The folder that the data sets' files are below.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds.  [default: the recipe's]")]
DataSets = Annotated[str | None, typer.Option(metavar="A,B", help="Only these data sets of the recipe.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Detectors = Annotated[str | None, typer.Option(metavar="A,B", help="Only these detectors.")]
Classes = Annotated[str | None, typer.Option(metavar="0,4,8", help="Only these labels of each data set as normal.")]
Preset = Annotated[str | None, typer.Option(help="The detector's settings, instead of the recipe's.")]
Protocol = Annotated[
    Literal["honest", "paper"] | None,
    typer.Option(help="paper: with hindsight where the paper took it.  [default: the recipe's]"),
]
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16; another precision is another run.")]

FOLDER = Path("askew-bench")


@app.command()
def run(
    recipe: RecipeName,
    folder: Folder = FOLDER,
    data: Data = None,
    seeds: Seeds = None,
    detectors: Detectors = None,
    classes: Classes = None,
    preset: Preset = None,
    protocol: Protocol = None,
    precision: Precision = "auto",
    device: Device = "auto",
    datasets: DataSets = None,
    again: Annotated[bool, typer.Option("--again", help="Try runs again that failed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Make the runs of a RECIPE that the ledger lacks, print their tables and write their report.

    It may be interrupted and called again at any time; the run in flight goes on where it was.
    """
    from askew.cli.bench.run import run_recipe
    from askew.cli.bench.selection import Selection

    chosen = Selection(recipe, folder, data, seeds, detectors, classes, preset, protocol, precision, device, datasets)
    run_recipe(chosen, again=again, quiet=quiet)


@app.command()
def status(
    recipe: RecipeName,
    folder: Folder = FOLDER,
    data: Data = None,
    seeds: Seeds = None,
    detectors: Detectors = None,
    classes: Classes = None,
    preset: Preset = None,
    protocol: Protocol = None,
    precision: Precision = "auto",
    device: Device = "auto",
    datasets: DataSets = None,
) -> None:
    """Tell what of a RECIPE is done, failed, begun and to come."""
    from askew.cli.bench.selection import Selection
    from askew.cli.bench.status import show_status

    show_status(
        Selection(recipe, folder, data, seeds, detectors, classes, preset, protocol, precision, device, datasets)
    )


@app.command()
def table(
    recipe: RecipeName,
    folder: Folder = FOLDER,
    style: Annotated[
        Literal["text", "markdown", "latex", "csv"], typer.Option("--format", help="How the tables are written.")
    ] = "text",
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Of auroc, aupr_in, aupr_out, average_precision, fpr_at_95_tpr.  [default: the recipe's]",
        ),
    ] = None,
    printed: Annotated[bool, typer.Option("--printed", help="Show the paper's other detectors, too.")] = False,
) -> None:
    """Print a RECIPE's tables, ours beside the paper's, from what is in the ledger."""
    from askew.cli.bench.table import print_tables

    print_tables(recipe, folder, style, metrics=metrics, printed=printed)


@app.command()
def report(
    recipe: RecipeName,
    folder: Folder = FOLDER,
    data: Data = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file.  [default: report.html in the folder]")
    ] = None,
) -> None:
    """Write a RECIPE's tables, curves and pictures as one HTML page."""
    from askew.cli.bench.report import write_report

    write_report(recipe, folder, data, output or folder / "report.html")


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="A data set, such as cifar10.")],
    data: Data = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Fetch a data set's published files from their source, checked; a broken download goes on where it was."""
    from askew.cli.bench.download import fetch

    fetch(name, data, quiet=quiet)
