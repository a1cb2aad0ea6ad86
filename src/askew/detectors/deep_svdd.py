"""Deep SVDD: a network learns to give one answer to all normal images; an odd one gets another.

Ruff et al., 2018; the paper's E2E-OC-SVM, whose figures it quotes from them.

    1. every image to the same contrast, then all to [0, 1]
    2. an autoencoder learns to draw them; the network starts as its encoder
    3. the centre is the mean of its answers, kept away from 0
    4. the network learns to answer the centre
    5. an image is as normal as its answer is near the centre
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import Arrays
from askew.detectors.learning import Run
from askew.detectors.passes import passes
from askew.detectors.settings import DetectorSettings
from askew.engine import Precision
from askew.errors import Collapsed
from askew.networks import TRAINING_FACTOR, LeNet, LeNetDecoder, multiply_accumulates, set_weights, weights_of
from askew.networks.lenet import CODE
from askew.training import Step, TrainingSettings

CLEAR = 0.1  # of 0, in every coordinate of the centre
LOOKED_AT = 200  # images on which a collapse is looked for
COLLAPSED = 1e-3  # of the spread of answers that there was before: a sound network keeps most, a collapsed one nothing


class DeepSvddSettings(DetectorSettings):
    """All that decides what `DeepSvddDetector` computes, but for the data, the seed and the precision."""

    pretraining: TrainingSettings
    training: TrainingSettings


# Paper: Ruff et al.'s for CIFAR-10, 350 epochs of pretraining and 150 of training.
# Differs from the reference: the same for every data set, where they have a smaller network for MNIST.
RUFF = TrainingSettings(
    optimiser="adam",
    learning_rate=1e-4,
    schedule="drop",
    weight_decay=5e-7,
    batch=200,
    epochs=150,
    drop_after=50 / 150,
    epsilon="torch",
)
LIGHT = TrainingSettings(
    optimiser="adam",
    learning_rate=1e-3,
    schedule="cosine",
    weight_decay=5e-7,
    batch=32,
    epochs=30,
    epsilon="torch",
)
PRESETS = {
    "paper": DeepSvddSettings(
        pretraining=RUFF.model_copy(update={"epochs": 350, "drop_after": 250 / 350}),
        training=RUFF,
        holdout=0.0,
        may_collapse=True,
    ),
    # Fewer epochs, in smaller batches; the rate is higher in pretraining alone, which cannot collapse.
    "sound": DeepSvddSettings(
        pretraining=LIGHT, training=LIGHT.model_copy(update={"learning_rate": 1e-4}), holdout=0.2
    ),
}


class DeepSvddRecord(BaseModel):
    """What a model file says of a fitted `DeepSvddDetector` besides its arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    low: float  # the range of contrast among the images it was fitted on
    high: float
    shrunk_to: float = Field(ge=0)  # the share of the variance of answers that training has left

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"a range of contrast ends above where it starts, got {self.low} to {self.high}")
        return self


class Hypersphere(nn.Module):
    """[n, channels, side, side] in [0, 1] to [n]: the squared distance of the network's answers from the centre."""

    centre: Tensor

    def __init__(self, network: nn.Module, code: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("centre", torch.zeros(code))  # in checkpoints and files, it goes where the weights go

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side] to [n]."""
        distance: Tensor = (self.network(x).float() - self.centre).square().sum(1)
        return distance


@dataclass(kw_only=True, eq=False, repr=False)
class DeepSvddDetector(Detector):
    """Finds the images to which a network gives another answer than the one it learned to give to normal images."""

    kind: ClassVar[str] = "deep-svdd"
    Settings: ClassVar = DeepSvddSettings
    PRESETS: ClassVar = PRESETS
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)  # a score is a small difference from the centre

    preset: str | DeepSvddSettings = "sound"

    def _build(self, settings: DeepSvddSettings, side: int, channels: int) -> None:
        self.network_ = Hypersphere(LeNet(channels=channels, side=side), CODE)
        self.decoder_ = LeNetDecoder(channels=channels, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: DeepSvddSettings, run: Run) -> None:
        run.engine.place(self.network_)
        pixels = torch.from_numpy(images).to(run.engine.device)
        self.low_, self.high_ = contrast_range(pixels, settings.training.batch)
        self._pretrain(pixels, settings, run)
        # The same at every resumption, since the first stage's end is kept; the second's checkpoint holds it, too.
        answers = self._through(self.network_.network, images, settings.training.batch)
        self.network_.centre.copy_(torch.from_numpy(clear_of_zero(answers.mean(axis=0))))
        before = self._spread(images, settings)
        self._gather(pixels, settings, run)
        self.shrunk_to_ = self._spread(images, settings) / before if before > 0 else 1.0
        if self._collapsed() and not settings.may_collapse:
            raise Collapsed(f"{self._collapsed()[0]}; fit it with another seed, more images or other settings")

    def _pretrain(self, pixels: Tensor, settings: DeepSvddSettings, run: Run) -> None:
        """Step 2, a stage of its own: images are redrawn from their code with the least squared error."""
        whole = run.engine.place(nn.Sequential(self.network_.network, self.decoder_))
        network = run.engine.accelerated(whole)

        def loss(step: Step) -> tuple[Tensor, None]:
            batch = self._scaled(pixels[step.rows.to(run.engine.device)])
            return (network(batch).float() - batch).square().flatten(1).sum(1).mean(), None

        run.train(whole, loss, examples=len(pixels), settings=settings.pretraining, stage="pretraining")
        whole.eval()

    def _gather(self, pixels: Tensor, settings: DeepSvddSettings, run: Run) -> None:
        """Step 4: the mean squared distance from the centre is made small."""
        network = run.engine.accelerated(self.network_)

        def loss(step: Step) -> tuple[Tensor, None]:
            return network(self._scaled(pixels[step.rows.to(run.engine.device)])).mean(), None

        run.train(self.network_, loss, examples=len(pixels), settings=settings.training)
        self.network_.eval()

    def _scaled(self, pixels: Tensor) -> Tensor:
        """uint8 [n, h, w, c] to float32 [n, c, h, w]: step 1, in [0, 1] for the images it was fitted on."""
        x = (contrasted(pixels) - self.low_) / (self.high_ - self.low_)
        return x.permute(0, 3, 1, 2).contiguous(memory_format=self.engine_.layout)

    def _through(self, network: nn.Module, images: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
        """What a network gives for each image, in passes of that many."""
        given = []
        for batch in passes(images, size):
            with torch.inference_mode(), self.engine_.autocast():
                given.append(network(self._scaled(torch.from_numpy(batch).to(self.engine_.device))).float().cpu())
        return torch.cat(given)[: len(images)].double().numpy()

    def _spread(self, images: NDArray[np.uint8], settings: DeepSvddSettings) -> float:
        """The variance of the answers to some of the images and to their negatives.

        The images alone would not do: to bring their answers together is what is learned, and a few are learned fully.
        """
        some = images[:: -(-len(images) // LOOKED_AT)]
        answers = self._through(self.network_.network, np.concatenate([some, 255 - some]), settings.training.batch)
        return float(answers.var(axis=0).sum())

    def _collapsed(self) -> list[str]:
        """A line where training has left next to nothing of the differences between answers."""
        if self.shrunk_to_ >= COLLAPSED:
            return []
        return [
            "the detector has collapsed: its network answers nearly the same to images and their negatives, "
            f"with {self.shrunk_to_:.1g} of the variance that there was before training"
        ]

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        return self._collapsed()

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 5."""
        return -self._through(self.network_, images, self.engine_.images_per_pass)

    def _effort(self, images: int) -> Effort:
        policy, settings = self.policy_, self.settings_
        answering = multiply_accumulates(self.network_, channels=policy.channels, side=policy.side)
        # A file keeps no decoder, so its layers are counted where they need no weights.
        whole = copy.deepcopy(nn.Sequential(self.network_.network, self.decoder_)).to("meta")
        drawing = multiply_accumulates(whole, channels=policy.channels, side=policy.side)
        drawn, gathered = settings.pretraining.seen(images), settings.training.seen(images)
        macs = TRAINING_FACTOR * (drawn * drawing + gathered * answering) + images * answering
        return Effort(drawn + gathered + images, macs, 1, answering)

    def _tensors(self) -> Arrays:
        return weights_of(self.network_)

    def _learned(self) -> DeepSvddRecord:
        return DeepSvddRecord(low=self.low_, high=self.high_, shrunk_to=self.shrunk_to_)

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        record = DeepSvddRecord.model_validate(learned)
        self.low_, self.high_, self.shrunk_to_ = record.low, record.high, record.shrunk_to
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        set_weights(self.network_, tensors)
        self.engine_.place(self.network_).eval()


def contrasted(pixels: Tensor) -> Tensor:
    """uint8 [n, h, w, c] to float32: each value less its image's mean, over the mean distance of values from that."""
    values = pixels.flatten(1).long()
    size = values.shape[1]
    # In whole numbers, all `size` times as large, sums are exact in whatever order they are taken.
    distances = size * values - values.sum(1, keepdim=True)
    total = distances.abs().sum(1, keepdim=True)
    # Differs from the reference: a flat image, which has no contrast, becomes 0 and not 0/0.
    return (distances * (size / total.clamp(min=1))).view(pixels.shape)


def contrast_range(pixels: Tensor, size: int) -> tuple[float, float]:
    """The least and the largest value after `contrasted`, looked for so many images at a time."""
    pieces = (contrasted(pixels[start : start + size]) for start in range(0, len(pixels), size))
    found = [(float(piece.min()), float(piece.max())) for piece in pieces]
    low, high = min(low for low, _ in found), max(high for _, high in found)
    return low, high if high > low else low + 1


def clear_of_zero(mean: NDArray[np.float64]) -> NDArray[np.float32]:
    """[code]: the centre, the mean of answers with what is near 0 moved away from it, keeping its sign.

    A network can answer 0 by having no weights, whatever it is shown.
    """
    # Differs from the reference, which leaves a mean of exactly 0 there.
    return np.where(np.abs(mean) < CLEAR, np.where(mean < 0, -CLEAR, CLEAR), mean).astype(np.float32)
