"""Where the method is weak on a set of images: the transforms that normal images themselves do not tell apart."""

import numpy as np
from numpy.typing import NDArray

from askew.geometry.labels import SelfLabels

OPEN = 0.25  # of the way from chance to certainty: below it a question counts as open


def recognition(questions: SelfLabels, answers: NDArray[np.float64]) -> dict[str, float]:
    """For each question, the share of the answers [n, t, all classes] that are right."""
    right = [part.argmax(axis=-1) == questions.labels[:, q] for q, part in enumerate(questions.split(answers))]
    return {name: float(hits.mean()) for name, hits in zip(questions.names, right, strict=True)}


def open_questions(questions: SelfLabels, recognised: dict[str, float]) -> list[str]:
    """A line on each question that normal images leave open: nothing can be learned from those."""
    lines = []
    for name, classes in zip(questions.names, questions.classes, strict=True):
        chance, right = 1 / classes, recognised[name]
        if classes > 1 and right < chance + OPEN * (1 - chance):
            lines.append(
                f"the {name.replace('_', ' ')} of normal images is recognised {100 * right:.0f} % of the time "
                f"(chance is {100 * chance:.0f} %): they look alike under it, or are too few; expect weak detection"
            )
    return lines
