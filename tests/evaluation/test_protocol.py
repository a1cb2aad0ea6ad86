"""The paper's protocol, on drawings."""

from dataclasses import replace

import numpy as np
import pytest

from askew.datasets.dataset import Split
from askew.detectors.geometric import GeometricDetector
from askew.errors import InvalidInput
from askew.evaluation import auroc, protocol
from askew.evaluation.protocol import evaluate, failed, judged_by, measured
from askew.threshold import calibrate


@pytest.fixture(scope="session")
def evaluated(run, data):
    return evaluate(run, data)


def test_a_run_is_a_fit_on_the_normal_class_and_a_score_of_the_whole_test_set(run, data, evaluated, tiny_settings):
    row, normality, is_normal = evaluated
    detector = GeometricDetector(preset=tiny_settings, random_state=3, side=16, precision="fp32")
    detector.fit(data.train.images[data.train.labels == 0])
    np.testing.assert_array_equal(normality, detector.score_samples(data.test.images))
    np.testing.assert_array_equal(is_normal, data.test.labels == 0)
    assert row.result.auroc == auroc(is_normal, normality)
    assert row.result.threshold == detector.threshold_.value
    assert (row.cost.trained_on, row.cost.held_out) == (40, 20)
    assert (row.key, row.title) == (run.key, "Drawings")


def test_no_test_label_decides_a_score(run, data, evaluated):
    shuffled = np.random.default_rng(0).permutation(data.test.labels)
    confused = replace(data, test=Split(data.test.images, shuffled))
    row, normality, _ = evaluate(run, confused)
    np.testing.assert_array_equal(normality, evaluated[1])
    assert row.result.auroc != evaluated[0].result.auroc


def test_a_run_of_other_images_is_refused(run, data):
    with pytest.raises(InvalidInput, match="the images are"):
        evaluate(run.model_copy(update={"data": "0" * 16}), data)


class WithGrid(GeometricDetector):
    """A detector whose own scores are the worst of its candidates: whoever peeks at the labels does better."""

    def score_samples(self, X):
        return -super().score_samples(X)

    def candidate_scores(self, X):
        own = self.score_samples(X)
        return {"own": own, "reversed": -own}


@pytest.fixture
def with_grid(monkeypatch):
    monkeypatch.setattr(protocol, "detector_class", lambda name: WithGrid)


def test_the_papers_protocol_chooses_with_hindsight_and_says_so(run, data, evaluated, with_grid):
    row, normality, _ = evaluate(run.model_copy(update={"protocol": "paper"}), data)
    np.testing.assert_array_equal(normality, evaluated[1])
    assert row.hindsight
    assert row.chosen == {"candidate": "reversed", "of": 2}
    assert row.result.threshold is None, "the threshold is on the detector's own scores"


def test_the_honest_protocol_takes_a_detector_as_it_is_whatever_the_labels_say(run, data, evaluated, with_grid):
    row, normality, _ = evaluate(run, data)
    np.testing.assert_array_equal(normality, -evaluated[1])
    assert not row.hindsight
    assert row.chosen == {}
    assert row.result.auroc < 0.5 < evaluated[0].result.auroc
    confused = replace(data, test=Split(data.test.images, data.test.labels[::-1]))
    again, same, _ = evaluate(run, confused)
    np.testing.assert_array_equal(same, normality)
    assert again.result.threshold == row.result.threshold


def test_the_papers_protocol_changes_nothing_where_there_is_no_grid(run, data, evaluated):
    row, normality, _ = evaluate(run.model_copy(update={"protocol": "paper"}), data)
    np.testing.assert_array_equal(normality, evaluated[1])
    assert not row.hindsight


def test_false_alarms_are_counted_among_the_test_normals():
    line = calibrate(np.arange(100.0), 0.1)
    is_normal = np.array([True] * 50 + [False] * 50)
    scores = np.concatenate([np.full(45, 10.0), np.full(5, 99.0), np.full(20, 50.0), np.full(30, 120.0)])
    result = measured(is_normal, -scores, line)
    assert (result.false_alarms, result.normals, result.found, result.anomalies) == (5, 50, 30, 50)
    assert result.interval == line.realised_count_interval(50)
    without = measured(is_normal, -scores, None)
    assert without.false_alarms is without.found is without.interval is without.false_alarm_rate is None
    assert without.auroc == result.auroc


def test_a_part_of_the_test_set_is_drawn_evenly_and_ends_with_its_last(run, data):
    rows = judged_by(run.model_copy(update={"test_images": 10}), data)
    assert len(np.unique(rows)) == 10
    assert (rows[0], rows[-1]) == (0, 39)
    assert len(judged_by(run.model_copy(update={"test_images": 4000}), data)) == 40


def test_costs_are_counted_from_what_was_done(evaluated, run, tiny_settings):
    cost = evaluated[0].cost
    views = len(tiny_settings.transforms.at(16))
    trained = tiny_settings.training.seen(40 * views)
    assert cost.training_views == trained + 40 * views + 20 * views
    assert cost.scoring_views == 40 * views
    per_view = cost.scoring_macs // cost.scoring_views
    assert cost.training_macs == (3 * trained + 40 * views + 20 * views) * per_view
    assert cost.training_views_per_second == pytest.approx(cost.training_views / cost.training_seconds, rel=1e-3)
    assert 0 < cost.peak_memory_bytes < 4 * 2**30
    assert evaluated[0].where["device"] in ("cpu", "cuda", "mps")


def test_a_test_set_with_nothing_to_tell_apart_is_refused_before_training(run, data):
    alone = replace(data, test=Split(data.test.images[:20], data.test.labels[:20]))
    with pytest.raises(InvalidInput, match="nothing to tell apart"):
        evaluate(run.model_copy(update={"data": alone.fingerprint}), alone)


def test_a_failed_run_is_a_row_with_one_line(run, data):
    row = failed(run, data, ValueError("no\nluck " + "x" * 1000))
    assert row.status == "failed"
    assert row.reason.startswith("ValueError: no luck xxx")
    assert "\n" not in row.reason
    assert len(row.reason) <= 500
