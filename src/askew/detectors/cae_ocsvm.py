"""A one-class support vector machine on what a convolutional autoencoder keeps of an image.

The paper's CAE-OC-SVM:

    1. an autoencoder learns to redraw normal images from 256 numbers     training.py, networks/coder.py
    2. a machine draws a smooth border around most of those numbers       one_class_svm.py
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn import functional

from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import Arrays
from askew.detectors.learning import Run
from askew.detectors.one_class_svm import PAPER_GRID, SOUND_GRID, Svm, SvmRecord, SvmSettings
from askew.detectors.passes import passes
from askew.detectors.settings import DetectorSettings
from askew.engine import Precision
from askew.errors import InvalidInput
from askew.networks import TRAINING_FACTOR, Decoder, Encoder, multiply_accumulates, set_weights, weights_of
from askew.training import Step, TrainingSettings

CODE = 256
# Differs from the reference: codes lie in [-1, 1] and are rounded to this, so that distances between them are exact.
UNIT = 2.0**-14


class CaeOcsvmSettings(DetectorSettings):
    """All that decides what `CaeOcsvmDetector` computes, but for the data, the seed and the precision."""

    training: TrainingSettings
    svm: SvmSettings


PRESETS = {
    # Paper: 200 epochs; of CatsVsDogs a random 2,500 codes; the machine with the best TEST AUROC: see the protocol.
    "paper": CaeOcsvmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="constant", weight_decay=0, batch=128, epochs=200
        ),
        svm=PAPER_GRID.model_copy(update={"most_images": {64: 2500}}),
        holdout=0.0,
        may_collapse=True,
    ),
    "sound": CaeOcsvmSettings(
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="cosine", weight_decay=0, batch=128, epochs=50
        ),
        svm=SOUND_GRID,
        holdout=0.2,
    ),
}


@dataclass(kw_only=True, eq=False, repr=False)
class CaeOcsvmDetector(Detector):
    """Finds the images that are far from all normal ones in what an autoencoder of normal images keeps of them."""

    kind: ClassVar[str] = "cae-ocsvm"
    Settings: ClassVar = CaeOcsvmSettings
    PRESETS: ClassVar = PRESETS
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)  # bf16 would round the codes to eight bits

    preset: str | CaeOcsvmSettings = "sound"

    def _build(self, settings: CaeOcsvmSettings, side: int, channels: int) -> None:
        self.network_: nn.Module = nn.Sequential(Encoder(channels=channels, code=CODE, side=side), nn.Tanh())
        self.decoder_ = Decoder(channels=channels, code=CODE, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: CaeOcsvmSettings, run: Run) -> None:
        self._train_autoencoder(images, settings, run)
        self.svm_ = Svm.fit(self._codes(images), UNIT, settings.svm, side=images.shape[1], seed=run.seed)

    def _train_autoencoder(self, images: NDArray[np.uint8], settings: CaeOcsvmSettings, run: Run) -> None:
        """Step 1: pixels in [-1, 1] are drawn from their code with the least mean squared error."""
        pixels = torch.from_numpy(images).to(run.engine.device)
        whole = run.engine.place(nn.Sequential(self.network_, self.decoder_))
        network = run.engine.accelerated(whole)

        def loss(step: Step) -> tuple[Tensor, None]:
            batch = run.engine.scaled(pixels[step.rows.to(run.engine.device)])
            return functional.mse_loss(network(batch).float(), batch), None

        run.train(whole, loss, examples=len(images), settings=settings.training)
        whole.eval()

    def _codes(self, images: NDArray[np.uint8]) -> NDArray[np.int16]:
        """[n, 256] in units of `UNIT`."""
        codes = []
        for batch in passes(images, self.engine_.images_per_pass):
            with torch.inference_mode(), self.engine_.autocast():
                code = self.network_(self.engine_.scaled(torch.from_numpy(batch).to(self.engine_.device)))
            codes.append((code.float() / UNIT).round().to(torch.int16).cpu())
        return torch.cat(codes)[: len(images)].numpy()

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 2."""
        return self.svm_.normality(self._codes(images))

    def candidate_scores(self, X: Any) -> Mapping[str, NDArray[np.float64]]:
        """The normality of X by every machine of the grid; only a fit with a grid has one, and no file keeps it."""
        check_is_fitted(self, "policy_")
        if not self.svm_.grid:
            raise InvalidInput('there is no grid to choose from; fit with preset="paper"')
        return self._over_batches(X, lambda images: self.svm_.candidates(self._codes(images)))

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        return self.svm_.weaknesses()

    def _effort(self, images: int) -> Effort:
        policy = self.policy_
        encoding = multiply_accumulates(self.network_, channels=policy.channels, side=policy.side)
        # A file keeps no decoder, so its layers are counted where they need no weights.
        whole = copy.deepcopy(nn.Sequential(self.network_, self.decoder_)).to("meta")
        coding = multiply_accumulates(whole, channels=policy.channels, side=policy.side)
        trained = self.settings_.training.seen(images)
        macs = TRAINING_FACTOR * trained * coding + images * encoding + self.svm_.fit_macs
        return Effort(trained + images, macs, 1, encoding + self.svm_.macs_per_row)

    def _tensors(self) -> Arrays:
        return weights_of(self.network_) | self.svm_.tensors()

    def _learned(self) -> SvmRecord:
        return self.svm_.record()

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        set_weights(self.network_, tensors)
        self.network_ = self.engine_.place(self.network_).eval()
        like = np.zeros((0, CODE), np.int16)
        self.svm_ = Svm.restored(tensors, SvmRecord.model_validate(learned), like=like, unit=UNIT)
