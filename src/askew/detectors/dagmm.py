"""A mixture of Gaussians over what an autoencoder makes of an image. The paper's DAGMM (Zong et al., 2018).

    1. describe an image by its code, and by how well it is redrawn from that        networks/coder.py
    2. a second network says whose a description is; its answers make the mixture    gaussian_mixture.py
    3. train both to redraw normal images well and to find them likely               training.py
    4. an image is as normal as its description is likely

The preset `paper` scores with the mixture of the last batch and an energy that has a cap, as the authors' program does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import STRICT, Arrays
from askew.detectors.gaussian_mixture import CappedMixture, Mixture
from askew.detectors.learning import Run
from askew.detectors.passes import passes
from askew.detectors.settings import DetectorSettings
from askew.engine import Precision
from askew.errors import Collapsed
from askew.networks import TRAINING_FACTOR, Decoder, Encoder, multiply_accumulates, set_weights, weights_of
from askew.networks.coder import initialise
from askew.training import Step, TrainingSettings, reporter

CODE = 5
FEATURES = CODE + 2
COMPONENTS = 3
ASKED = (64, 10)  # the widths of the second network
DROPPED = 0.5
ENERGY_WEIGHT = 0.01
PRECISION_WEIGHT = 0.0005  # it keeps codes from shrinking to a point, which would be likely beyond bounds
RIDGE, RIDGE_NOISE = 1e-3, 1e-4  # added to variances in training
SHORTEST = 1e-12  # the square of a length that divides is no less


class DagmmSettings(DetectorSettings):
    """All that decides what `DagmmDetector` computes, but for the data and the seed."""

    training: TrainingSettings
    mixture: Literal["last-batch", "all-images"]  # of what; the first is the program's, its arithmetic included


PRESETS = {
    # Paper: the program's batch; the text says 128.
    "paper": DagmmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="constant", weight_decay=0, batch=256, epochs=200
        ),
        mixture="last-batch",
        holdout=0.0,
        may_collapse=True,
    ),
    # A fifth of the paper's training on 5,000 images, and enough on a few; the rate falls, so that it ends at rest.
    "sound": DagmmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="cosine", weight_decay=0, batch=256, examples=200_000
        ),
        mixture="all-images",
        holdout=0.2,
    ),
}


@dataclass(kw_only=True, eq=False, repr=False)
class DagmmDetector(Detector):
    """Finds the images that an autoencoder of normal images describes, or redraws, in an unlikely way."""

    kind: ClassVar[str] = "dagmm"
    Settings: ClassVar = DagmmSettings
    PRESETS: ClassVar = PRESETS
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)  # bf16 would round descriptions to eight bits

    preset: str | DagmmSettings = "sound"

    def _build(self, settings: DagmmSettings, side: int, channels: int) -> None:
        self.network_ = DagmmNetwork(channels=channels, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: DagmmSettings, run: Run) -> None:
        run.engine.place(self.network_)
        self._train_networks(images, settings, run)
        if settings.mixture == "last-batch":
            # Paper: what the last batch gave while it was trained on, with dropped answers and noise.
            self.mixture_: Mixture = self.network_.last_mixture()
        else:
            self.mixture_ = self._mixture_of(images, settings, run)
        self.flaws_: list[str] = []
        if self.mixture_.is_singular(len(images)):
            self.flaws_.append("the mixture has collapsed: a covariance is singular, since a feature tells nothing new")
            if not settings.may_collapse:
                raise Collapsed(f"{self.flaws_[0]}; fit it with another seed, more images or other settings")
        if self.mixture_.alive.sum() < 2:
            # Not a collapse: where all normal images are of a kind, one Gaussian is what there is to find.
            self.flaws_.append(f"of the mixture's {COMPONENTS} components one alone is alive: all normals are one kind")

    def _train_networks(self, images: NDArray[np.uint8], settings: DagmmSettings, run: Run) -> None:
        """Steps 1 to 3; dropout's masks are drawn here, since torch's own takes no generator."""
        pixels = torch.from_numpy(images).to(run.engine.device)
        network = run.engine.accelerated(self.network_)

        def loss(step: Step) -> tuple[Tensor, None]:
            batch = run.engine.scaled(pixels[step.rows.to(run.engine.device)])
            kept = [torch.rand(len(batch), width, generator=step.draw) >= DROPPED for width in ASKED]
            redrawn, features, answers = network(batch, [mask.to(run.engine.device) for mask in kept])
            if settings.mixture == "last-batch":
                # Paper: what is added to variances is random, and new in every step.
                noise = torch.randn(COMPONENTS, FEATURES, generator=step.draw)
                mixture: Mixture = CappedMixture.of(features, answers).widened(RIDGE + RIDGE_NOISE * noise)
                self.network_.remember(mixture)
                precise = mixture.precisions().sum()
            else:
                mixture = Mixture.of(features, answers).widened(torch.full((COMPONENTS, FEATURES), RIDGE))
                # Differs from the reference: of the code alone. If redrawing all images equally well is costly, it pays
                # to redraw some normal ones badly.
                precise = mixture.precisions()[:, :CODE].sum()
            unlikely = ENERGY_WEIGHT * mixture.energy(features).mean() + PRECISION_WEIGHT * precise
            return functional.mse_loss(redrawn, batch) + unlikely.float().to(run.engine.device), None

        run.train(self.network_, loss, examples=len(images), settings=settings.training)
        self.network_.eval()

    def _mixture_of(self, images: NDArray[np.uint8], settings: DagmmSettings, run: Run) -> Mixture:
        """The mixture of all images, described as they are when they are scored."""
        report = reporter("fitting the mixture", run.watch)
        features, answers = [], []
        size = min(settings.training.batch, len(images))
        for batch in passes(images, size):
            described, answered = self._described(batch)
            features.append(described)
            answers.append(answered)
            report(min(size * len(features), len(images)), len(images))
        return Mixture.of(torch.cat(features)[: len(images)], torch.cat(answers)[: len(images)])

    def _described(self, batch: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """[n, 7] and [n, 3]: what describes the images, and whose they are."""
        with torch.inference_mode(), self.engine_.autocast():
            pixels = self.engine_.scaled(torch.from_numpy(batch).to(self.engine_.device))
            _, features, answers = self.network_(pixels)
        return features, answers

    def _energies(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        batches = passes(images, self.engine_.images_per_pass)
        energies = torch.cat([self.mixture_.energy(self._described(batch)[0]) for batch in batches])
        return energies[: len(images)].double().numpy()

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 4."""
        energies = self._energies(images)
        if isinstance(self.mixture_, CappedMixture):
            # Differs from the reference: 1 above the cap, which orders images as theirs does, 1 above all other images;
            # but an image's score does not depend on its companions.
            energies[~np.isfinite(energies)] = self.mixture_.cap + 1
        return -energies

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        lines = list(self.flaws_)
        if isinstance(self.mixture_, CappedMixture):
            energies = self._energies(images)
            odd, tied = (~np.isfinite(energies)).sum(), (energies > self.mixture_.cap - 1e-4).sum()
            if odd:
                lines.append(
                    f"of {len(images)} normal images, {odd} have an energy that is not finite, and score least"
                )
            if tied > len(images) / 2:
                lines.append(
                    f"of {len(images)} normal images, {tied} have all but the largest energy there is, and tie"
                )
        return lines

    def _effort(self, images: int) -> Effort:
        policy, settings = self.policy_, self.settings_
        coding = multiply_accumulates(self.network_, channels=policy.channels, side=policy.side)
        trained = settings.training.seen(images)
        described = 0 if settings.mixture == "last-batch" else images
        return Effort(trained + described, (TRAINING_FACTOR * trained + described) * coding, 1, coding)

    def _tensors(self) -> Arrays:
        return weights_of(self.network_) | self.mixture_.tensors()

    def _learned(self) -> "DagmmRecord":
        return DagmmRecord()

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        DagmmRecord.model_validate(learned)
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        set_weights(self.network_, tensors)
        self.engine_.place(self.network_).eval()
        kind = CappedMixture if self.settings_.mixture == "last-batch" else Mixture
        self.mixture_ = kind.restored(tensors, components=COMPONENTS, features=FEATURES)


class DagmmRecord(BaseModel):
    """What a model file says of a `DagmmDetector` besides its arrays: nothing."""

    model_config = STRICT


class DagmmNetwork(nn.Module):
    """[n, channels, side, side] in [-1, 1] to the same redrawn, to [n, 7] that describe it and [n, 3]: whose it is.

    The last batch's mixture is kept among the weights, so that a checkpoint has it.
    """

    shares: Tensor
    means: Tensor
    covariances: Tensor

    def __init__(self, *, channels: int, side: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels=channels, code=CODE, side=side)
        self.decoder = Decoder(channels=channels, code=CODE, side=side)
        self.asked = nn.ModuleList([nn.Linear(*widths) for widths in pairwise((FEATURES, *ASKED, COMPONENTS))])
        initialise(self.asked)
        self.register_buffer("shares", torch.zeros(COMPONENTS))
        self.register_buffer("means", torch.zeros(COMPONENTS, FEATURES))
        self.register_buffer("covariances", torch.zeros(COMPONENTS, FEATURES, FEATURES))

    def forward(self, x: Tensor, kept: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """With masks of what dropout keeps, [n, 64] and [n, 10], where it is to drop any."""
        code = self.encoder(x)
        redrawn = self.decoder(code)
        features = torch.cat([code, likeness(x.flatten(1), redrawn.flatten(1))], dim=1)
        *hidden, last = self.asked
        answers = features
        for number, layer in enumerate(hidden):
            answers = layer(answers).tanh()
            if kept:
                answers = answers * kept[number] / (1 - DROPPED)
        return redrawn, features, last(answers).softmax(dim=1)

    def remember(self, mixture: Mixture) -> None:
        """Keep the last batch's mixture."""
        with torch.no_grad():
            self.shares.copy_(mixture.shares)
            self.means.copy_(mixture.means)
            self.covariances.copy_(mixture.covariances)

    def last_mixture(self) -> CappedMixture:
        """The one that was kept."""
        return CappedMixture(self.shares.cpu(), self.means.cpu(), self.covariances.cpu())


def likeness(given: Tensor, redrawn: Tensor) -> Tensor:
    """[n, 2] of rows [n, d]: their Euclidean distance relative to the first's length, and their cosine."""
    length, other = (rows.square().sum(1).clamp_min(SHORTEST) for rows in (given, redrawn))
    distance = ((given - redrawn).square().sum(1) / length).clamp_min(SHORTEST).sqrt()
    return torch.stack([distance, (given * redrawn).sum(1) / (length * other).sqrt()], dim=1)
