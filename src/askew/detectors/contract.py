"""What every detector shares: reading images, holding some out, the threshold, verdicts, files. Once, for all of them.

A detector supplies the methods at the end of `Detector` and gets scikit-learn's contract: `fit(X)` on normals,
`score_samples` (higher is more normal), `decision_function`, `predict` in {+1, -1}; and beside it, for people,
`anomaly_scores` (higher is worse), `p_values`, `is_anomaly` and `verdicts`.
"""

import copy
import hashlib
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from askew import threshold
from askew.detectors.effort import Effort
from askew.detectors.features import FeatureLayout, are_features, check_kind
from askew.detectors.files import Arrays, TrainingRecord, write_model
from askew.detectors.holdout import HoldOut, Rate, say_what_is_supported
from askew.detectors.learning import Run, checkpoint_files, checkpoint_for, identity_of, taken_up
from askew.detectors.settings import DetectorSettings, named
from askew.detectors.verdicts import Verdict, are_among, verdicts_of
from askew.engine import Engine, Precision
from askew.errors import Collapsed, Diverged, InvalidInput, NoThreshold, UnreadableImage
from askew.images import (
    Batch,
    ImageSource,
    Normals,
    auto_fit,
    fingerprints,
    load_normals,
    open_images,
    printable,
    stream,
)
from askew.training import Watch, reporter

log = logging.getLogger("askew")

Size = Literal["auto", "crop", "pad", "stretch"]

DEFAULT_SIDE = 32
EXAMINED = 200  # images looked at for what the detector is blind to, and for the scale of its scores
ENOUGH = 10  # so many different images that all score alike have met a collapsed detector


@dataclass(kw_only=True, eq=False, repr=False)
class Detector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """The contract. Parameters are stored, keyword-only, and checked by `fit`; what is learned ends in `_`.

    A subclass adds its own parameters, and is a dataclass in the same way. `preset` names settings or is a value of
    them; `views` overrides its training budget.
    """

    kind: ClassVar[str]
    Settings: ClassVar[type[DetectorSettings]]
    PRESETS: ClassVar[Mapping[str, Any]]
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "bf16")  # those it is sound in

    preset: Any = "sound"
    views: int | None = None
    false_alarm_rate: Rate = "auto"
    holdout: float | None = None
    cross_fit: int = 0
    side: int | None = None
    size: Size = "auto"
    image_shape: tuple[int, ...] | None = None
    random_state: Any = 0
    device: str = "auto"
    precision: str = "auto"
    compiled: bool = False
    checkpoint: str | None = None
    watch: Watch | None = None

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, groups: Sequence[Any] | None = None) -> Self:
        """The detector, fitted on normal images X; images that share a group stay on one side of the hold-out."""
        for learned in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, learned)  # a fit that fails must not leave the last one's threshold behind
        self.settings_ = named(self.PRESETS, self.preset)
        if self.views is not None:
            self.settings_ = self.settings_.with_views(self.views)
        self.engine_, spent = taken_up(self.checkpoint, self.engine_for, self.device, self.precision, self.compiled)
        began = time.monotonic() - spent  # as if it had never been interrupted
        seed = self._seed()
        normals = self._read_normals(X)
        groups = normals.groups_for(groups)
        plan = HoldOut.plan(
            normals.fingerprints,
            groups,
            rate=self.false_alarm_rate,
            share=self.holdout,
            preset_share=self.settings_.holdout,
            cross_fit=self.cross_fit,
            draw=np.random.default_rng(seed),
        )
        images = normals.images
        # In units of each fit's own spread: scores of different fits have different scales.
        standard = np.empty(len(images))
        for number, part in enumerate(plan.parts, 1):
            fold, rest = copy.copy(self), np.delete(images, part, axis=0)
            fold._learn_from(rest, seed + number, began, f".part-{number}")
            centre, spread = fold._scale(rest)
            standard[part] = (
                fold._score(images[part], f"scoring part {number} of {len(plan.parts)}") - centre
            ) / spread
        self._learn_from(images[plan.learned_on], seed, began)
        self.threshold_: threshold.Threshold | None = None
        if len(plan.kept):
            if plan.parts:
                centre, spread = self._scale(images)
                normality = standard[plan.kept] * spread + centre
            else:
                normality = self._score(images[plan.kept], "scoring held-out normals")
            exact = plan.exact and self.features_ is None  # a layout of features has seen the held-out rows, too
            self.threshold_ = threshold.calibrate(-normality, self.false_alarm_rate, exact=exact)
        else:
            normality = self._score(_some(images)[:ENOUGH], "scoring for variety")
        looked_at = images[plan.kept if len(plan.kept) else plan.learned_on]
        weaknesses = [*self._collapse(normality), *self._weaknesses(_some(looked_at))]
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
            random_state=int(self.random_state) if isinstance(self.random_state, int | np.integer) else None,
            wanted_rate=self.false_alarm_rate,
            holdout=None if self.holdout is None else float(self.holdout),
            weaknesses=tuple(weaknesses),
        )
        self.fingerprints_ = np.unique(normals.fingerprints)
        self.policy_ = normals.policy  # last: this is what says that the detector is fitted
        return self

    @classmethod
    def default_preset(cls) -> str:
        """The preset that a detector is fitted with unless told otherwise."""
        return str(next(field.default for field in fields(cls) if field.name == "preset"))

    @classmethod
    def engine_for(cls, device: str = "auto", precision: str = "auto", compiled: bool = False) -> Engine:
        """The engine of this machine, in the precision asked for or the fastest that the detector is sound in."""
        engine = Engine.choose(device, precision, compiled)
        if precision == "auto" and engine.precision not in cls.precisions:
            return Engine.choose(device, cls.precisions[0], compiled)
        return engine

    def _collapse(self, normality: NDArray[np.float64]) -> list[str]:
        """A line where different images all score alike; raises it unless the settings are known to do that."""
        if len(normality) < ENOUGH or np.ptp(normality) > 0:
            return []
        line = f"the detector has collapsed: {len(normality)} different normal images all score {normality[0]:.6g}"
        if self.settings_.may_collapse:
            return [line]
        raise Collapsed(f"{line}; fit it with another seed, more images or other settings")

    def _seed(self) -> int:
        """A number that decides every random choice of the fit."""
        if isinstance(self.random_state, int) and not 0 <= self.random_state < 2**32:
            raise InvalidInput(f"random_state must lie between 0 and 2**32 - 1, got {self.random_state}")
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _read_normals(self, X: Any) -> Normals:
        """The images to fit on, all of one size, and a word on what was found."""
        self.features_: FeatureLayout | None = None
        check_kind(X)
        if are_features(X, self.image_shape):
            rows = validate_data(self, X, dtype=np.float64)
            self.features_ = FeatureLayout.of(rows)
            return load_normals(open_images(self.features_.images(rows)), side=self.features_.side, fit="crop")
        source = open_images(X, image_shape=self.image_shape, role="normal")
        side = DEFAULT_SIDE if self.side is None else self.side
        fit, note = auto_fit(source, side) if self.size == "auto" else (self.size, None)
        if note:
            log.warning("%s", note)
        normals = load_normals(source, side=side, fit=fit, watch=reporter("reading images", self.watch))
        for line in normals.scan.lines():
            log.log(logging.WARNING if line.startswith("warning:") else logging.INFO, "%s", line)
        return normals

    def _learn_from(self, images: NDArray[np.uint8], seed: int, began: float, part: str = "") -> None:
        """Build and train from scratch, or on from the checkpoint of the same fit."""
        checkpoint = None
        if self.checkpoint is not None:
            shared = {field.name for field in fields(Detector)} | {"preset", "views"}  # those two are in the settings
            own = {name: value for name, value in self.get_params(deep=False).items() if name not in shared}
            identity = identity_of(self.kind, self.settings_.model_dump_json(), own, images, seed)
            checkpoint = checkpoint_for(self.checkpoint, part, identity, self.engine_, began)
        side, channels = images.shape[2:]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._build(self.settings_, side, channels)
        self._learn(images, self.settings_, Run(self.engine_, seed, checkpoint, self.watch))

    def _scale(self, images: NDArray[np.uint8]) -> tuple[float, float]:
        """The centre and spread of the normality of images it was fitted on."""
        normality = self._score(_some(images), "scoring for scale")
        centre = float(np.median(normality))
        return centre, float(np.median(np.abs(normality - centre))) or 1.0

    @property
    def effort_(self) -> Effort:
        """What the last pass of learning took and scoring an image takes, whatever the machine."""
        check_is_fitted(self, "policy_")
        return self._effort(self.training_.images)

    def discard_checkpoint(self) -> None:
        """Remove what an interrupted fit left behind; `save` does it once the model is safe."""
        for file in checkpoint_files(self.checkpoint) if self.checkpoint else ():
            file.unlink(missing_ok=True)

    # -- scoring ------------------------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """[n]: the paper's n_S, higher is more normal. Raises on the first image that cannot be read."""
        source = self._source(X)
        scores = np.empty(len(source))
        for indexes, values, batch in self._scored(source):
            _refuse_unread(source, batch)
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
        line = self.threshold_ if false_alarm_rate is None else self.fitted_threshold.at(false_alarm_rate)
        return (
            verdict
            for _, normality, batch in self._scored(source)
            for verdict in verdicts_of(batch, normality, source=source, line=line, fitted_on=self.fingerprints_)
        )

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

    def calibrate(self, X: Any, *, false_alarm_rate: Rate | None = None, groups: Sequence[Any] | None = None) -> Self:
        """The detector with a new threshold, from normal images it was not fitted on, without training.

        The rate is the one wanted at fitting unless another is given. Repeats of an image count once.
        """
        check_is_fitted(self, "policy_")
        source = self._source(X, role="normal")
        groups = source.groups if groups is None else list(groups)
        if groups is not None and len(groups) != len(source):
            raise InvalidInput(f"groups must name one group per image, got {len(groups):,} for {len(source):,}")
        rate = self.false_alarm_rate if false_alarm_rate is None else false_alarm_rate
        if rate != "auto":
            threshold.check_rate(rate, len(source))  # before hours of scoring, not after
        for note in source.notes:
            log.info("%s", note)
        report = reporter("scoring normals", self.watch)
        scores: dict[int, float] = {}
        done, unread, seen, first_error = 0, 0, 0, ""
        for _, normality, batch in self._scored(source):
            marks = fingerprints(batch.images)
            known = are_among(marks, self.fingerprints_)
            seen += int(known.sum())
            unread += len(batch.errors)
            if batch.errors and not first_error:
                index, reason = batch.errors[0]
                first_error = f"{printable(source.names[index])}: {reason}"
            scores |= {int(mark): -n for mark, n, old in zip(marks, normality.tolist(), known, strict=True) if not old}
            done += len(batch.indexes) + len(batch.errors)
            report(done, len(source))
        left_out = [f"{unread:,} images cannot be read, the first: {first_error}"] if unread else []
        left_out += [f"{seen:,} images were used in fitting"] if seen else []
        if not scores:
            raise InvalidInput(
                f"none of the {len(source):,} images can calibrate: {'; '.join(left_out)}; give other normal images"
            )
        for line in left_out:
            log.warning("left out of the calibration: %s", line)
        if rate == "auto":
            say_what_is_supported(len(scores))
        self.threshold_ = threshold.calibrate(np.array(list(scores.values())), rate, exact=groups is None)
        return self

    def _source(self, X: Any, role: Literal["normal", "all"] = "all") -> ImageSource:
        """What is to be scored, as images of the kind that was fitted on."""
        check_is_fitted(self, "policy_")
        check_kind(X)
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

    def _over_batches(
        self, X: Any, scores_of: Callable[[NDArray[np.uint8]], Mapping[str, NDArray[np.float64]]]
    ) -> dict[str, NDArray[np.float64]]:
        """Several scores of every image of X, by name; raises on the first image that cannot be read."""
        source = self._source(X)
        scores: dict[str, NDArray[np.float64]] = {}
        with closing(stream(source, self.policy_)) as batches:
            for batch in batches:
                _refuse_unread(source, batch)
                for name, values in scores_of(batch.images).items():
                    scores.setdefault(name, np.empty(len(source)))[batch.indexes] = self._finite(values)
        return scores

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
    def _build(self, settings: Any, side: int, channels: int) -> None:
        """Make everything that is to be learned, untrained; torch's seed is set."""

    @abstractmethod
    def _learn(self, images: NDArray[np.uint8], settings: Any, run: Run) -> None:
        """Learn from prepared normals [n, side, side, channels]."""

    @abstractmethod
    def _normality(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[n] from prepared images, on `engine_`; an image's value must not depend on its companions."""

    @abstractmethod
    def _effort(self, images: int) -> Effort:
        """What learning from that many images, and scoring one, cost; everything is built."""

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
        """Lines on what normal images, held-out ones if there are any, say this detector is blind to."""
        return []


def _refuse_unread(source: ImageSource, batch: Batch) -> None:
    if batch.errors:
        index, reason = batch.errors[0]
        raise UnreadableImage(f"{printable(source.names[index])}: {reason}")


def _some(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """At most `EXAMINED` of the images, evenly spread."""
    chosen = np.linspace(0, len(images) - 1, min(len(images), EXAMINED)).astype(np.int64)
    return np.asarray(images[chosen])
