"""The command: a file a verb, each imported when its verb is called, so that `askew --help` is instant.

Exit codes: 0 done; 1 anomalies found and `--fail-on-anomaly` given; 2 what the user can mend, on one line; 70 a bug of
ours, with its traceback; 130 Ctrl-C.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from askew.cli import bench
from askew.errors import AskewError, MissingExtra

FAILED = 2
BUG = 70  # as sysexits.h has it; Python's own 1 would say that anomalies were found
INTERRUPTED = 130

app = typer.Typer(
    name="askew",
    help="Find the images that do not belong, having seen only ones that do.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench", help="Make the paper's tables again, beside the printed figures.")

Images = Annotated[
    list[str], typer.Argument(help="Folders, image files, patterns, .npz or .npy arrays, or .csv manifests.")
]
Model = Annotated[Path, typer.Argument(help="A model that `askew fit` wrote.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same model.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
GroupBy = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Keep near-duplicates together: images whose path has the same match, or 'folder' for one folder's.",
    ),
]
RateText = Annotated[
    str | None,
    typer.Option(
        "--false-alarm-rate", metavar="RATE", help="The share of normal images to be called anomalies, or auto."
    ),
]


@app.command()
def fit(
    normal: Images,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes: a .safetensors file.")],
    false_alarm_rate: RateText = "auto",
    detector: Annotated[
        str,
        typer.Option(
            help="geometric, or a rival of it: raw-ocsvm.",
        ),
    ] = "geometric",
    preset: Annotated[
        str | None,
        typer.Option(help="Named settings: fast or paper; a rival's are sound or paper.  [default: fast, or sound]"),
    ] = None,
    side: Annotated[
        int | None, typer.Option(help="The side in pixels that images are brought to.  [default: 32]")
    ] = None,
    size: Annotated[
        Literal["auto", "crop", "pad", "stretch"], typer.Option(help="How images are brought to a square.")
    ] = "auto",
    views: Annotated[int | None, typer.Option(help="The training budget in views, instead of the preset's.")] = None,
    holdout: Annotated[
        float | None, typer.Option(help="The share of images kept for the threshold.  [default: the preset's]")
    ] = None,
    cross_fit: Annotated[
        int, typer.Option(metavar="PARTS", help="For small sets: fit PARTS times more, so that all images calibrate.")
    ] = 0,
    group_by: GroupBy = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a fit that was interrupted.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16; recorded in the model.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Train through torch.compile.")] = False,
    quiet: Quiet = False,
) -> None:
    """Learn from NORMAL images, and write a model."""
    from askew.cli.fit import fit as run

    run(
        normal,
        output=output,
        detector=detector,
        false_alarm_rate=rate(false_alarm_rate),
        preset=preset,
        side=side,
        size=size,
        views=views,
        holdout=holdout,
        cross_fit=cross_fit,
        group_by=group_by,
        resume=resume,
        seed=seed,
        device=device,
        precision=precision,
        compiled=compiled,
        quiet=quiet,
    )


@app.command()
def score(
    model: Model,
    images: Images,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every verdict to a .csv or .jsonl file.")
    ] = None,
    false_alarm_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Another false-alarm rate than the model's, from the same held-out images."),
    ] = None,
    fdr: Annotated[
        float | None,
        typer.Option(
            metavar="RATE", help="Flag so many that this share of the flagged is normal (Benjamini-Hochberg)."
        ),
    ] = None,
    fail_on_anomaly: Annotated[
        bool,
        typer.Option("--fail-on-anomaly", help="Exit with 1 when an image is an anomaly; unreadable ones are not."),
    ] = False,
    top: Annotated[int, typer.Option(help="How many images the table on the terminal shows.")] = 20,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Say of each of the IMAGES whether it belongs."""
    from askew.cli.score import score as run

    found = run(
        model,
        images,
        output=output,
        false_alarm_rate=false_alarm_rate,
        fdr=fdr,
        top=top,
        needs_threshold=fail_on_anomaly,
        device=device,
        quiet=quiet,
    )
    if found and fail_on_anomaly:
        raise typer.Exit(1)


@app.command()
def calibrate(
    model: Model,
    normal: Images,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the model goes.  [default: MODEL itself]")
    ] = None,
    false_alarm_rate: Annotated[
        str | None,
        typer.Option("--false-alarm-rate", metavar="RATE", help="A rate, or auto.  [default: as at fitting]"),
    ] = None,
    group_by: GroupBy = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set MODEL's threshold anew, without training.

    NORMAL images it was fitted on are left out.
    """
    from askew.cli.calibrate import calibrate as run

    run(
        model,
        normal,
        output=output or model,
        false_alarm_rate=rate(false_alarm_rate),
        group_by=group_by,
        device=device,
        quiet=quiet,
    )


@app.command()
def info(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="The whole record, for programs.")] = False,
) -> None:
    """Tell what MODEL was fitted on and promises."""
    from askew.cli.info import info as run

    run(model, as_json=as_json)


@app.command()
def doctor() -> None:
    """Tell what this machine offers, or why not."""
    from askew.cli.doctor import doctor as run

    run()


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demo puts its images, model, verdicts and picture.")] = Path(
        "askew-demo"
    ),
    views: Annotated[int, typer.Option(help="The training budget in views.")] = 60_000,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Fit and score on the sample in the package."""
    from askew.cli.demo import demo as run

    run(folder, views=views, seed=seed, quiet=quiet)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from askew import __version__

        typer.echo(f"askew {__version__}")
        raise typer.Exit


def rate(text: str | None) -> Any:
    """A rate as given on the command line: a number, `auto`, or None."""
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"a rate is a number between 0 and 1, such as 0.01, or auto; got {text!r}") from None


def main() -> NoReturn:
    """Run the command line and exit."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: the first file to be opened must not take its place
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    try:
        code = _exit_code()
        sys.stdout.flush()  # a full disk must be found out here, not at the interpreter's end
        leave(code)
    except AskewError as error:
        fail(str(error))
    except KeyboardInterrupt as interrupt:
        leave(INTERRUPTED, "; ".join(("\ninterrupted", *map(str, interrupt.args))))
    except BrokenPipeError:
        leave(0)  # the reader of our output has gone: nothing is left to say
    except ModuleNotFoundError as error:
        if error.name in ("torch", "scipy", "sklearn"):
            fail(str(MissingExtra(f"this verb needs {error.name}: pip install 'askew[fit]'")))
        _tell_bug()
    except OSError as error:
        from askew.storage import DEVICE_REFUSED

        # Who writes a file names it in an `AskewError`: what is left is what was being printed.
        if error.filename is None and error.errno in DEVICE_REFUSED:
            fail(f"standard output: cannot be written: {error.strerror}")
        _tell_bug()
    except Exception as error:  # noqa: BLE001  (what is left is a bug, told with its traceback)
        # Usage errors know their words and their exit code; their class lives in click or in typer, by version.
        if not hasattr(error, "format_message"):
            _tell_bug()
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            leave(FAILED)
        fail(f"{error.format_message()} (see askew --help)")


def _exit_code() -> int:
    """What the command line exits with, once it has been run."""
    # Not through typer's own `main`: it makes a closed pipe an exit with 1, and Ctrl-C one without a word.
    command = typer.main.get_command(app)
    try:
        with command.make_context("askew", sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


def fail(line: str) -> NoReturn:
    """Print one line and exit as for everything the user can mend."""
    from askew.images.names import printable

    leave(FAILED, f"askew: {printable(' '.join(line.split()))}")


def _tell_bug() -> NoReturn:
    """Print the traceback of the exception in hand and exit."""
    import traceback

    leave(BUG, traceback.format_exc())


def leave(code: int, words: str = "") -> NoReturn:
    """Exit with last words; nothing to print is left over, on which Python would fail at its very end."""
    with suppress(OSError):
        if words:
            print(words, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
