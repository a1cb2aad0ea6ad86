"""The method of the paper, Algorithm 1. READ FIRST.

    1. make views of every normal image under known transforms        geometry/transforms.py
    2. train a classifier to tell which transform made a view         training.py, networks/
    3. per transform, fit a Dirichlet to its answers on normals       geometry/dirichlet.py
    4. an image is as normal as its views' answers are likely         geometry/normality.py

What surrounds it (reading images, hold-out, threshold, verdicts, files) is every detector's and lives in contract.py.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from askew.detectors.blindness import open_questions, recognition
from askew.detectors.contract import Detector
from askew.detectors.effort import Effort
from askew.detectors.files import Arrays
from askew.detectors.geometric_record import GeometricRecord, alphas_by_name, alphas_from
from askew.detectors.learning import Run
from askew.detectors.passes import passes
from askew.detectors.presets import PRESETS, GeometricSettings
from askew.errors import InvalidInput
from askew.geometry import TransformSet, dirichlet_normality, fit_dirichlet_moments
from askew.geometry.augment import jitter
from askew.geometry.labels import SelfLabels
from askew.networks import TRAINING_FACTOR, multiply_accumulates, set_weights, weights_of
from askew.training import Step, reporter


@dataclass(kw_only=True, eq=False, repr=False)
class GeometricDetector(Detector):
    """Finds the images that do not belong, by how surely it recognises known transforms of them.

    `preset` names settings or is a `GeometricSettings`; `transforms` overrides its set.
    """

    kind: ClassVar[str] = "geometric"
    Settings: ClassVar = GeometricSettings
    PRESETS: ClassVar = PRESETS

    preset: str | GeometricSettings = "fast"
    transforms: TransformSet | None = None

    def _build(self, settings: GeometricSettings, side: int, channels: int) -> None:
        """The transforms, what is asked about them, and an untrained network to answer."""
        settings.check_side(side)
        self.transforms_ = self.transforms or settings.transforms.at(side)
        if self.transforms_.side != side:
            raise InvalidInput(f"the transforms are for a side of {self.transforms_.side}, the images have {side}")
        if len(self.transforms_) < 2:
            raise InvalidInput("one transform leaves nothing to recognise; give two or more, such as all four turns")
        self.questions_ = SelfLabels(self.transforms_, settings.question)
        classes = sum(self.questions_.classes)
        self.network_ = settings.network_for(side).build(channels=channels, classes=classes, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        self.network_ = run.engine.place(self.network_)
        self._train_classifier(images, settings, run)
        self._fit_dirichlets(images, settings, run)

    def _train_classifier(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        """Steps 1 and 2: a row is an image under a transform, and its view is made when its batch comes up."""
        pixels = torch.from_numpy(images).to(run.engine.device)
        labels = torch.from_numpy(self.questions_.labels).to(run.engine.device)
        network = run.engine.accelerated(self.network_)

        def loss(step: Step) -> tuple[Tensor, Tensor]:
            rows = step.rows.to(run.engine.device)
            image, transform = rows // len(self.transforms_), rows % len(self.transforms_)
            varied = jitter(pixels[image], flip=settings.jitter_flip, shift=settings.jitter_shift, draw=step.draw)
            logits = network(run.engine.scaled(self.transforms_.view(varied, transform))).float()
            pairs = list(zip(logits.split(self.questions_.classes, dim=1), labels[transform].unbind(1), strict=True))
            hits = torch.stack([(answer.argmax(1) == right).float().mean() for answer, right in pairs])
            return torch.stack([functional.cross_entropy(*pair) for pair in pairs]).sum(), hits.mean()

        run.train(self.network_, loss, examples=len(images) * len(self.transforms_), settings=settings.training)
        self.network_.eval()

    def _fit_dirichlets(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        """Step 3, from running means of the answers, which are never kept."""
        # Paper: on all images that were trained on.
        if settings.alpha_images is not None and settings.alpha_images < len(images):
            chosen = np.random.default_rng(run.seed).choice(len(images), settings.alpha_images, replace=False)
            images = images[np.sort(chosen)]
        mean = np.zeros((len(self.transforms_), sum(self.questions_.classes)))
        mean_log = np.zeros_like(mean)
        report = reporter("fitting Dirichlets", run.watch)
        size = run.engine.images_per_pass
        for start in range(0, len(images), size):
            answers = self._answers(images[start : start + size])
            mean += np.exp(answers).sum(axis=0) / len(images)
            mean_log += answers.sum(axis=0) / len(images)
            report(start + len(answers), len(images))
        means = zip(self.questions_.split(mean), self.questions_.split(mean_log), strict=True)
        self.alphas_ = [fit_dirichlet_moments(mean, mean_log) for mean, mean_log in means]

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 4, over all questions."""
        answers = self.questions_.split(self._answers(images))
        scores = [dirichlet_normality(answer, alphas) for answer, alphas in zip(answers, self.alphas_, strict=True)]
        return np.asarray(np.sum(scores, axis=0))

    def _answers(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[n, t, classes]: log-probabilities for every view, question after question."""
        answers = []
        for batch in passes(images, self.engine_.images_per_pass):
            views = self.transforms_.apply(torch.from_numpy(batch).to(self.engine_.device)).flatten(0, 1)
            with torch.inference_mode(), self.engine_.autocast():
                logits: Any = torch.cat([self.network_(piece) for piece in self.engine_.pieces(views)]).cpu().double()
            split = logits.split(self.questions_.classes, dim=1)
            answers.append(torch.cat([part.log_softmax(dim=1) for part in split], dim=1))
        return torch.cat(answers).view(-1, len(self.transforms_), sum(self.questions_.classes))[: len(images)].numpy()

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        self.recognition_ = recognition(self.questions_, self._answers(images))
        return open_questions(self.questions_, self.recognition_)

    def _effort(self, images: int) -> Effort:
        per_view = multiply_accumulates(self.network_, channels=self.policy_.channels, side=self.policy_.side)
        views, settings = len(self.transforms_), self.settings_
        trained = settings.training.seen(images * views)
        answered = min(images, settings.alpha_images or images) * views
        return Effort(trained + answered, (TRAINING_FACTOR * trained + answered) * per_view, views, views * per_view)

    def _tensors(self) -> Arrays:
        return weights_of(self.network_) | alphas_by_name(self.questions_, self.alphas_)

    def _learned(self) -> GeometricRecord:
        return GeometricRecord.of(self.transforms_, self.recognition_)

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        record = GeometricRecord.model_validate(learned)
        self.recognition_, self.transforms = record.recognition, record.transform_set(self.policy_.side)
        with torch.device("meta"):
            self._build(self.settings_, self.policy_.side, self.policy_.channels)
        set_weights(self.network_, tensors)
        self.network_ = self.engine_.place(self.network_).eval()
        self.alphas_ = alphas_from(self.questions_, tensors)
