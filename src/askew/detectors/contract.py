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
import platform
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

import askew
from askew import images as image_room
from askew import storage, threshold
from askew.detectors.features import FeatureLayout, are_features
from askew.detectors.record import ModelRecord, TrainingRecord
from askew.engine import Engine
from askew.errors import BadFile, Diverged, InvalidInput, NoThreshold, UnreadableImage
from askew.images import ImageSource
from askew.training import Checkpoint, Progress, Watch

log = logging.getLogger("askew")

Rate = float | Literal["auto"]
Size = Literal["auto", "crop", "pad", "stretch"]
Arrays = dict[str, NDArray[Any]]

DEFAULT_SIDE = 32
DEFAULT_HOLDOUT = 0.2
EXAMINED = 200  # held-out images looked at for what the detector is blind to


@dataclass(frozen=True)
class Run:
    """What one learning pass is given besides images and settings."""

    engine: Engine
    seed: int
    checkpoint: Checkpoint | None
    watch: Watch | None

    def reporter(self, stage: str) -> Callable[[int, int], None]:
        """A function to call with (done, total), which tells the watcher twice a second at most."""
        began = told = time.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if self.watch and (now - told > 0.5 or done == total):
                told = now
                self.watch(Progress(stage, done, total, now - began))

        return report


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

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, groups: Sequence[Any] | None = None) -> Self:
        """The detector, fitted on normal images X; images that share a group stay on one side of the hold-out."""
        settings = self._resolved()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        normals = self._read_normals(X)
        groups = self._groups(groups, normals)
        images = normals.images
        held_out = self._holdout_size(len(images), settings)
        began = time.monotonic()
        self.settings_, self.policy_ = settings, normals.policy
        self.fingerprints_ = np.unique(normals.fingerprints)
        self.threshold_: threshold.Threshold | None = None
        self.engine_ = self._choose_engine()
        draw = np.random.default_rng(seed)

        learned_on = np.arange(len(images))
        exact = groups is None
        if held_out and self.cross_fit:
            exact, anomaly = False, self._cross_fitted_scores(images, groups, seed, draw)
        elif held_out:
            learned_on, kept = threshold.split_holdout(len(images), held_out, draw, groups)
        self._learn_from(images[learned_on], seed, "")
        if held_out:
            if not self.cross_fit:
                anomaly = -self._score(images[kept], "scoring held-out normals")
            self.threshold_ = threshold.calibrate(anomaly, self.false_alarm_rate, exact=exact)
        examined = images[kept] if held_out and not self.cross_fit else images
        self.weaknesses_ = self._weaknesses(examined[:EXAMINED], self.engine_)
        self.training_ = TrainingRecord(
            images=len(learned_on),
            held_out=0 if self.threshold_ is None else self.threshold_.n,
            groups=groups is not None,
            cross_fit=self.cross_fit if held_out else 0,
            seed=seed,
            seconds=round(time.monotonic() - began, 3),
            fingerprint=_digest(normals.fingerprints),
            weaknesses=tuple(self.weaknesses_),
        )
        for line in self.weaknesses_:
            log.warning("%s", line)
        return self

    def _read_normals(self, X: Any) -> image_room.Normals:
        """The images to fit on, all of one size, and a word on what was found."""
        self.features_: FeatureLayout | None = None
        if are_features(X, self.image_shape):
            rows = validate_data(self, X, dtype=np.float64)
            self.features_ = FeatureLayout.of(rows)
            source = image_room.open_images(self.features_.images(rows))
            return image_room.load_normals(source, side=self.features_.side, fit="crop")
        source = image_room.open_images(X, image_shape=self.image_shape, role="normal")
        side = DEFAULT_SIDE if self.side is None else self.side
        fit = _fit_for(source, side) if self.size == "auto" else self.size
        report = Run(Engine(torch.device("cpu"), "fp32"), 0, None, self.watch).reporter("reading images")
        normals = image_room.load_normals(source, side=side, fit=fit, watch=report)
        for line in normals.scan.lines():
            log.info("%s", line)
        return normals

    def _groups(self, groups: Sequence[Any] | None, normals: image_room.Normals) -> list[Any] | None:
        if groups is None:
            return normals.groups
        if len(groups) != normals.scan.found:
            raise InvalidInput(
                f"groups must name one group per image, got {len(groups)} for {normals.scan.found} images"
            )
        return [groups[index] for index in normals.indexes]

    def _holdout_size(self, n: int, settings: Any) -> int:
        """How many images to keep for the threshold; refuses an unreachable rate before any training."""
        share = settings.holdout if self.holdout is None else self.holdout
        if not 0 <= share <= 0.5:
            raise InvalidInput(f"holdout must lie between 0 and 0.5, got {share}")
        if share == 0 and self.false_alarm_rate == "auto" and not self.cross_fit:
            return 0
        if self.cross_fit:
            if not 2 <= self.cross_fit <= n:
                raise InvalidInput(f"cross_fit must lie between 2 and the number of images ({n}), got {self.cross_fit}")
            rate = self.false_alarm_rate
            if rate != "auto":
                threshold.check_rate(rate, n)
            log.info("cross-fitting in %d parts: the interval of the false-alarm rate is approximate", self.cross_fit)
            return n
        size = threshold.holdout_size(n, self.false_alarm_rate, share or DEFAULT_HOLDOUT)
        if self.false_alarm_rate == "auto" and threshold.smallest_rate(size) > 0.01:
            smallest = 100 * threshold.smallest_rate(size)
            log.info(
                "%d held-out images support a false-alarm rate of %.2g %% at the least, so that is the rate; 1 %% takes "
                "%d held-out images",
                size,
                smallest,
                threshold.normals_needed(0.01),
            )
        return size

    def _choose_engine(self, precision: str | None = None) -> Engine:
        return Engine.choose(self.device, precision or self.precision, self.compiled)

    def _cross_fitted_scores(
        self, images: NDArray[np.uint8], groups: list[Any] | None, seed: int, draw: np.random.Generator
    ) -> NDArray[np.float64]:
        """Each image's anomaly score by a copy of this detector that was not fitted on it."""
        anomaly = np.empty(len(images))
        parts = threshold.folds(len(images), self.cross_fit, draw, groups)
        for number, part in enumerate(parts, 1):
            fold = copy.copy(self)
            fold._learn_from(np.delete(images, part, axis=0), seed + number, f".part-{number}")
            anomaly[part] = -fold._score(images[part], f"scoring part {number} of {len(parts)}")
        return anomaly

    def _learn_from(self, images: NDArray[np.uint8], seed: int, part: str) -> None:
        """Build and train from scratch, or from the checkpoint of the same fit."""
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
        settings = self.settings_.model_dump_json()
        words = [askew.__version__, torch.__version__, self.kind, settings, self.precision, self.compiled, seed]
        digest = hashlib.sha256(
            json.dumps([str(word) for word in [*words, images.shape, *self._identifying()]]).encode()
        )
        digest.update(images)
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
                raise UnreadableImage(f"{image_room.printable(source.names[index])}: {reason}")
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
            marks = image_room.fingerprints(batch.images)
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
        return image_room.open_images(X, image_shape=self.image_shape, role=role)

    def _scored(self, source: ImageSource) -> Iterator[tuple[list[int], NDArray[np.float64], image_room.Batch]]:
        """Batches of (indexes, normality, batch), images decoded beside the network."""
        with closing(image_room.stream(source, self.policy_)) as batches:
            for batch in batches:
                yield batch.indexes, self._finite(self._normality(batch.images, self.engine_)), batch

    def _score(self, images: NDArray[np.uint8], stage: str) -> NDArray[np.float64]:
        """The normality of prepared images, with progress."""
        report = Run(self.engine_, 0, None, self.watch).reporter(stage)
        scores = np.empty(len(images))
        for start in range(0, len(images), 64):
            piece = images[start : start + 64]
            scores[start : start + len(piece)] = self._finite(self._normality(piece, self.engine_))
            report(start + len(piece), len(images))
        return scores

    @staticmethod
    def _finite(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        if not np.isfinite(scores).all():
            raise Diverged("the detector gave a score that is not finite; fit it again with precision='fp32'")
        return scores

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one safetensors file, atomically, and forget the fit's checkpoint."""
        check_is_fitted(self, "policy_")
        record = ModelRecord(
            detector=self.kind,
            settings=self.settings_.model_dump(mode="json"),
            precision=self.engine_.precision,
            policy=self.policy_,
            features=self.features_,
            n_features=getattr(self, "n_features_in_", None),
            false_alarm_rate=None if self.threshold_ is None else self.threshold_.false_alarm_rate,
            exact=self.threshold_ is None or self.threshold_.exact,
            training=self.training_,
            versions={"askew": askew.__version__, "torch": torch.__version__, "python": platform.python_version()},
            **self._described(),
        )
        tensors = {**self._tensors(), "fingerprints": self.fingerprints_}
        if self.threshold_ is not None:
            tensors["calibration"] = self.threshold_.calibration
        storage.write(path, kind="model", tensors=tensors, document=record.model_dump(mode="json"))
        self.discard_checkpoint()

    @classmethod
    def _from_file(cls, tensors: Arrays, record: ModelRecord, device: str) -> Self:
        """The detector that wrote this file. Raises `BadFile` or ValueError where its parts do not fit together."""
        self = cls(device=device)
        self.settings_ = cls.Settings.model_validate(record.settings)
        self.policy_, self.features_, self.training_ = record.policy, record.features, record.training
        self.weaknesses_ = list(record.training.weaknesses)
        if record.n_features is not None:
            self.n_features_in_ = record.n_features
        fingerprints = tensors.pop("fingerprints")
        if fingerprints.dtype != np.uint64 or fingerprints.ndim != 1:
            raise BadFile("its fingerprints are not a list of 64-bit numbers")
        self.fingerprints_ = fingerprints
        calibration = tensors.pop("calibration", None)
        if (calibration is None) != (record.false_alarm_rate is None):
            raise BadFile("it has half a threshold")
        self.threshold_ = None
        if calibration is not None and record.false_alarm_rate is not None:
            self.threshold_ = threshold.Threshold(calibration, record.false_alarm_rate, record.exact)
            self.false_alarm_rate = record.false_alarm_rate
        self.engine_ = self._choose_engine(record.precision)
        self._restore(tensors, record)
        return self

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
    def _normality(self, images: NDArray[np.uint8], engine: Engine) -> NDArray[np.float64]:
        """[n] from prepared images; an image's value must not depend on its companions."""

    @abstractmethod
    def _tensors(self) -> Arrays:
        """What was learned, by name."""

    @abstractmethod
    def _restore(self, tensors: Arrays, record: ModelRecord) -> None:
        """Build from `record` and load `tensors`, checking that they fit."""

    def _weaknesses(self, images: NDArray[np.uint8], engine: Engine) -> list[str]:
        """Lines on what normal images, preferably held out, say this detector is blind to."""
        return []

    def _described(self) -> dict[str, Any]:
        """Further fields of `ModelRecord`."""
        return {}

    def _identifying(self) -> list[Any]:
        """Parameters besides the settings that decide what is learned."""
        return []


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


def _digest(fingerprints: NDArray[np.uint64]) -> str:
    return hashlib.sha256(np.sort(fingerprints).tobytes()).hexdigest()
