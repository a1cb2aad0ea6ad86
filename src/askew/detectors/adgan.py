"""A generator learns to make normal images, and is then searched: what it cannot make does not belong.

Deecke et al., 2018; the paper's ADGAN.

    1. a generator and a critic learn against each other: made images against real ones   training.py, networks/coder.py
    2. for an image, codes are searched whose images come near to it                      adgan_inversion.py
    3. an image is as normal as little is left between it and them
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from askew.detectors.adgan_inversion import InversionSettings, errors_left
from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import Arrays
from askew.detectors.learning import Run
from askew.detectors.passes import passes
from askew.detectors.settings import DetectorSettings
from askew.engine import Precision
from askew.errors import BadFile, Collapsed
from askew.networks import TRAINING_FACTOR, Decoder, Encoder, multiply_accumulates, set_weights, weights_of
from askew.training import Step, TrainingSettings

CODE = 256
LOOKED_AT = 128  # images, real and made, on which a collapse is looked for
COLLAPSED = 1e-3  # of the spread of the images: less is none


class AdganSettings(DetectorSettings):
    """All that decides what `AdganDetector` computes, but for the data, the seed and the precision."""

    training: TrainingSettings  # every step is one update, of the critic or of the generator
    critic_updates: int = Field(ge=1, le=100)  # for each of the generator
    penalty: float = Field(ge=0, le=1e6)  # what the critic pays for slopes other than 1
    inversion: InversionSettings


# Paper: 100 x 100 updates of the generator, and 200 x 100 of the critic.
# Differs from the reference: its two networks share Adam's count of steps, which ends the bias correction sooner.
PAPER_TRAINING = TrainingSettings(
    optimiser="adam",
    learning_rate=1e-4,
    schedule="constant",
    weight_decay=0,
    batch=128,
    examples=3 * 10_000 * 128,
    betas=(0.0, 0.9),
)
PRESETS = {
    # Paper: judged by 5,000 random test images where there are more, which is the protocol's to do: `test_images`.
    "paper": AdganSettings(
        training=PAPER_TRAINING,
        critic_updates=2,
        penalty=20,
        inversion=InversionSettings(starts=8, updates=5, code_rate=0.25, generator_rate=5e-5, over_starts="mean"),
        holdout=0.0,
        may_collapse=True,
    ),
    # A fifth of the training; the generator stays what was learned from normal images, so codes can be searched longer.
    "sound": AdganSettings(
        training=PAPER_TRAINING.model_copy(update={"examples": 3 * 2_000 * 128}),
        critic_updates=2,
        penalty=20,
        inversion=InversionSettings(starts=2, updates=20, code_rate=0.1, over_starts="least"),
        holdout=0.2,
    ),
}


class AdganRecord(BaseModel):
    """What a model file says of a fitted `AdganDetector` besides its arrays: nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Players(nn.Module):
    """The generator and the critic, which one optimiser moves in turn."""

    def __init__(self, *, channels: int, side: int) -> None:
        super().__init__()
        self.generator = Decoder(channels=channels, code=CODE, side=side)
        self.critic = Encoder(channels=channels, code=1, side=side)

    def let_move(self, mover: nn.Module) -> None:
        """Gradients to one of the two alone: what gets none, Adam leaves as it is, its own state included."""
        for network in (self.generator, self.critic):
            network.requires_grad_(network is mover)


def gradient_penalty(critic: nn.Module, images: Tensor) -> Tensor:
    """The squared distance of the critic's slope from 1, on average over the images [n, channels, side, side]."""
    images = images.detach().requires_grad_()
    # Paper: batch norm lets each answer depend on the whole batch; slopes are those of the sum of all answers.
    (slopes,) = torch.autograd.grad(critic(images).sum(), images, create_graph=True)
    penalty: Tensor = (torch.linalg.vector_norm(slopes.flatten(1), dim=1) - 1).square().mean()
    return penalty


@dataclass(kw_only=True, eq=False, repr=False)
class AdganDetector(Detector):
    """Finds the images that a generator of normal ones does not come near to, whatever it is made to make."""

    kind: ClassVar[str] = "adgan"
    Settings: ClassVar = AdganSettings
    PRESETS: ClassVar = PRESETS
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)  # the penalty is a gradient of a gradient

    preset: str | AdganSettings = "sound"

    def _build(self, settings: AdganSettings, side: int, channels: int) -> None:
        self.players_ = Players(channels=channels, side=side)
        # Differs from the reference: it draws other starts for every image; with the same for all, an image's score
        # depends on nothing but the image and the seed.
        self.starts_ = torch.randn(settings.inversion.starts, CODE)

    def _learn(self, images: NDArray[np.uint8], settings: AdganSettings, run: Run) -> None:
        self._train(images, settings, run)
        self.collapses_ = self._collapses(images, run)
        if self.collapses_ and not settings.may_collapse:
            raise Collapsed(f"{self.collapses_[0]}; fit it with another seed, more images or other settings")

    def _train(self, images: NDArray[np.uint8], settings: AdganSettings, run: Run) -> None:
        """Step 1, a Wasserstein game with a gradient penalty."""
        pixels = torch.from_numpy(images).to(run.engine.device)
        players, generator, critic = self.players_, self.players_.generator, self.players_.critic
        batch, device = settings.training.batch, run.engine.device
        run.engine.place(players)

        def loss(step: Step) -> tuple[Tensor, None]:
            codes = torch.randn(batch, CODE, generator=step.draw).to(device)
            if step.number % (settings.critic_updates + 1) == settings.critic_updates:
                players.let_move(generator)
                return -critic(generator(codes)).mean(), None
            players.let_move(critic)
            # Differs from the reference: it draws every batch anew. Here an epoch's last batch is filled up like that.
            filling = torch.randint(len(pixels), (batch - len(step.rows),), generator=step.draw)
            real = run.engine.scaled(pixels[torch.cat([step.rows, filling]).to(device)])
            # Paper: the critic meets what the generator makes in inference mode; images are searched for in it, too.
            made = generator.eval()(codes)
            generator.train()
            share = torch.rand(batch, 1, 1, 1, generator=step.draw).to(device)
            penalty = gradient_penalty(critic, share * real + (1 - share) * made)
            return critic(made).mean() - critic(real).mean() + settings.penalty * penalty, None

        run.train(players, loss, examples=len(images), settings=settings.training)
        players.eval().requires_grad_(False)

    def _collapses(self, images: NDArray[np.uint8], run: Run) -> list[str]:
        """A line for each way, of the two that are known, in which the game has come to nothing."""
        some = torch.from_numpy(images[np.linspace(0, len(images) - 1, LOOKED_AT).astype(np.int64)])
        real = run.engine.scaled(some.to(run.engine.device))
        codes = torch.randn(LOOKED_AT, CODE, generator=torch.Generator().manual_seed(run.seed))
        made = self.players_.generator(codes.to(run.engine.device))
        # In training mode, the only one it was ever used in; on a copy, since that moves its running statistics.
        answers = copy.deepcopy(self.players_.critic).train()(torch.cat([real, made]))
        spread = _spread(real)
        lines = []
        if _spread(made) < COLLAPSED * spread:
            lines.append(
                f"the generator has collapsed: it makes one image of all codes, to {_spread(made) / spread:.2g} "
                "of the images' spread"
            )
        if _spread(answers) < COLLAPSED * spread:
            lines.append(
                f"the critic has vanished: it answers all images alike, to {_spread(answers) / spread:.2g} "
                "of the images' spread"
            )
        return lines

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Steps 2 and 3."""
        inversion, errors = self.settings_.inversion, []
        for batch in passes(images, inversion.images_per_pass(self.engine_)):
            wanted = self.engine_.scaled(torch.from_numpy(batch).to(self.engine_.device))
            starts = self.starts_.to(self.engine_.device)
            errors.append(errors_left(self.players_.generator, wanted, starts, inversion).cpu())
        return -torch.cat(errors)[: len(images)].numpy()

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        return self.collapses_

    def _effort(self, images: int) -> Effort:
        settings, side, channels = self.settings_, self.policy_.side, self.policy_.channels
        with torch.device("meta"):
            players = Players(channels=channels, side=side)
        critic = multiply_accumulates(players.critic, channels=channels, side=side)
        generator = multiply_accumulates(nn.Sequential(nn.Flatten(), players.generator), channels=CODE, side=1)
        # Back from real images and from made ones; from mixed ones to the slopes, and back through both.
        critic_update = generator + (TRAINING_FACTOR + TRAINING_FACTOR + 2 * TRAINING_FACTOR) * critic
        generator_update = TRAINING_FACTOR * generator + 2 * critic  # back through the critic, but not to its weights
        trained = settings.training.seen(images)
        in_turn = settings.critic_updates * critic_update + generator_update
        return Effort(
            trained,
            trained * in_turn // (settings.critic_updates + 1),
            settings.inversion.passes,
            settings.inversion.cost(generator),
        )

    def _tensors(self) -> Arrays:
        # The critic is for training alone.
        return weights_of(self.players_.generator) | {"starts": self.starts_.numpy()}

    def _learned(self) -> AdganRecord:
        return AdganRecord()

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        AdganRecord.model_validate(learned)
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        generator, starts = self.players_.generator, tensors["starts"]
        if starts.shape != self.starts_.shape or starts.dtype != np.float32 or not np.isfinite(starts).all():
            raise BadFile("its starts are not codes of its generator")
        set_weights(generator, tensors)
        self.engine_.place(generator).eval().requires_grad_(False)
        self.starts_ = torch.from_numpy(starts)


def _spread(values: Tensor) -> float:
    """How far values [n, ...] lie from their mean, as root of the mean square of distances."""
    return float((values - values.mean(0)).square().flatten(1).sum(1).mean().sqrt())
