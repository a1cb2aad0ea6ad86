"""`askew info`: what a model file says of itself."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from askew.cli.terminal import out
from askew.detectors import read_model
from askew.images import printable


def info(model: Path, *, as_json: bool) -> None:
    """Print the record; the network is not built, so torch is not needed."""
    tensors, record, line = read_model(model)
    if as_json:
        document = record.model_dump(mode="json")
        document["threshold"] = None if line is None else line.value
        print(json.dumps(document, indent=2, sort_keys=True))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    training, policy = record.training, record.policy
    parameters = sum(array.size for name, array in tensors.items() if name.startswith("network/"))
    channels = "grey" if policy.channels == 1 else "colour"
    seed = "" if training.random_state is None else f", seed {training.random_state}"
    rows = {
        "detector": f"{record.detector}, {parameters:,} parameters",
        "images": f"{channels}, {policy.side}x{policy.side}, {policy.fit}",
        "fitted on": f"{training.images:,} images in {training.seconds:,.0f} s{seed}",
        "precision": record.precision,
        "threshold": "none; `askew calibrate` sets one" if line is None else f"anomaly score above {line.value:.4f}",
        "promise": "" if line is None else line.describe(),
        "recognises": _recognised(record.learned.get("recognition")),
        "weak where": "; ".join(training.weaknesses),
        "made with": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "images' mark": training.fingerprint[:16],
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, "bold"), Text(printable(value)))
    out.print(table)


def _recognised(shares: Any) -> str:
    """How often each question was answered right, from a file that may hold anything there."""
    if not isinstance(shares, dict):
        return ""
    numbers = {name: share for name, share in shares.items() if isinstance(share, int | float) and 0 <= share <= 1}
    return ", ".join(f"{name.replace('_', ' ')} {100 * share:.1f} %" for name, share in numbers.items())
