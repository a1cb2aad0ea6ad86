"""`askew fit`: from a folder of normal images to a model file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from askew import storage
from askew.cli.groups import groups_by
from askew.cli.places import check_model_name, check_place
from askew.cli.terminal import err, speaking
from askew.errors import InvalidInput
from askew.images import open_images, printable


def fit(
    normal: list[str],
    *,
    output: Path,
    detector: str,
    preset: str | None,
    group_by: str | None,
    resume: bool,
    seed: int,
    quiet: bool,
    **parameters: Any,
) -> None:
    """Fit, with a checkpoint beside the model until the model is safe."""
    from askew.detectors import detector_class

    kind = detector_class(detector)
    if preset is not None:
        parameters["preset"] = preset
    check_place(output, normal)
    checkpoint = _check_places(output, resume, quiet)
    source = open_images(normal, role="normal")
    groups = None if group_by is None else groups_by(source, group_by)
    with speaking(quiet) as watch, _resumable(checkpoint):
        fitted = kind(**parameters, random_state=seed, checkpoint=str(checkpoint), watch=watch)
        fitted.fit(source, groups=groups)
        fitted.save(output)
    if not quiet:
        record = fitted.training_
        err.print(f"fitted on {record.images:,} images in {record.seconds:.0f} s", highlight=False)
        if fitted.threshold_ is None:
            err.print("no threshold: no images were held out; `askew calibrate` sets one", highlight=False)
        else:
            err.print(fitted.threshold_.describe(), highlight=False, soft_wrap=True)
        err.print(f"wrote {printable(str(output))}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _resumable(checkpoint: Path) -> Iterator[None]:
    """A block whose interruption says how to go on, where there is something to go on from."""
    from askew.detectors.learning import checkpoint_files

    try:
        yield
    except KeyboardInterrupt:
        if checkpoint_files(checkpoint):
            raise KeyboardInterrupt("--resume continues") from None
        raise


def _check_places(output: Path, resume: bool, quiet: bool) -> Path:
    """The checkpoint's path, when both it and the model can be written: before hours of training, not after."""
    from askew.detectors.learning import checkpoint_files

    check_model_name(output)
    checkpoint = output.with_suffix(".checkpoint")
    storage.check_writable(checkpoint)
    begun = checkpoint_files(checkpoint)
    if begun and not resume:
        raise InvalidInput(
            f"{printable(str(begun[0]))} is an interrupted fit: "
            "pass --resume to continue it, or delete it to start anew"
        )
    if resume and not begun and not quiet:
        line = f"nothing to resume: there is no {printable(str(checkpoint))}; starting anew"
        err.print(line, highlight=False, markup=False, soft_wrap=True)
    return checkpoint
