"""The one optimiser loop. A detector supplies the loss; everything random is a function of the seed and the step.

That makes resuming exact: a checkpoint is the weights, the optimiser's state and a step count, and a run that was
killed at any moment continues to the same weights, bit for bit on a CPU.
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from askew import storage
from askew.engine import Engine
from askew.errors import BadFile, Diverged

log = logging.getLogger("askew")

CHECKPOINT_SECONDS = 20.0
WATCH_SECONDS = 0.5


def added_later(default: Any) -> Any:
    """A setting that came after results were recorded: it is left out at its default, so that those keep their key."""
    return Field(default=default, exclude_if=lambda value: value == default)


Share = Annotated[float, Field(ge=0, lt=1)]


class TrainingSettings(BaseModel):
    """How a network is trained: a value, recorded with every result."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    optimiser: Literal["adam", "sgd"]
    learning_rate: float = Field(gt=0, le=100)
    schedule: Literal["constant", "cosine", "drop"]
    weight_decay: float = Field(ge=0, le=1)
    batch: int = Field(ge=1, le=65536)
    epochs: int | None = Field(default=None, ge=1)
    examples: int | None = Field(default=None, ge=1)  # a budget instead of epochs, whatever the data's size
    drop_after: Share = added_later(0.5)  # the share of the steps after which `drop` takes a tenth of the rate
    betas: tuple[Share, Share] = added_later((0.9, 0.999))  # Adam's
    epsilon: Literal["keras", "torch"] = added_later("keras")  # Adam's: how large, and where it stands

    def steps(self, examples: int) -> int:
        """How many steps there are over a set of that many examples."""
        per_epoch = math.ceil(examples / self.batch)
        if self.examples is not None:
            return math.ceil(self.examples / self.batch)
        return (self.epochs or 1) * per_epoch

    def shortened(self, share: float) -> "TrainingSettings":
        """The same with that share of its epochs or examples, one at least."""
        name = "epochs" if self.examples is None else "examples"
        whole = self.epochs or 1 if self.examples is None else self.examples
        return self.model_copy(update={name: max(1, round(share * whole))})

    def seen(self, examples: int) -> int:
        """How many examples all steps are made of, counting that an epoch's last batch may be a partial one."""
        epochs, more = divmod(self.steps(examples), math.ceil(examples / self.batch))
        return epochs * examples + more * self.batch

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step: constant, falling to 0 along half a cosine, or dropped to a tenth once."""
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "drop":
            return self.learning_rate * (0.1 if step >= self.drop_after * steps else 1)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))


@dataclass(frozen=True)
class Progress:
    """What a watcher is told now and then."""

    stage: str
    done: int
    total: int
    seconds: float
    loss: float | None = None
    accuracy: float | None = None

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace so far."""
        return self.seconds / max(self.done, 1) * (self.total - self.done)


Watch = Callable[[Progress], None]


def reporter(stage: str, watch: Watch | None) -> Callable[[int, int], None]:
    """A function to call with (done, total), which tells the watcher twice a second at most."""
    began = told = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if watch and (now - told > WATCH_SECONDS or done == total):
            told = now
            watch(Progress(stage, done, total, now - began))

    return report


class Step(NamedTuple):
    """What a loss is given: which rows of the data, a generator of the step's own, and the step's number from 0."""

    rows: Tensor
    draw: torch.Generator
    number: int


# The loss, and the share of right answers where there are answers. Parameters that get no gradient stay as they are.
Loss = Callable[[Step], tuple[Tensor, Tensor | None]]


@dataclass
class Checkpoint:
    """Where an unfinished run is kept, and whose it is: `identity` digests the settings, the seed and the data."""

    path: Path
    identity: str
    extra: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)  # earlier by what the fit took before it was interrupted

    def load(self) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]] | None:
        """The tensors and document of the run to go on with, or None where there is none."""
        if not self.path.exists():
            return None
        tensors, document = storage.read(self.path, kind="checkpoint")
        if document.get("identity") != self.identity:
            raise BadFile(
                f"{self.path} belongs to a fit with other settings, seed, images or versions; "
                "repeat that fit exactly to continue it, or delete the file to start again"
            )
        return tensors, document

    def save(self, network: nn.Module, optimiser: torch.optim.Optimizer, step: int) -> None:
        """Write the state after `step` steps, atomically."""
        tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
        for index, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{index}/{name}": torch.as_tensor(value) for name, value in state.items()}
        arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
        seconds = round(time.monotonic() - self.began, 3)
        document = {"identity": self.identity, "step": step, "seconds": seconds, **self.extra}
        storage.write(self.path, kind="checkpoint", tensors=arrays, document=document)

    def restore(self, network: nn.Module, optimiser: torch.optim.Optimizer) -> int:
        """Load what `save` wrote into both, and return the number of steps done; 0 where nothing was saved."""
        saved = self.load()
        if saved is None:
            return 0
        arrays, document = saved
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        try:
            network.load_state_dict(
                {n.removeprefix("network/"): t for n, t in tensors.items() if n.startswith("network/")}
            )
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith("optimiser/"):
                    _, index, key = name.split("/")
                    state.setdefault(int(index), {})[key] = value
            step = document["step"]
            _check_state(network, optimiser, state, step)
            optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
            return int(step)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise BadFile(f"{self.path} does not fit this network: {str(error).splitlines()[0]}") from error


def train(
    network: nn.Module,
    loss: Loss,
    *,
    examples: int,
    settings: TrainingSettings,
    engine: Engine,
    seed: int,
    stage: str = "training",
    checkpoint: Checkpoint | None = None,
    watch: Watch | None = None,
) -> None:
    """Minimise `loss(step) -> (loss, accuracy)` over shuffled rows of 0..examples-1, in place.

    The last partial batch of an epoch is kept. Ctrl-C finishes the step, saves, and raises KeyboardInterrupt.
    """
    steps = settings.steps(examples)
    network.train()
    optimiser = _optimiser(network, settings)
    start = checkpoint.restore(network, optimiser) if checkpoint else 0
    if start > steps:
        raise BadFile(f"{checkpoint.path if checkpoint else ''} is {start} steps on, of {steps}; delete the file")
    if start:
        log.info("continuing from step %d of %d", start, steps)
    pace, saved_at = _Pace(stage, steps, start, watch), time.monotonic()
    shuffle = _Shuffle(examples, settings.batch, seed)
    with _interrupts() as interrupted, engine.exact():
        for step in range(start, steps):
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate_at(step, steps)
                if settings.optimiser == "adam" and settings.epsilon == "keras":
                    # Paper: Keras adds its 1e-7 to the root before the bias correction, torch after.
                    group["eps"] = 1e-7 / math.sqrt(1 - settings.betas[1] ** (step + 1))
            with engine.autocast():
                value, accuracy = loss(Step(shuffle.rows(step), _generator(seed, step + 1), step))
            optimiser.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            pace.step(step + 1, value, accuracy)
            # Also after the last step: what comes after training may be interrupted, too.
            due = step + 1 == steps or time.monotonic() - saved_at > CHECKPOINT_SECONDS
            if checkpoint and (interrupted.is_set() or due):
                try:
                    checkpoint.save(network, optimiser, step + 1)
                except BadFile as error:
                    log.warning("training goes on, but without a checkpoint: %s", error)
                saved_at = time.monotonic()
            if interrupted.is_set():
                break
    if interrupted.is_set():
        raise KeyboardInterrupt
    if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
        raise Diverged("training ended in weights that are not finite; lower the learning rate or use precision='fp32'")


def _check_state(
    network: nn.Module, optimiser: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]], step: Any
) -> None:
    """Raise ValueError where torch would take an optimiser's state that is not of such a fit, and fail later."""
    shapes = [parameter.shape for parameter in network.parameters()]
    names = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimiser, torch.optim.Adam) else {"momentum_buffer"}
    whole = type(step) is int and step >= 0 and state.keys() <= set(range(len(shapes)))
    if not whole or any(entry.keys() != names for entry in state.values()):
        raise ValueError("its step or its optimiser's state is not of such a fit")
    for index, entry in state.items():
        for name, value in entry.items():
            if value.shape != (() if name == "step" else shapes[index]) or not value.is_floating_point():
                raise ValueError("its optimiser's state does not fit its network")
            # Adam divides by what its count makes of a power.
            if name == "step" and not value >= 1:
                raise ValueError("its optimiser's count of steps is none")


def _optimiser(network: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    # Paper: the L2 penalty is on every parameter, and coupled: Adam sees it in the gradient.
    if settings.optimiser == "adam":
        return torch.optim.Adam(
            network.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
    return torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )


def _generator(seed: int, *place: int) -> torch.Generator:
    """A generator that depends on the seed and a place in the run alone."""
    words = np.random.SeedSequence([seed, *place]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))


class _Shuffle:
    """The rows of each step: the next piece of its epoch's permutation, shorter at the epoch's end."""

    def __init__(self, examples: int, batch: int, seed: int) -> None:
        self.examples, self.batch, self.seed = examples, batch, seed
        self.epoch = -1
        self.order = torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> Tensor:
        epoch, place = divmod(step, math.ceil(self.examples / self.batch))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, torch.randperm(self.examples, generator=_generator(self.seed, 0, epoch))
        return self.order[place * self.batch : (place + 1) * self.batch]


class _Pace:
    """Tells a watcher how training goes, twice a second at most, and stops a run whose loss is not finite."""

    def __init__(self, stage: str, total: int, start: int, watch: Watch | None) -> None:
        self.stage, self.total, self.start, self.watch = stage, total, start, watch
        self.began = self.told = time.monotonic()

    def step(self, done: int, loss: Tensor, accuracy: Tensor | None) -> None:
        now = time.monotonic()
        if now - self.told < WATCH_SECONDS and done < self.total:
            return
        self.told = now
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} at step {done} of {self.total}; lower the learning rate or use fp32")
        if self.watch:
            # The pace is this process's own, not that of the run it resumed.
            seconds = (now - self.began) * done / (done - self.start)
            right = None if accuracy is None else float(accuracy)
            self.watch(Progress(self.stage, done, self.total, seconds, value, right))


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that a step is never cut in two; a second Ctrl-C stops at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        # Told to ignore Ctrl-C, as a shell tells its background jobs; None is a handler that is not Python's.
        yield interrupted
        return

    def on_interrupt(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
