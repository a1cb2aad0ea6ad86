"""`askew calibrate`: a new threshold for a model, without training."""

from pathlib import Path
from typing import Any

from askew.cli.groups import groups_by
from askew.cli.places import check_model_name, check_place
from askew.cli.terminal import err, speaking
from askew.detectors import load
from askew.images import open_images, printable


def calibrate(
    model: Path,
    normal: list[str],
    *,
    output: Path,
    false_alarm_rate: Any,
    group_by: str | None,
    device: str,
    quiet: bool,
) -> None:
    """Write the model with a threshold from these images."""
    if output != model:
        check_model_name(output)
    check_place(output, normal)
    with speaking(quiet) as watch:
        detector = load(model, device=device).set_params(watch=watch)
        source = open_images(normal, role="normal")
        groups = None if group_by is None else groups_by(source, group_by)
        detector.calibrate(source, false_alarm_rate=false_alarm_rate, groups=groups)
    detector.save(output)
    if not quiet:
        err.print(detector.fitted_threshold.describe(), highlight=False, soft_wrap=True)
        err.print(f"wrote {printable(str(output))}", highlight=False, markup=False, soft_wrap=True)
