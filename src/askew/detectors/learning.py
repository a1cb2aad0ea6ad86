"""One learning pass: its engine, seed, watcher and checkpoint, and whose checkpoint that is."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew import __version__, storage
from askew.engine import Engine
from askew.errors import BadFile
from askew.training import Checkpoint, Loss, TrainingSettings, Watch, train


@dataclass(frozen=True)
class Run:
    """What a learning pass is given besides images and settings."""

    engine: Engine
    seed: int
    checkpoint: Checkpoint | None
    watch: Watch | None

    def train(
        self, network: nn.Module, loss: Loss, *, examples: int, settings: TrainingSettings, stage: str = "training"
    ) -> None:
        """Minimise the loss, on this run's engine; each stage of a fit goes on from a checkpoint of its own."""
        train(
            network,
            loss,
            examples=examples,
            settings=settings,
            engine=self.engine,
            seed=self.seed,
            stage=stage,
            checkpoint=self._checkpoint_of(stage),
            watch=self.watch,
        )

    def _checkpoint_of(self, stage: str) -> Checkpoint | None:
        if self.checkpoint is None or stage == "training":
            return self.checkpoint
        path, identity = self.checkpoint.path, f"{self.checkpoint.identity} {stage}"
        # Kept while the next stage runs: an interrupted fit then passes this one by at once.
        return Checkpoint(
            path.with_name(f"{path.name}.part-{stage}"), identity, self.checkpoint.extra, self.checkpoint.began
        )


def checkpoint_files(checkpoint: str | Path) -> list[Path]:
    """What an interrupted fit left: the checkpoint itself, and those of the parts of a cross-fit."""
    path = Path(checkpoint)
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    parts = sorted(file for file in beside if file.name.startswith(f"{path.name}.part-"))
    return [path, *parts] if path.exists() else parts


def checkpoint_for(checkpoint: str, part: str, identity: str, engine: Engine, began: float) -> Checkpoint:
    """The checkpoint of one pass of a fit that began then, which records what it is computed with."""
    how = {"precision": engine.precision, "compiled": engine.compiled}
    return Checkpoint(Path(f"{checkpoint}{part}"), identity, how, began)


def taken_up(
    checkpoint: str | None, choose: Callable[[str, str, bool], Engine], device: str, precision: str, compiled: bool
) -> tuple[Engine, float]:
    """The engine to fit on, of those that `choose` gives, and the seconds that the fit took before it was interrupted.

    A fit is finished as it was begun, wherever it is resumed: another precision, compiled or not, gives other numbers.
    """
    files = checkpoint_files(checkpoint) if checkpoint else []
    if not files:
        return choose(device, precision, compiled), 0.0
    documents = [storage.read(file, kind="checkpoint")[1] for file in files]
    begun_in, was_compiled = documents[0].get("precision"), documents[0].get("compiled") is True
    if precision not in ("auto", begun_in):
        raise BadFile(
            f"{files[0]} was begun in {begun_in}, not in {precision}; "
            "repeat that fit exactly to continue it, or delete the file to start again"
        )
    engine = choose(device, str(begun_in), was_compiled)
    if engine.compiled != was_compiled:
        raise BadFile(
            f"{files[0]} was begun with torch.compile, which does not work here; "
            "continue it where it does, or delete the file to start again"
        )
    seconds = [document.get("seconds") for document in documents]
    return engine, max((float(value) for value in seconds if isinstance(value, int | float)), default=0.0)


def identity_of(kind: str, settings: str, own: dict[str, Any], images: NDArray[np.uint8], seed: int) -> str:
    """A digest of all that decides the outcome of learning, but for what the checkpoint keeps of the engine.

    `own` are the detector's own parameters: those that all detectors share show in the images and the seed.
    """
    digest = hashlib.sha256(json.dumps([__version__, torch.__version__, kind, settings, repr(own), seed]).encode())
    digest.update(json.dumps(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()
