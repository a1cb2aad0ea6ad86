from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

from askew.errors import InvalidInput
from askew.evaluation import aupr_in, aupr_out, auroc

REPOSITORY = Path(__file__).resolve().parents[2]
METRICS = {"auroc": auroc, "aupr_in": aupr_in, "aupr_out": aupr_out}


def slow_auroc(is_normal, normality):
    normal, anomalous = normality[is_normal], normality[~is_normal]
    return np.mean([1.0 if n > a else 0.5 if n == a else 0.0 for n in normal for a in anomalous])


def sklearn_aupr(is_positive, scores):
    precision, recall, _ = precision_recall_curve(is_positive, scores)
    return auc(recall, precision)


@st.composite
def rankings(draw):
    labels = draw(st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda some: 0 < sum(some) < len(some)))
    # Few distinct values, so that ties within and across the classes are the rule; or any floats at all.
    value = draw(st.sampled_from([st.integers(-2, 2), st.floats(-1e300, 1e300)]))
    scores = draw(st.lists(value, min_size=len(labels), max_size=len(labels)))
    return np.array(labels), np.array(scores, dtype=np.float64)


@pytest.mark.parametrize("folder", [REPOSITORY / "tests" / "golden", REPOSITORY.parent / "shared" / "golden"])
@pytest.mark.parametrize("case", ["plain", "ties"])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics_equal_the_authors_program(folder, case, metric):
    path = folder / "metrics.npz"
    if not path.is_file():
        pytest.skip("the full set of golden files is not beside this checkout")
    with np.load(path) as golden:
        ours = METRICS[metric](golden[f"{case}_is_normal"], golden[f"{case}_score"])
        assert ours == pytest.approx(float(golden[f"{case}_{metric}"]), abs=1e-9)


@given(rankings())
@settings(max_examples=150, deadline=None)
def test_metrics_equal_scikit_learn_with_and_without_ties(ranking):
    is_normal, normality = ranking
    assert auroc(is_normal, normality) == pytest.approx(roc_auc_score(is_normal, normality), abs=1e-12)
    assert auroc(is_normal, normality) == pytest.approx(slow_auroc(is_normal, normality), abs=1e-12)
    assert aupr_in(is_normal, normality) == pytest.approx(sklearn_aupr(is_normal, normality), abs=1e-12)
    assert aupr_out(is_normal, normality) == pytest.approx(sklearn_aupr(~is_normal, -normality), abs=1e-12)


@given(rankings(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_metrics_do_not_depend_on_the_order_of_the_images(ranking, random):
    is_normal, normality = ranking
    order = list(range(len(is_normal)))
    random.shuffle(order)
    for metric in METRICS.values():
        assert metric(is_normal, normality) == metric(is_normal[order], normality[order])


@given(rankings())
@settings(max_examples=50, deadline=None)
def test_turning_the_scores_around_turns_the_auroc_around(ranking):
    is_normal, normality = ranking
    assert auroc(is_normal, -normality) == pytest.approx(1 - auroc(is_normal, normality), abs=1e-12)


def test_a_perfect_ranking_gets_one_and_a_constant_score_a_half():
    is_normal = [True, True, False]
    assert [metric(is_normal, [3.0, 2.0, 1.0]) for metric in METRICS.values()] == [1.0, 1.0, 1.0]
    assert auroc(is_normal, [1.0, 1.0, 1.0]) == 0.5


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    ("is_normal", "normality", "complaint"),
    [
        ([True, False], [1.0], "one length"),
        ([[True, False]], [[1.0, 2.0]], "one length"),
        (True, 1.0, "one length"),
        ([True, True], [1.0, 2.0], "only normal"),
        ([0, 0], [1.0, 2.0], "only anomalies"),
        ([], [], "no images"),
        ([1, -1], [1.0, 2.0], "true for normal"),
        (["yes", "no"], [1.0, 2.0], "true for normal"),
        ([True, False], [1.0, np.nan], "finite"),
        ([True, False], [1.0, np.inf], "finite"),
        ([True, False], ["a", "b"], "finite"),
    ],
)
def test_what_cannot_be_ranked_is_refused(metric, is_normal, normality, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        metric(is_normal, normality)
