"""One learning pass: its engine, seed, watcher and checkpoint, and whose checkpoint that is."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew import __version__, storage
from askew.engine import Engine
from askew.training import Checkpoint, Loss, TrainingSettings, Watch, train


@dataclass(frozen=True)
class Run:
    """What a learning pass is given besides images and settings."""

    engine: Engine
    seed: int
    checkpoint: Checkpoint | None
    watch: Watch | None

    def train(self, network: nn.Module, loss: Loss, *, examples: int, settings: TrainingSettings) -> None:
        """Minimise the loss, on this run's engine and from its checkpoint."""
        train(
            network,
            loss,
            examples=examples,
            settings=settings,
            engine=self.engine,
            seed=self.seed,
            checkpoint=self.checkpoint,
            watch=self.watch,
        )


def checkpoint_files(checkpoint: str | Path) -> list[Path]:
    """What an interrupted fit left: the checkpoint itself, and those of the parts of a cross-fit."""
    path = Path(checkpoint)
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    parts = sorted(file for file in beside if file.name.startswith(f"{path.name}.part-"))
    return [path, *parts] if path.exists() else parts


def checkpoint_for(checkpoint: str, part: str, identity: str, engine: Engine) -> Checkpoint:
    """The checkpoint of one pass, which records the precision it is computed in."""
    return Checkpoint(Path(f"{checkpoint}{part}"), identity, {"precision": engine.precision})


def precision_begun_in(checkpoint: str | None) -> str | None:
    """The precision an interrupted fit is to be finished in, wherever it is resumed; None where there is none."""
    for file in checkpoint_files(checkpoint) if checkpoint else ():
        precision = storage.read(file, kind="checkpoint")[1].get("precision")
        return precision if precision in ("fp32", "bf16") else None
    return None


def identity_of(kind: str, settings: str, own: dict[str, Any], images: NDArray[np.uint8], seed: int) -> str:
    """A digest of all that decides the outcome of learning, but for the precision, which the checkpoint keeps.

    `own` are the detector's own parameters: those that all detectors share show in the images and the seed.
    """
    digest = hashlib.sha256(json.dumps([__version__, torch.__version__, kind, settings, repr(own), seed]).encode())
    digest.update(json.dumps(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()
