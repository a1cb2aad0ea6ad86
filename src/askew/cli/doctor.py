"""`askew doctor`: what this machine offers, and why it does not offer more."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from rich.table import Table
from rich.text import Text

from askew import __version__
from askew.cli.terminal import out

PACKAGES = ("torch", "scipy", "scikit-learn", "numpy", "pillow", "safetensors", "pydantic", "typer", "rich")


def doctor() -> None:
    """Print versions, the device and each fast path."""
    table = Table(box=None, show_header=False, pad_edge=False)

    def row(name: str, value: str, good: bool | None = None) -> None:
        mark = {None: " ", True: "+", False: "-"}[good]
        table.add_row(mark, Text(name, "bold"), Text(value))

    row("askew", __version__)
    row("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in PACKAGES:
        try:
            row(package, version(package), True)
        except PackageNotFoundError:
            row(package, "not installed; pip install 'askew[fit]'", False)
    try:
        import torch

        from askew.engine import Engine, compiler, fast_precision
    except ModuleNotFoundError as error:
        row("fitting", f"not possible without {error.name}", False)
    else:
        device = Engine.choose().device
        precision, why = fast_precision(device.type)
        row("device", str(device), True)
        row("cores", f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()}", True)
        row("bf16", f"{'used' if precision == 'bf16' else 'not used'}: {why}", precision == "bf16")
        works, reason = compiler()
        row("torch.compile", f"{'possible' if works else 'not possible'}: {reason}; used with --compile", works)
    out.print(table)
