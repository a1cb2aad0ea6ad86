"""A deep energy-based model: an energy that is low where normal images are. The paper's DSEBM (Zhai et al., 2016).

    1. the energy of an image: half its squared distance from one image, less all that an encoder finds in it
    2. train it so that a step down the energy takes noise away from a normal image     training.py, networks/coder.py
    3. an image is as normal as its energy is low

Training sees the energy's gradient alone, and scoring the energy alone.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.nn import functional

from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import STRICT, Arrays
from askew.detectors.learning import Run
from askew.detectors.passes import passes
from askew.detectors.settings import DetectorSettings
from askew.engine import Precision
from askew.errors import Collapsed
from askew.networks import TRAINING_FACTOR, Encoder, multiply_accumulates, set_weights, weights_of
from askew.training import Step, TrainingSettings

CODE = 256
EACH = (0, 2, 3)  # what batch normalisation averages over


class DsebmSettings(DetectorSettings):
    """All that decides what `DsebmDetector` computes, but for the data and the seed."""

    training: TrainingSettings
    noise: float = Field(gt=0, le=100)  # its standard deviation; pixels lie in [-1, 1]


PRESETS = {
    # Paper: noise on the input, in training only; no hold-out, so no threshold unless asked.
    "paper": DsebmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="constant", weight_decay=0, batch=128, epochs=200
        ),
        noise=0.5,
        holdout=0.0,
        may_collapse=True,
    ),
    # A fifth of the paper's training on 5,000 images, and enough on a few; the rate falls, so that it ends at rest.
    "sound": DsebmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="cosine", weight_decay=0, batch=128, examples=200_000
        ),
        noise=0.5,
        holdout=0.2,
    ),
}


@dataclass(kw_only=True, eq=False, repr=False)
class DsebmDetector(Detector):
    """Finds the images whose energy is high, by an energy that is low where normal images are."""

    kind: ClassVar[str] = "dsebm"
    Settings: ClassVar = DsebmSettings
    PRESETS: ClassVar = PRESETS
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)  # a gradient of a gradient is too small for bf16

    preset: str | DsebmSettings = "sound"

    def _build(self, settings: DsebmSettings, side: int, channels: int) -> None:
        self.network_ = EnergyNetwork(channels=channels, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: DsebmSettings, run: Run) -> None:
        """Step 2, with new noise in every step."""
        run.engine.place(self.network_)
        pixels = torch.from_numpy(images).to(run.engine.device)
        network = run.engine.accelerated(self.network_)

        def loss(step: Step) -> tuple[Tensor, None]:
            clean = run.engine.scaled(pixels[step.rows.to(run.engine.device)])
            noise = settings.noise * torch.randn(clean.shape, generator=step.draw)
            return functional.mse_loss(network(clean + noise.to(run.engine.device)), clean), None

        run.train(self.network_, loss, examples=len(images), settings=settings.training)
        self.network_.eval()

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 3, without noise."""
        prior, found = self._terms(images)
        return found - prior

    def _terms(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[n] twice: the two terms of step 1, whose difference is the energy."""
        terms = []
        for batch in passes(images, self.engine_.images_per_pass):
            with torch.inference_mode(), self.engine_.autocast():
                pixels = self.engine_.scaled(torch.from_numpy(batch).to(self.engine_.device))
                terms.append(torch.stack(self.network_.terms(pixels)).cpu().double())
        prior, found = torch.cat(terms, dim=1)[:, : len(images)].numpy()
        return prior, found

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        if self._terms(images)[1].any():
            return []
        line = "the encoder has fallen silent: it finds nothing in normal images, whose energy is a plain distance"
        if self.settings_.may_collapse:
            return [line]
        raise Collapsed(f"{line}; fit it with another seed, more images or a lower learning rate")

    def _effort(self, images: int) -> Effort:
        policy = self.policy_
        encoding = multiply_accumulates(self.network_.encoder, channels=policy.channels, side=policy.side)
        trained = self.settings_.training.seen(images)
        # Forward to the energy, as much again back to its gradient, and both of these backward.
        return Effort(trained, 2 * TRAINING_FACTOR * trained * encoding, 1, encoding)

    def _tensors(self) -> Arrays:
        return weights_of(self.network_)

    def _learned(self) -> "DsebmRecord":
        return DsebmRecord()

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        DsebmRecord.model_validate(learned)
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        set_weights(self.network_, tensors)
        self.engine_.place(self.network_).eval()


class DsebmRecord(BaseModel):
    """What a model file says of a `DsebmDetector` besides its arrays: nothing."""

    model_config = STRICT


class EnergyNetwork(nn.Module):
    """[n, channels, side, side] in [-1, 1] to the same less the energy's gradient: what the noise was added to."""

    def __init__(self, *, channels: int, side: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels=channels, code=CODE, side=side)
        self.centre = nn.Parameter(torch.zeros(channels, side, side))

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n] twice: half the squared distance from the centre, and all that the encoder finds, which is subtracted."""
        return (x - self.centre).square().flatten(1).sum(1) / 2, functional.relu(self.encoder(x)).sum(1)

    def energy(self, x: Tensor) -> Tensor:
        """[n]: step 1."""
        prior, found = self.terms(x)
        return prior - found

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side]: one step down the energy, in training mode."""
        return self.centre + self.slope(x)  # x - ((x - centre) - slope)

    def slope(self, x: Tensor) -> Tensor:
        """[n, channels, side, side]: the gradient of all that the encoder finds in the batch, in training mode.

        Written out as the encoder run backward, it is an ordinary network, and faster to train than autograd's
        gradient of a gradient. A mean or spread of the batch is of all its images, and so is the gradient.
        """
        layers = self.encoder.layers
        convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
        # Turned by half a turn, what 'same' pads comes before and not after, and torch pads it without a copy.
        kernels = [convolution.weight.flip(2, 3) for convolution in convolutions]
        x = x.flip(2, 3)
        passed = []
        for convolution, norm, kernel in zip(convolutions, norms, kernels, strict=True):
            x = functional.conv2d(x, kernel, convolution.bias, stride=2, padding=1)
            with torch.no_grad():
                norm(x)  # for its running statistics
            x = x - x.mean(EACH, keepdim=True)
            scale = (x.square().mean(EACH, keepdim=True) + norm.eps).rsqrt()
            x = x * scale
            weight, bias = (value.view(1, -1, 1, 1) for value in (norm.weight, norm.bias))
            standard, x = x, functional.relu(torch.addcmul(bias, x, weight))
            passed.append((kernel, standard, scale * weight, x > 0))
        code = self.encoder.dense(x.flip(2, 3).flatten(1))
        back: Tensor = ((code > 0).to(x.dtype) @ self.encoder.dense.weight).view_as(x).flip(2, 3)
        for kernel, standard, scale, active in reversed(passed):
            back = back * active
            mean, along = back.mean(EACH, keepdim=True), (back * standard).mean(EACH, keepdim=True)
            back = (back - mean - standard * along) * scale
            back = functional.conv_transpose2d(back, kernel, stride=2, padding=1, output_padding=1)
        return back.flip(2, 3)
