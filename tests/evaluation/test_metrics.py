import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from askew.errors import InvalidInput
from askew.evaluation import aupr_in, aupr_out, auroc, average_precision, fpr_at_95_tpr

REPOSITORY = Path(__file__).resolve().parents[2]
PAPERS = {"auroc": auroc, "aupr_in": aupr_in, "aupr_out": aupr_out}
METRICS = {**PAPERS, "average_precision": average_precision, "fpr_at_95_tpr": fpr_at_95_tpr}


def slow_auroc(is_normal, normality):
    normal, anomalous = normality[is_normal], normality[~is_normal]
    return np.mean([1.0 if n > a else 0.5 if n == a else 0.0 for n in normal for a in anomalous])


def sklearn_aupr(is_positive, scores):
    precision, recall, _ = precision_recall_curve(is_positive, scores)
    return auc(recall, precision)


def sklearn_fpr_at_95_tpr(is_normal, normality):
    fpr, tpr, _ = roc_curve(is_normal, normality, drop_intermediate=False)
    return fpr[np.argmax(tpr >= 0.95)]


@st.composite
def rankings(draw):
    labels = draw(st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda some: 0 < sum(some) < len(some)))
    # Few distinct values, so that ties within and across the classes are the rule; or any floats at all.
    value = draw(st.sampled_from([st.integers(-2, 2), st.floats(-1e300, 1e300)]))
    scores = draw(st.lists(value, min_size=len(labels), max_size=len(labels)))
    return np.array(labels), np.array(scores, dtype=np.float64)


@pytest.mark.parametrize("folder", [REPOSITORY / "tests" / "golden", REPOSITORY.parent / "shared" / "golden"])
@pytest.mark.parametrize("case", ["plain", "ties"])
@pytest.mark.parametrize("metric", PAPERS)
def test_metrics_equal_the_authors_program(folder, case, metric):
    path = folder / "metrics.npz"
    if not path.is_file():
        pytest.skip("the full set of golden files is not beside this checkout")
    with np.load(path) as golden:
        ours = PAPERS[metric](golden[f"{case}_is_normal"], golden[f"{case}_score"])
        assert ours == pytest.approx(float(golden[f"{case}_{metric}"]), abs=1e-9)


@given(rankings())
@settings(max_examples=150, deadline=None)
def test_metrics_equal_scikit_learn_with_and_without_ties(ranking):
    is_normal, normality = ranking
    assert auroc(is_normal, normality) == pytest.approx(roc_auc_score(is_normal, normality), abs=1e-12)
    assert auroc(is_normal, normality) == pytest.approx(slow_auroc(is_normal, normality), abs=1e-12)
    assert aupr_in(is_normal, normality) == pytest.approx(sklearn_aupr(is_normal, normality), abs=1e-12)
    assert aupr_out(is_normal, normality) == pytest.approx(sklearn_aupr(~is_normal, -normality), abs=1e-12)
    steps = average_precision_score(is_normal, normality)
    assert average_precision(is_normal, normality) == pytest.approx(steps, abs=1e-12)
    assert fpr_at_95_tpr(is_normal, normality) == pytest.approx(sklearn_fpr_at_95_tpr(is_normal, normality), abs=1e-12)


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
    assert [metric(is_normal, [3.0, 2.0, 1.0]) for metric in METRICS.values()] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert auroc(is_normal, [1.0, 1.0, 1.0]) == 0.5
    assert average_precision(is_normal, [1.0, 1.0, 1.0]) == pytest.approx(2 / 3)
    assert fpr_at_95_tpr(is_normal, [1.0, 1.0, 1.0]) == 1.0


@pytest.mark.parametrize("normals", [20, 40, 60, 100, 980])
def test_95_percent_of_the_normals_is_met_exactly_and_not_one_image_later(normals):
    accepted = normals * 19 // 20
    # One anomaly lies just below the last normal needed, one just above it, two below everything.
    ranks = [*range(normals), accepted - 0.5, accepted - 1.5, normals, normals + 1]
    is_normal = [True] * normals + [False] * 4
    assert fpr_at_95_tpr(is_normal, [-rank for rank in ranks]) == 0.25


def test_the_metrics_work_where_torch_scipy_and_scikit_learn_are_absent():
    block = "import sys\nfor name in ('torch', 'scipy', 'sklearn'): sys.modules[name] = None\n"
    modules = ("", ".ledger", ".metrics", ".printed", ".tables")
    code = block + "\n".join(f"import askew.evaluation{module}" for module in modules)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
