"""What every detector shares: reading images, holding some out, the threshold, verdicts, files. Once, for all of them.

A detector supplies the five methods at the end of `Detector` and gets scikit-learn's contract: `fit(X)` on normals,
`score_samples` (higher is more normal), `decision_function`, `predict` in {+1, -1}; and beside it, for people,
`anomaly_scores` (higher is worse), `p_values`, `is_anomaly` and `verdicts`.
"""

import copy
import hashlib
import json
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

import askew
from askew import threshold
from askew.detectors.features import FeatureLayout, are_features
from askew.detectors.files import Arrays, TrainingRecord, write_model
from askew.detectors.holdout import HoldOut, Rate
from askew.engine import Engine
from askew.errors import Diverged, InvalidInput, NoThreshold, UnreadableImage
from askew.images import Batch, ImageSource, Normals, fingerprints, load_normals, open_images, printable, stream
from askew.training import Checkpoint, Loss, Progress, TrainingSettings, Watch, train

log = logging.getLogger("askew")

Size = Literal["auto", "crop", "pad", "stretch"]

DEFAULT_SIDE = 32
EXAMINED = 200  # images looked at for what the detector is blind to


@dataclass(frozen=True)
class Run:
    """What one learning pass is given besides images and settings."""

    engine: Engine
    seed: int
    checkpoint: Checkpoint | None
    watch: Watch | None

    def train(self, network: nn.Module, loss: Loss, *, examples: int, settings: TrainingSettings) -> None:
        """Minimise the loss, on this run's engine and from its checkpoint."""
        train(
            network,
            loss,
            examples=examples,
            settings=settings,
            engine=self.engine,
            seed=self.seed,
            checkpoint=self.checkpoint,
            watch=self.watch,
        )


@dataclass(frozen=True)
class Verdict:
    """What is said of one image: scores and a verdict, or the error that kept it from having them."""

    name: str
    anomaly_score: float | None = None
    p_value: float | None = None
    is_anomaly: bool | None = None
    error: str | None = None
    fitted_on: bool = False  # the detector has seen this very image, so its verdict says nothing
    notes: tuple[str, ...] = ()


class Detector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """The contract. Subclasses store their parameters, all keyword-only, and check nothing before `fit`."""

    kind: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]

    # Parameters that every subclass takes; see `GeometricDetector.__init__`.
    false_alarm_rate: Rate
    holdout: float | None
    cross_fit: int
    side: int | None
    size: Size
    image_shape: tuple[int, ...] | None
    random_state: Any
    device: str
    precision: str
    compiled: bool
    checkpoint: str | None
    watch: Watch | None

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Store a constructor's parameters, given as its `locals()`, and check none of them."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, groups: Sequence[Any] | None = None) -> Self:
        """The detector, fitted on normal images X; images that share a group stay on one side of the hold-out."""
        self.settings_ = self._resolved()
        self.engine_ = self._choose_engine()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        normals = self._read_normals(X)
        plan = HoldOut.plan(
            normals.fingerprints,
            groups := _groups(groups, normals),
            rate=self.false_alarm_rate,
            share=self.settings_.holdout if self.holdout is None else self.holdout,
            cross_fit=self.cross_fit,
            draw=np.random.default_rng(seed),
        )
        began = time.monotonic()
        self.policy_, self.fingerprints_ = normals.policy, np.unique(normals.fingerprints)
        images = normals.images
        scores = np.empty(len(images))
        for number, part in enumerate(plan.parts, 1):
            fold = copy.copy(self)
            fold._learn_from(np.delete(images, part, axis=0), seed + number, f".part-{number}")
            scores[part] = fold._score(images[part], f"scoring part {number} of {len(plan.parts)}")
        self._learn_from(images[plan.learned_on], seed)
        self.threshold_: threshold.Threshold | None = None
        if len(plan.kept):
            if not plan.parts:
                scores[plan.kept] = self._score(images[plan.kept], "scoring held-out normals")
            self.threshold_ = threshold.calibrate(-scores[plan.kept], self.false_alarm_rate, exact=plan.exact)
        examined = plan.kept if len(plan.kept) else plan.learned_on
        weaknesses = self._weaknesses(images[examined[:EXAMINED]])
        for line in weaknesses:
            log.warning("%s", line)
        self.training_ = TrainingRecord(
            images=len(plan.learned_on),
            held_out=len(plan.kept),
            groups=groups is not None,
            cross_fit=len(plan.parts),
            seed=seed,
            seconds=round(time.monotonic() - began, 3),
            fingerprint=hashlib.sha256(np.sort(normals.fingerprints).tobytes()).hexdigest(),
            weaknesses=tuple(weaknesses),
        )
        return self

    def _read_normals(self, X: Any) -> Normals:
        """The images to fit on, all of one size, and a word on what was found."""
        self.features_: FeatureLayout | None = None
        if are_features(X, self.image_shape):
            rows = validate_data(self, X, dtype=np.float64)
            self.features_ = FeatureLayout.of(rows)
            return load_normals(open_images(self.features_.images(rows)), side=self.features_.side, fit="crop")
        source = open_images(X, image_shape=self.image_shape, role="normal")
        side = DEFAULT_SIDE if self.side is None else self.side
        fit = _fit_for(source, side) if self.size == "auto" else self.size
        normals = load_normals(source, side=side, fit=fit, watch=reporter("reading images", self.watch))
        for line in normals.scan.lines():
            log.info("%s", line)
        return normals

    def _choose_engine(self, precision: str | None = None) -> Engine:
        return Engine.choose(self.device, precision or self.precision, self.compiled)

    def _learn_from(self, images: NDArray[np.uint8], seed: int, part: str = "") -> None:
        """Build and train from scratch, or on from the checkpoint of the same fit."""
        checkpoint = None
        if self.checkpoint is not None:
            checkpoint = Checkpoint(Path(f"{self.checkpoint}{part}"), self._identity(images, seed))
            saved = checkpoint.load()
            if saved and self.precision == "auto":
                # A fit is finished in the precision it was begun in, wherever it is resumed.
                self.engine_ = self._choose_engine(saved[1].get("precision"))
            checkpoint.extra["precision"] = self.engine_.precision
        side, channels = images.shape[2:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build(self.settings_, side, channels)
        self._learn(images, self.settings_, Run(self.engine_, seed, checkpoint, self.watch))

    def _identity(self, images: NDArray[np.uint8], seed: int) -> str:
        """A digest of all that decides the outcome of learning, but the precision, which the checkpoint keeps."""
        parameters = {**self.get_params(deep=False), "random_state": seed}
        for elsewhere in ("watch", "device", "checkpoint"):
            del parameters[elsewhere]
        words = [askew.__version__, torch.__version__, self.kind, self.settings_.model_dump_json(), repr(parameters)]
        digest = hashlib.sha256(json.dumps([*words, images.shape]).encode())
        digest.update(np.ascontiguousarray(images).data)
        return digest.hexdigest()

    def discard_checkpoint(self) -> None:
        """Remove what an interrupted fit left behind; `save` does it once the model is safe."""
        if self.checkpoint is not None:
            for number in range(self.cross_fit + 1):
                Path(f"{self.checkpoint}.part-{number}" if number else self.checkpoint).unlink(missing_ok=True)

    # -- scoring ------------------------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """[n]: the paper's n_S, higher is more normal. Raises on the first image that cannot be read."""
        source = self._source(X)
        scores = np.empty(len(source))
        for indexes, values, batch in self._scored(source):
            if batch.errors:
                index, reason = batch.errors[0]
                raise UnreadableImage(f"{printable(source.names[index])}: {reason}")
            scores[indexes] = values
        return scores

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """[n]: `score_samples - offset_`; negative for anomalies."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """[n]: +1 for normal, -1 for anomalies."""
        return np.where(self.is_anomaly(X), -1, 1)

    def anomaly_scores(self, X: Any) -> NDArray[np.float64]:
        """[n]: `-score_samples`, higher is worse."""
        return -self.score_samples(X)

    def p_values(self, X: Any) -> NDArray[np.float64]:
        """[n]: how rarely a normal image looks this odd, from the held-out normals."""
        check_is_fitted(self, "policy_")
        return self.fitted_threshold.p_values(self.anomaly_scores(X))

    def is_anomaly(self, X: Any) -> NDArray[np.bool_]:
        """[n]: True above the threshold."""
        check_is_fitted(self, "policy_")
        return self.fitted_threshold.is_anomaly(self.anomaly_scores(X))

    def verdicts(self, X: Any, *, false_alarm_rate: float | None = None) -> Iterator[Verdict]:
        """One verdict per image of X, in order, as they are reached; an unreadable image is one with its reason."""
        source = self._source(X)
        line = self.threshold_
        if false_alarm_rate is not None:
            line = self.fitted_threshold.at(false_alarm_rate)
        for indexes, values, batch in self._scored(source):
            rows = {index: Verdict(source.names[index], error=reason) for index, reason in batch.errors}
            notes: dict[int, list[str]] = {}
            for index, note in batch.notes:
                notes.setdefault(index, []).append(note)
            marks = fingerprints(batch.images)
            seen = np.isin(marks, self.fingerprints_)
            p_values = [None] * len(values) if line is None else line.p_values(-values).tolist()
            alarms = [None] * len(values) if line is None else line.is_anomaly(-values).tolist()
            for row, index in enumerate(indexes):
                rows[index] = Verdict(
                    name=source.names[index],
                    anomaly_score=float(-values[row]),
                    p_value=p_values[row],
                    is_anomaly=alarms[row],
                    fitted_on=bool(seen[row]),
                    notes=tuple(notes.get(index, ())),
                )
            yield from (rows[index] for index in sorted(rows))

    @property
    def offset_(self) -> float:
        """The normality at the threshold."""
        return -self.fitted_threshold.value

    @property
    def fitted_threshold(self) -> threshold.Threshold:
        """The threshold, or a word on how to get one."""
        if self.threshold_ is None:
            raise NoThreshold(
                "this detector has no threshold, since no normals were held out; "
                "calibrate it on normal images it was not fitted on, or fit it with false_alarm_rate or holdout given"
            )
        return self.threshold_

    def calibrate(self, X: Any, *, false_alarm_rate: Rate | None = None) -> Self:
        """The detector with a new threshold, from normal images it was not fitted on, without training."""
        check_is_fitted(self, "policy_")
        source = self._source(X, role="normal")
        verdicts = list(self.verdicts(source))
        unread = [verdict for verdict in verdicts if verdict.error]
        seen = sum(verdict.fitted_on for verdict in verdicts)
        fresh = [v.anomaly_score for v in verdicts if v.anomaly_score is not None and not v.fitted_on]
        if unread:
            log.warning("%d images cannot be read, the first: %s", len(unread), unread[0].error)
        if seen:
            log.warning("%d images were used in fitting and are left out of the calibration", seen)
        if not fresh:
            raise InvalidInput(f"none of the {len(verdicts)} images can calibrate: unreadable or used in fitting")
        rate = self.false_alarm_rate if false_alarm_rate is None else false_alarm_rate
        self.threshold_ = threshold.calibrate(np.array(fresh), rate, exact=source.groups is None)
        return self

    def _source(self, X: Any, role: Literal["normal", "all"] = "all") -> ImageSource:
        """What is to be scored, as images of the kind that was fitted on."""
        check_is_fitted(self, "policy_")
        if self.features_ is not None and not isinstance(X, ImageSource):
            X = self.features_.images(validate_data(self, X, dtype=np.float64, reset=False))
        return open_images(X, image_shape=self.image_shape, role=role)

    def _scored(self, source: ImageSource) -> Iterator[tuple[list[int], NDArray[np.float64], Batch]]:
        """Batches of (indexes, normality, batch), images decoded beside the network."""
        with closing(stream(source, self.policy_)) as batches:
            for batch in batches:
                # A batch may hold unreadable images only.
                scores = self._normality(batch.images) if batch.indexes else np.empty(0)
                yield batch.indexes, self._finite(scores), batch

    def _score(self, images: NDArray[np.uint8], stage: str) -> NDArray[np.float64]:
        """The normality of prepared images, with progress."""
        report = reporter(stage, self.watch)
        scores = np.empty(len(images))
        for start in range(0, len(images), 64):
            piece = images[start : start + 64]
            scores[start : start + len(piece)] = self._finite(self._normality(piece))
            report(start + len(piece), len(images))
        return scores

    @staticmethod
    def _finite(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        if not np.isfinite(scores).all():
            raise Diverged("the detector gave a score that is not finite; fit it again with precision='fp32'")
        return scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, atomically, and forget the fit's checkpoint."""
        check_is_fitted(self, "policy_")
        write_model(path, self)
        self.discard_checkpoint()

    # -- what a detector supplies -------------------------------------------------------------------------------------

    @abstractmethod
    def _resolved(self) -> Any:
        """The frozen settings that the parameters stand for; they have a `holdout`."""

    @abstractmethod
    def _build(self, settings: Any, side: int, channels: int) -> None:
        """Make everything that is to be learned, untrained; torch's seed is set."""

    @abstractmethod
    def _learn(self, images: NDArray[np.uint8], settings: Any, run: Run) -> None:
        """Learn from prepared normals [n, side, side, channels]."""

    @abstractmethod
    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[n] from prepared images, on `engine_`; an image's value must not depend on its companions."""

    @abstractmethod
    def _tensors(self) -> Arrays:
        """What was learned, as arrays by name."""

    @abstractmethod
    def _learned(self) -> BaseModel:
        """What was learned besides arrays."""

    @abstractmethod
    def _restore(self, tensors: Arrays, learned: dict[str, Any]) -> None:
        """Take back what `_tensors` and `_learned` gave, from a file that may be hostile."""

    def _weaknesses(self, images: NDArray[np.uint8]) -> list[str]:
        """Lines on what normal images, held out if there are any, say this detector is blind to."""
        return []


def reporter(stage: str, watch: Watch | None) -> Callable[[int, int], None]:
    """A function to call with (done, total), which tells the watcher twice a second at most."""
    began = told = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if watch and (now - told > 0.5 or done == total):
            told = now
            watch(Progress(stage, done, total, now - began))

    return report


def _groups(groups: Sequence[Any] | None, normals: Normals) -> list[Any] | None:
    """The group of each readable image, as given or as the source knows it."""
    if groups is None:
        return normals.groups
    if len(groups) != normals.scan.found:
        raise InvalidInput(f"groups must name one group per image, got {len(groups)} for {normals.scan.found}")
    return [groups[index] for index in normals.indexes]


def _fit_for(source: ImageSource, side: int) -> Literal["crop", "pad"]:
    """How to bring images like the first readable one to the side: small squares are framed, all else is cropped."""
    for index in range(len(source)):
        try:
            height, width = source.read(index).pixels.shape[:2]
        except UnreadableImage:
            continue
        if height != width:
            seen = 100 * min(height, width) / max(height, width)
            log.warning(
                'images such as the first, %dx%d, are not square: the middle %.0f %% is used; size="pad" or "stretch" '
                "uses all of it",
                width,
                height,
                seen,
            )
        return "pad" if height == width and 0.5 * side <= height < side else "crop"
    return "crop"
