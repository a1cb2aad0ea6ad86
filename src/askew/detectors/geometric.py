"""The method of the paper, Algorithm 1. READ FIRST.

    1. make views of every normal image under known transforms        geometry/transforms.py
    2. train a classifier to tell which transform made a view         training.py, networks/
    3. per transform, fit a Dirichlet to its answers on normals       geometry/dirichlet.py
    4. an image is as normal as its views' answers are likely         geometry/normality.py

What surrounds it (reading images, hold-out, threshold, verdicts, files) is every detector's and lives in contract.py.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from askew.detectors.contract import Detector, Run, Size, reporter
from askew.detectors.files import Arrays
from askew.detectors.holdout import Rate
from askew.detectors.presets import GeometricRecord, GeometricSettings
from askew.detectors.presets import preset as preset_named
from askew.errors import BadFile, InvalidInput
from askew.geometry import TransformSet, dirichlet_normality, fit_dirichlet_moments
from askew.geometry.augment import jitter
from askew.geometry.labels import SelfLabels
from askew.networks import set_weights, weights_of
from askew.training import Watch, train

WEAK = 0.25  # of the way from chance to certainty


class GeometricDetector(Detector):
    """Finds the images that do not belong, by how surely it recognises known transforms of them.

    `preset` names settings or is a `GeometricSettings`; `views` overrides its training budget, `transforms` its set.
    """

    kind: ClassVar[str] = "geometric"
    Settings: ClassVar = GeometricSettings

    def __init__(
        self,
        *,
        preset: str | GeometricSettings = "fast",
        views: int | None = None,
        transforms: TransformSet | None = None,
        false_alarm_rate: Rate = "auto",
        holdout: float | None = None,
        cross_fit: int = 0,
        side: int | None = None,
        size: Size = "auto",
        image_shape: tuple[int, ...] | None = None,
        random_state: Any = 0,
        device: str = "auto",
        precision: str = "auto",
        compiled: bool = False,
        checkpoint: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.preset = preset
        self.views = views
        self.transforms = transforms
        self.false_alarm_rate = false_alarm_rate
        self.holdout = holdout
        self.cross_fit = cross_fit
        self.side = side
        self.size = size
        self.image_shape = image_shape
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.compiled = compiled
        self.checkpoint = checkpoint
        self.watch = watch

    def _resolved(self) -> GeometricSettings:
        settings = preset_named(self.preset) if isinstance(self.preset, str) else self.preset
        if self.views is not None:
            if self.views < 1:
                raise InvalidInput(f"views must be 1 or more, got {self.views}")
            training = settings.training.model_copy(update={"epochs": None, "examples": int(self.views)})
            settings = settings.model_copy(update={"training": training})
        return settings

    def _build(self, settings: GeometricSettings, side: int, channels: int) -> None:
        """The transforms, the questions and an untrained network."""
        self.transforms_ = self.transforms or settings.transforms.at(side)
        if self.transforms_.side != side:
            raise InvalidInput(f"the transforms are for a side of {self.transforms_.side}, the images have {side}")
        self.questions_ = SelfLabels(self.transforms_, settings.question)
        classes = sum(self.questions_.classes)
        self.network_ = settings.network_for(side).build(channels=channels, classes=classes, side=side)

    def _learn(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        self.network_ = run.engine.place(self.network_)
        self._train_classifier(images, settings, run)
        self._fit_dirichlets(images, settings, run)

    def _train_classifier(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        """Steps 1 and 2. A row is an image under a transform; its view is made when its batch comes up."""
        engine, transforms = run.engine, self.transforms_
        pixels = torch.from_numpy(images).to(engine.device)
        labels = torch.from_numpy(self.questions_.labels).to(engine.device)
        network = engine.accelerated(self.network_)

        def loss(rows: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
            rows = rows.to(engine.device)
            image, transform = rows // len(transforms), rows % len(transforms)
            varied = jitter(pixels[image], flip=settings.jitter_flip, shift=settings.jitter_shift, draw=draw)
            logits = network(engine.scaled(transforms.view(varied, transform)))
            answers = logits.float().split(self.questions_.classes, dim=1)
            right = labels[transform].unbind(1)
            losses = [functional.cross_entropy(answer, truth) for answer, truth in zip(answers, right, strict=True)]
            hits = [(answer.argmax(1) == truth).float().mean() for answer, truth in zip(answers, right, strict=True)]
            return torch.stack(losses).sum(), torch.stack(hits).mean()

        train(
            self.network_,
            loss,
            examples=len(images) * len(transforms),
            settings=settings.training,
            engine=engine,
            seed=run.seed,
            checkpoint=run.checkpoint,
            watch=run.watch,
        )
        self.network_.eval()

    def _fit_dirichlets(self, images: NDArray[np.uint8], settings: GeometricSettings, run: Run) -> None:
        """Step 3, from running means of the answers, which are never kept."""
        # Paper: on all the images that were trained on.
        if settings.alpha_images is not None and settings.alpha_images < len(images):
            chosen = np.random.default_rng(run.seed).choice(len(images), settings.alpha_images, replace=False)
            images = images[np.sort(chosen)]
        mean = np.zeros((len(self.transforms_), sum(self.questions_.classes)))
        mean_log = np.zeros_like(mean)
        report = reporter("fitting Dirichlets", run.watch)
        for done, image in enumerate(images, 1):
            (answers,) = self._answers(image[None])
            mean += np.exp(answers) / len(images)
            mean_log += answers / len(images)
            report(done, len(images))
        means = zip(self._by_question(mean), self._by_question(mean_log), strict=True)
        self.alphas_ = [fit_dirichlet_moments(mean, mean_log) for mean, mean_log in means]

    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Step 4: higher is more normal."""
        answers = self._by_question(self._answers(images))
        scores = [dirichlet_normality(answer, alphas) for answer, alphas in zip(answers, self.alphas_, strict=True)]
        return np.asarray(sum(scores))

    def _answers(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[n, t, classes]: log-probabilities of every view, question after question."""
        answers = []
        for views in self._views(images):
            with torch.inference_mode(), self.engine_.autocast():
                logits = self.network_(self.engine_.scaled(views))
            split = logits.double().cpu().split(self.questions_.classes, dim=1)
            answers.append(torch.cat([part.log_softmax(dim=1) for part in split], dim=1))
        return torch.cat(answers).view(-1, len(self.transforms_), sum(self.questions_.classes))[: len(images)].numpy()

    def _views(self, images: NDArray[np.uint8]) -> Iterator[Tensor]:
        """All views of one image at a time, or of a fixed number: batches of one shape give one image one score."""
        size, device = self.engine_.images_per_pass, self.engine_.device
        for start in range(0, len(images), size):
            piece = torch.from_numpy(images[start : start + size]).to(device)
            padding = piece.new_zeros(size - len(piece), *piece.shape[1:])
            yield self.transforms_.apply(torch.cat([piece, padding])).flatten(0, 1)

    def _by_question(self, answers: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return np.split(answers, np.cumsum(self.questions_.classes)[:-1], axis=-1)

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        """The questions that normal images themselves leave open: nothing can be learned from those."""
        lines = []
        self.recognition_ = {}
        for q, answers in enumerate(self._by_question(self._answers(images))):
            name, chance = self.questions_.names[q], 1 / self.questions_.classes[q]
            right = float((answers.argmax(axis=-1) == self.questions_.labels[:, q]).mean())
            self.recognition_[name] = right
            if self.questions_.classes[q] > 1 and right < chance + WEAK * (1 - chance):
                lines.append(
                    f"the {name.replace('_', ' ')} of held-out normals is recognised {100 * right:.0f} % of the time "
                    f"(chance is {100 * chance:.0f} %): these images look alike under it, or are too few; "
                    "expect weak detection"
                )
        return lines

    def _tensors(self) -> Arrays:
        return weights_of(self.network_) | {
            f"alphas/{name}": a for name, a in zip(self.questions_.names, self.alphas_, strict=True)
        }

    def _learned(self) -> GeometricRecord:
        return GeometricRecord.of(self.transforms_, self.recognition_)

    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        record = GeometricRecord.model_validate(learned)
        side, channels = self.policy_.side, self.policy_.channels
        self.transforms = record.transform_set(side)
        with torch.device("meta"):
            self._build(self.settings_, side, channels)
        set_weights(self.network_, tensors)
        self.network_ = self.engine_.place(self.network_).eval()
        self.alphas_ = [tensors[f"alphas/{name}"] for name in self.questions_.names]
        for alphas, classes in zip(self.alphas_, self.questions_.classes, strict=True):
            if alphas.shape != (len(self.transforms_), classes) or not (np.isfinite(alphas) & (alphas > 0)).all():
                raise BadFile("its alphas do not fit its transforms")
        self.recognition_ = record.recognition
