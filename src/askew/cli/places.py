"""Where results may go: found out before any work."""

import os
from collections.abc import Iterable
from pathlib import Path

from askew import storage
from askew.errors import InvalidInput
from askew.images import printable


def check_place(output: Path, inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise where the output cannot be written, or would take the place of one of the inputs."""
    storage.check_writable(output)
    for path in inputs:
        if _is_same(output, path):
            raise InvalidInput(f"{printable(str(output))} is to be read, and would be lost; give -o another name")


def check_model_name(output: Path) -> None:
    """Raise where a file of that name would not be taken for a model."""
    if output.suffix != ".safetensors":
        raise InvalidInput(f"a model is a file such as model.safetensors, got {printable(str(output))}")


def _is_same(output: Path, path: str | os.PathLike[str]) -> bool:
    try:
        return output.samefile(path)
    except (OSError, ValueError):  # one of them does not exist, or is no path but a pattern
        return False
