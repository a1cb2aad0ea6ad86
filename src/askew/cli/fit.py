"""`askew fit`: from a folder of normal images to a model file."""

import os
import re
from pathlib import Path
from typing import Any

from askew.cli.terminal import err, speaking
from askew.errors import BadFile, InvalidInput
from askew.images import ImageSource, open_images, printable


def fit(
    normal: list[str], *, output: Path, group_by: str | None, resume: bool, seed: int, quiet: bool, **parameters: Any
) -> None:
    """Fit, with a checkpoint beside the model until the model is safe."""
    checkpoint = _check_places(output, resume)
    source = open_images(normal, role="normal")
    groups = None if group_by is None else _groups(source, group_by)
    from askew.detectors.geometric import GeometricDetector

    with speaking(quiet) as watch:
        detector = GeometricDetector(**parameters, random_state=seed, checkpoint=str(checkpoint), watch=watch)
        detector.fit(source, groups=groups)
        detector.save(output)
    if not quiet:
        record = detector.training_
        err.print(f"fitted on {record.images:,} images in {record.seconds:.0f} s", highlight=False)
        if detector.threshold_ is None:
            err.print("no threshold: no images were held out; `askew calibrate` sets one", highlight=False)
        else:
            err.print(detector.threshold_.describe(), highlight=False, soft_wrap=True)
        err.print(f"wrote {output}", highlight=False, markup=False, soft_wrap=True)


def _check_places(output: Path, resume: bool) -> Path:
    """The checkpoint's path, when both it and the model can be written: before hours of training, not after."""
    if output.suffix != ".safetensors":
        raise InvalidInput(f"a model is a .safetensors file, got {printable(str(output))}")
    if not os.access(output.parent, os.W_OK):
        raise BadFile(f"{printable(str(output.parent))}: there is no such folder, or it cannot be written to")
    checkpoint = output.with_suffix(".checkpoint")
    if checkpoint.exists() and not resume:
        raise InvalidInput(
            f"{printable(str(checkpoint))} is an interrupted fit: "
            "pass --resume to continue it, or delete it to start anew"
        )
    return checkpoint


def _groups(source: ImageSource, group_by: str) -> list[str]:
    """The group of each image: its folder, or what the expression matches in its path."""
    if group_by == "folder":
        return [str(Path(name).parent) for name in source.names]
    try:
        expression = re.compile(group_by)
    except re.error as error:
        raise InvalidInput(f"--group-by {group_by!r} is not a regular expression: {error}") from error
    groups = []
    for name in source.names:
        match = expression.search(name)
        if match is None:
            raise InvalidInput(f"--group-by {group_by!r} matches nothing in {printable(name)}")
        groups.append(match.group(1) if expression.groups else match.group())
    return groups
