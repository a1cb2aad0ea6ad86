import numpy as np
import pytest

from askew.geometry import TransformSet
from askew.geometry.labels import SelfLabels


def test_the_papers_question_is_which_of_all_transforms_it_was():
    questions = SelfLabels(TransformSet.paper(32), "transform")
    assert questions.names == ("transform",)
    assert questions.classes == (72,)
    assert questions.labels[:, 0].tolist() == list(range(72))


def test_factors_ask_for_each_factor_that_varies():
    questions = SelfLabels(TransformSet.paper(32), "factors")
    assert questions.names == ("flip", "row_shift", "column_shift", "turn")
    assert questions.classes == (2, 3, 3, 4)
    np.testing.assert_array_equal(questions.labels @ [36, 12, 4, 1], np.arange(72))

    without_flip = SelfLabels(TransformSet(32, row_shifts=(0, 8), turns=(0, 2)), "factors")
    assert without_flip.names == ("row_shift", "turn")
    assert without_flip.classes == (2, 2)
    assert without_flip.labels.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("question", ["transform", "factors"])
@pytest.mark.parametrize("transforms", [TransformSet(8), TransformSet.flips_and_turns(9), TransformSet.paper(8)])
def test_every_transform_has_one_answer_to_every_question(question, transforms):
    questions = SelfLabels(transforms, question)
    assert questions.labels.shape == (len(transforms), len(questions.names))
    assert len(questions.classes) == len(questions.names) >= 1
    assert (questions.labels >= 0).all()
    assert (questions.labels < questions.classes).all()
    assert len(np.unique(questions.labels, axis=0)) == len(transforms)
