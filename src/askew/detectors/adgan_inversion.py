"""How near a generator comes to an image: its code is searched by descent, many images and starts at once.

In the paper's form the generator moves, too, so that each image has one of its own; they are run side by side as the
groups of grouped convolutions. Otherwise all images and starts are one plain batch.
"""

import math
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.nn import functional

from askew.detectors.settings import FROZEN
from askew.engine import Engine
from askew.networks.coder import Decoder, Doubling, KerasBatchNorm

BETAS = (0.5, 0.999)  # Paper: of Adam, for codes and generators.
CODES_PER_PASS = 32  # where all share one generator: more are hardly faster on a CPU, and one image is to be quick, too


class InversionSettings(BaseModel):
    """How codes are searched. An image costs about 2 x `starts` x `updates` forward passes of the generator."""

    model_config = FROZEN
    starts: int = Field(ge=1, le=256)  # codes that each image's search starts from
    updates: int = Field(ge=1, le=1000)  # of each code
    code_rate: float = Field(gt=0, le=100)  # Adam's
    generator_rate: float | None = Field(default=None, gt=0, le=100)  # Adam's; None: the generator stays as it is
    over_starts: Literal["mean", "least"]  # which error counts

    def images_per_pass(self, engine: Engine) -> int:
        """How many images are searched for at once: where each has its own generator, one fills a CPU."""
        together = max(1, CODES_PER_PASS // self.starts) if self.generator_rate is None else 1
        return together * engine.images_per_pass

    @property
    def passes(self) -> int:
        """How often an image's search runs a generator forward."""
        return self.starts * (self.updates + 1) + (self.updates if self.generator_rate else 0)

    def cost(self, generator: int) -> int:
        """Multiply-accumulates of an image's search, given those of the generator's forward pass."""
        codes = self.starts * (2 * self.updates + 1)  # forward and back to the code; the last only forward
        generators = 3 * self.updates if self.generator_rate else 0  # back to the weights, too; once for all starts
        return (codes + generators) * generator


def errors_left(generator: Decoder, images: Tensor, starts: Tensor, settings: InversionSettings) -> Tensor:
    """[n]: the mean squared error between each image [n, channels, side, side] and the nearest that was found to it.

    `starts` [starts, code] are the same for all images; the generator is frozen, and in inference mode.
    """
    rate = settings.generator_rate
    made: nn.Module = _Shared(generator) if rate is None else _Copies(generator, len(images))
    codes = starts[:, None].repeat(1, len(images), 1).requires_grad_()
    # Paper: every start begins with the generator as it was trained, and with fresh optimisers.
    code_adam = _adam([codes], settings.code_rate)
    generator_adam = None if rate is None else _adam([p for p in made.parameters() if p.requires_grad], rate)
    with torch.enable_grad():
        for number in range(1, settings.updates + 1):
            # Paper: the generator is in inference mode where the code moves, in training mode where it moves itself.
            _descend(code_adam, _errors(made.eval()(codes), images), number)
            if generator_adam is not None:
                # Paper: on a batch of one, of which the first batch norm leaves nothing but its shift. So this update
                # cannot see the code; as it is the same for all starts of an image, it is made once, with any code.
                _descend(generator_adam, _errors(made.train()(codes[:1].detach()), images), number)
    with torch.no_grad():
        errors = _errors(made.eval()(codes), images).double()
    return errors.mean(0) if settings.over_starts == "mean" else errors.amin(0)


class _Shared(nn.Module):
    """One generator for all images."""

    def __init__(self, generator: Decoder) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, codes: Tensor) -> Tensor:
        """[starts, n, code] to [starts, n, channels, side, side]."""
        images: Tensor = self.generator(codes.flatten(0, 1))
        return images.reshape(*codes.shape[:2], *images.shape[1:])


class _Copies(nn.Module):
    """A generator for each image, side by side; they share the dense layer, which no update of theirs can move."""

    def __init__(self, generator: Decoder, count: int) -> None:
        super().__init__()
        self.count, self.grid = count, generator.grid
        self.dense = generator.dense
        self.norm = _repeated(generator.norm, count)
        self.layers = nn.Sequential(*(_repeated(layer, count) for layer in generator.layers))

    def forward(self, codes: Tensor) -> Tensor:
        """[starts, n, code] to [starts, n, channels, side, side]."""
        x = functional.relu(self.norm(self.dense(codes).flatten(1)[:, :, None, None]))
        images: Tensor = self.layers(x.view(len(codes), -1, self.grid, self.grid))
        return images.reshape(len(codes), self.count, -1, *images.shape[2:])


def _repeated(layer: nn.Module, count: int) -> nn.Module:
    """So many copies of a layer as the groups of one, free to move; a layer without weights as it is."""
    with torch.device("meta"):
        if isinstance(layer, KerasBatchNorm):
            norm = KerasBatchNorm(count * layer.num_features)
            # Paper: updates leave the running statistics alone: codes are always searched with those of training.
            norm.momentum = 0.0
            wide: nn.Module = norm
        elif isinstance(layer, Doubling):
            wide = Doubling(count * layer.in_channels, count * layer.out_channels, groups=count)
        else:
            return layer
    state = layer.state_dict()  # along with a count of batches, a single number
    for name, value in state.items():
        state[name] = value.repeat(count, *[1] * (value.ndim - 1)) if value.ndim else value.clone()
    wide.load_state_dict(state, assign=True)
    return wide


def _errors(made: Tensor, images: Tensor) -> Tensor:
    """[starts, n] from [starts, n, channels, side, side] and [n, channels, side, side]."""
    return (made - images).square().flatten(2).mean(2)


def _adam(parameters: list[Tensor], learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, learning_rate, BETAS, fused=True)


def _descend(adam: torch.optim.Adam, errors: Tensor, number: int) -> None:
    """The update of that number, from 1; each error moves only what it is made of, so their sum moves all."""
    adam.zero_grad()
    group = adam.param_groups[0]
    errors.sum().backward(inputs=group["params"])  # type: ignore[no-untyped-call]
    group["eps"] = 1e-7 / math.sqrt(1 - BETAS[1] ** number)  # Paper: Keras's, see training.py.
    adam.step()
