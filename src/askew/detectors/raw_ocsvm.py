"""A one-class support vector machine on the pixels themselves: what any deep method should beat.

Schölkopf et al., 2001; the paper's RAW-OC-SVM. A Gaussian kernel says how near an image is to normal ones, pixel by
pixel, and the machine draws a smooth border around most of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import Arrays
from askew.detectors.learning import Run
from askew.detectors.one_class_svm import PAPER_GRID, SOUND_GRID, Svm, SvmRecord, SvmSettings
from askew.detectors.settings import DetectorSettings
from askew.errors import InvalidInput

PIXEL = 2 / 255  # Paper: pixels lie in [-1, 1].


class RawOcsvmSettings(DetectorSettings):
    """All that decides what `RawOcsvmDetector` computes, but for the data and the seed."""

    svm: SvmSettings


PRESETS = {
    # Paper: all images, of CatsVsDogs a random 5,000, and the machine with the best TEST AUROC: see the protocol.
    "paper": RawOcsvmSettings(
        svm=PAPER_GRID.model_copy(update={"most_images": {64: 5000}}), holdout=0.0, may_collapse=True
    ),
    "sound": RawOcsvmSettings(svm=SOUND_GRID, holdout=0.2),
}


@dataclass(kw_only=True, eq=False, repr=False)
class RawOcsvmDetector(Detector):
    """Finds the images that are far from all normal ones, pixel by pixel."""

    kind: ClassVar[str] = "raw-ocsvm"
    Settings: ClassVar = RawOcsvmSettings
    PRESETS: ClassVar = PRESETS

    preset: str | RawOcsvmSettings = "sound"

    def _build(self, settings: RawOcsvmSettings, side: int, channels: int) -> None:
        pass  # a machine has nothing that could be untrained

    def _learn(self, images: NDArray[np.uint8], settings: RawOcsvmSettings, run: Run) -> None:
        self.svm_ = Svm.fit(_rows(images), PIXEL, settings.svm, side=images.shape[1], seed=run.seed)

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.svm_.normality(_rows(images))

    def candidate_scores(self, X: Any) -> Mapping[str, NDArray[np.float64]]:
        """The normality of X by every machine of the grid; only a fit with a grid has one, and no file keeps it."""
        check_is_fitted(self, "policy_")
        if not self.svm_.grid:
            raise InvalidInput('there is no grid to choose from; fit with preset="paper"')
        return self._over_batches(X, lambda images: self.svm_.candidates(_rows(images)))

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        return self.svm_.weaknesses()

    def _effort(self, images: int) -> Effort:
        return Effort(images, self.svm_.fit_macs, 1, self.svm_.macs_per_row)

    def _tensors(self) -> Arrays:
        return self.svm_.tensors()

    def _learned(self) -> SvmRecord:
        return self.svm_.record()

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        like = np.zeros((0, self.policy_.side**2 * self.policy_.channels), np.uint8)
        self.svm_ = Svm.restored(tensors, SvmRecord.model_validate(learned), like=like, unit=PIXEL)


def _rows(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images.reshape(len(images), -1)
