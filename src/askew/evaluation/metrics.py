"""The paper's three figures of merit and two more, from labels and normality scores (higher is more normal).

All come from one walk down the ranking: how many positives and negatives lie at or above each distinct score. Images
with equal scores enter together, so their order in the input never matters.
"""

import numpy as np
import numpy.typing as npt

from askew.errors import InvalidInput

_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]
_Counts = npt.NDArray[np.int64]


def auroc(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> float:
    """The chance that a normal image scores above an anomaly, a tie counting half: the area under the ROC curve."""
    normals, anomalies = _counts_from_the_top(*_checked(is_normal, normality))
    # Twice the area in whole counts: exact, and divided once.
    doubled = np.sum(np.diff(anomalies) * (normals[1:] + normals[:-1]))
    return float(doubled / (2.0 * normals[-1] * anomalies[-1]))


def aupr_in(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> float:
    """The trapezoidal area under the precision-recall curve, normal images being the positives."""
    flags, scores = _checked(is_normal, normality)
    return _aupr(flags, scores)


def aupr_out(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> float:
    """The trapezoidal area under the precision-recall curve, anomalies being the positives and the scores negated."""
    flags, scores = _checked(is_normal, normality)
    return _aupr(~flags, -scores)


def average_precision(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> float:
    """The area under the precision-recall curve drawn in steps instead of `aupr_in`'s straight lines."""
    normals, anomalies = _counts_from_the_top(*_checked(is_normal, normality))
    precision = normals[1:] / (normals[1:] + anomalies[1:])
    return float(np.sum(np.diff(normals) * precision) / normals[-1])


def fpr_at_95_tpr(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> float:
    """The share of anomalies taken for normal at the highest threshold that accepts 95 % of the normal images."""
    normals, anomalies = _counts_from_the_top(*_checked(is_normal, normality))
    # In whole counts: 95 % of 20 images is 19 of them, whatever 0.95 is in binary.
    enough = np.flatnonzero(20 * normals >= 19 * normals[-1])[0]
    return float(anomalies[enough] / anomalies[-1])


def _aupr(is_positive: _Flags, scores: _Floats) -> float:
    positives, negatives = _counts_from_the_top(is_positive, scores)
    # Paper: straight lines between the points, which flatters a little; average precision would be a step function.
    # The curve begins at recall 0 with precision 1, where nothing has been picked yet.
    precision = np.concatenate(([1.0], positives[1:] / (positives[1:] + negatives[1:])))
    recall = positives / positives[-1]
    return float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1])) / 2)


def _counts_from_the_top(is_positive: _Flags, scores: _Floats) -> tuple[_Counts, _Counts]:
    """Positives and negatives at or above each distinct score, highest first, after a leading 0."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last_of_its_score = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    positives = np.cumsum(is_positive[order], dtype=np.int64)[last_of_its_score]
    negatives = last_of_its_score + 1 - positives
    return np.append(0, positives).astype(np.int64), np.append(0, negatives).astype(np.int64)


def _checked(is_normal: npt.ArrayLike, normality: npt.ArrayLike) -> tuple[_Flags, _Floats]:
    labels, raw = np.asarray(is_normal), np.asarray(normality)
    if labels.ndim != 1 or labels.shape != raw.shape:
        raise InvalidInput(
            f"labels and scores must be two lists of one length, got shapes {labels.shape} and {raw.shape}; "
            "give one label and one score an image"
        )
    if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
        raise InvalidInput("labels must be true for normal and false for anomalous images; give only those, or 1 and 0")
    if raw.dtype.kind not in "biuf" or not np.isfinite(raw).all():
        raise InvalidInput("scores must be finite numbers, got others among them; look for images that failed to score")
    flags = labels.astype(np.bool_)
    if flags.all() or not flags.any():
        given = "only normal images" if flags.any() else "only anomalies" if flags.size else "no images"
        raise InvalidInput(f"a ranking needs normal images and anomalies, got {given}; add the other kind")
    return flags, raw.astype(np.float64)
