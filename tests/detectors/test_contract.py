"""What every detector promises; a new one is tested by its line in the registry."""

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import askew
from askew import engine, storage, training
from askew.datasets.dataset import DataSet, Split
from askew.detectors import DETECTORS, detector_class
from askew.detectors.learning import checkpoint_files
from askew.errors import BadFile, Diverged, InvalidInput, NoImages, NoThreshold, UnreachableRate, UnreadableImage
from pictures import drawings, oddities, write_images

NORMALS = drawings(150)
NEW = np.concatenate([drawings(20, seed=5), oddities(20)])


@pytest.fixture(scope="session", params=sorted(DETECTORS))
def make(request, tiny_settings):
    """A factory of unfitted detectors of each kind, small enough for tests."""
    kind = detector_class(request.param)
    settings = tiny_settings if request.param == "geometric" else kind.PRESETS[kind.default_preset()]
    trains = True
    if request.param != "geometric":
        try:
            settings = settings.with_views(6400)
        except InvalidInput:
            trains = False

    def factory(**parameters):
        if not trains:
            parameters.pop("views", None)  # there is no training to cut short
        return kind(**{"preset": settings, "side": 16, "precision": "fp32", **parameters})

    return factory


@pytest.fixture(scope="session")
def fitted(make):
    return make().fit(NORMALS)


def test_anomalies_score_lower_than_normals(fitted):
    scores = fitted.score_samples(NEW)
    assert scores.shape == (40,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert scores[:20].min() > scores[20:].max()


def test_constant_scores_would_fail_here(fitted):
    assert len(np.unique(fitted.score_samples(NEW))) > 30


def test_signs_agree(fitted):
    scores = fitted.score_samples(NEW)
    np.testing.assert_array_equal(fitted.anomaly_scores(NEW), -scores)
    np.testing.assert_array_equal(fitted.decision_function(NEW), scores - fitted.offset_)
    np.testing.assert_array_equal(fitted.predict(NEW) == -1, fitted.is_anomaly(NEW))
    np.testing.assert_array_equal(fitted.predict(NEW) == -1, fitted.decision_function(NEW) < 0)
    p_values = fitted.p_values(NEW)
    assert ((p_values > 0) & (p_values <= 1)).all()
    assert p_values[:20].min() >= p_values[20:].max()


def test_scores_do_not_depend_on_companions_or_order(fitted):
    together = fitted.score_samples(NEW)
    order = np.random.default_rng(3).permutation(len(NEW))
    np.testing.assert_array_equal(fitted.score_samples(NEW[order]), together[order])
    for index in (0, 25, 39):
        np.testing.assert_array_equal(fitted.score_samples(NEW[index : index + 1]), together[index : index + 1])


def test_same_seed_same_numbers_other_seed_other_numbers(make, fitted):
    np.testing.assert_array_equal(make().fit(NORMALS).score_samples(NEW), fitted.score_samples(NEW))
    assert (make(random_state=1).fit(NORMALS).score_samples(NEW) != fitted.score_samples(NEW)).any()


def test_fit_does_not_depend_on_the_global_generators_nor_move_them(make, fitted):
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    before = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    again = make().fit(NORMALS)
    assert (torch.rand(1), np.random.rand()) == before  # noqa: NPY002
    np.testing.assert_array_equal(again.score_samples(NEW), fitted.score_samples(NEW))


def test_fit_leaves_its_input_alone(make):
    images = NORMALS.copy()
    make(views=64).fit(images)
    np.testing.assert_array_equal(images, NORMALS)


def test_arrays_folders_and_lists_of_files_are_alike(fitted, tmp_path):
    folder = write_images(tmp_path / "new", NEW)
    scores = fitted.score_samples(NEW)
    np.testing.assert_array_equal(fitted.score_samples(folder), scores)
    np.testing.assert_array_equal(fitted.score_samples(sorted(folder.iterdir())), scores)
    np.testing.assert_array_equal(fitted.score_samples(NEW[..., 0]), scores)
    np.testing.assert_array_equal(fitted.score_samples(NEW / 255), scores)


def test_everything_but_fit_needs_a_fit(make, tmp_path):
    for call in ("score_samples", "decision_function", "predict", "p_values", "is_anomaly", "anomaly_scores"):
        with pytest.raises(NotFittedError):
            getattr(make(), call)(NEW)
    with pytest.raises(NotFittedError):
        make().save(tmp_path / "model.safetensors")


def test_a_saved_detector_gives_identical_scores_and_threshold(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = askew.load(path)
    assert type(loaded) is type(fitted)
    np.testing.assert_array_equal(loaded.score_samples(NEW), fitted.score_samples(NEW))
    np.testing.assert_array_equal(loaded.p_values(NEW), fitted.p_values(NEW))
    assert loaded.offset_ == fitted.offset_
    assert loaded.training_ == fitted.training_
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_constructor_stores_and_checks_nothing(make):
    detector = make(false_alarm_rate=7, holdout="much", side="x")
    assert detector.get_params()["holdout"] == "much"
    assert clone(detector).get_params() == detector.get_params()


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"false_alarm_rate": 0.001}, UnreachableRate),
        ({"false_alarm_rate": 7}, InvalidInput),
        ({"holdout": 0.7}, InvalidInput),
        ({"random_state": -1}, InvalidInput),
        ({"cross_fit": 1}, InvalidInput),
        ({"cross_fit": 3, "false_alarm_rate": 0.001}, UnreachableRate),
        ({"side": 4}, InvalidInput),
        ({"device": "abacus"}, InvalidInput),
        ({"precision": "fp4"}, InvalidInput),
    ],
)
def test_impossible_parameters_are_refused_before_training(make, parameters, error):
    def watch(progress):
        assert progress.stage == "reading images"

    with pytest.raises(error):
        make(watch=watch, **parameters).fit(NORMALS)


def test_an_unreachable_rate_names_the_images_it_takes(make):
    with pytest.raises(UnreachableRate, match="1,998"):
        make(false_alarm_rate=0.001).fit(NORMALS)


def test_without_a_holdout_there_are_scores_but_no_verdicts(make):
    detector = make(holdout=0.0, views=640).fit(NORMALS)
    assert detector.training_.images == len(NORMALS)
    assert np.isfinite(detector.score_samples(NEW)).all()
    assert all(verdict.is_anomaly is None for verdict in detector.verdicts(NEW))
    with pytest.raises(NoThreshold, match="calibrate"):
        detector.predict(NEW)


def test_calibrating_sets_the_threshold_that_the_new_normals_say(make):
    detector = make(holdout=0.0, views=640).fit(NORMALS)
    fresh = drawings(99, seed=8)
    detector.calibrate(fresh, false_alarm_rate=0.05)
    assert detector.fitted_threshold.n == 99
    assert detector.fitted_threshold.value == np.sort(detector.anomaly_scores(fresh))[94]


def test_calibrating_leaves_out_images_that_were_learned_from(make, caplog):
    detector = make(holdout=0.0, views=64).fit(NORMALS)
    detector.calibrate(np.concatenate([NORMALS[:30], drawings(40, seed=9)]))
    assert detector.fitted_threshold.n == 40
    assert "30 images were used in fitting" in caplog.text
    with pytest.raises(InvalidInput, match="used in fitting"):
        detector.calibrate(NORMALS)


def test_calibrating_takes_one_group_per_image(make):
    detector = make(holdout=0.0, views=64).fit(NORMALS)
    fresh = drawings(40, seed=9)
    assert not detector.calibrate(fresh, groups=np.arange(40) // 4).fitted_threshold.exact
    for wrong in (np.arange(39), []):
        with pytest.raises(InvalidInput, match=f"one group per image, got {len(wrong)} for 40"):
            detector.calibrate(fresh, groups=wrong)


def test_images_it_was_fitted_on_are_noticed(fitted):
    verdicts = list(fitted.verdicts(np.concatenate([NORMALS[:3], NEW[:3]])))
    assert [verdict.fitted_on for verdict in verdicts] == [True] * 3 + [False] * 3


def test_groups_are_kept_together_and_called_approximate(make):
    groups = np.repeat(np.arange(15), 10)
    detector = make(views=64).fit(NORMALS, groups=groups)
    assert detector.training_.groups
    assert detector.training_.held_out % 10 == 0
    assert "approximate" in detector.fitted_threshold.describe()
    with pytest.raises(InvalidInput, match="one group per image"):
        make(views=64).fit(NORMALS, groups=groups[:-1])


def test_cross_fitting_calibrates_on_every_image_and_says_approximate(make):
    detector = make(cross_fit=3).fit(NORMALS[:60])
    assert detector.training_.images == detector.fitted_threshold.n == 60
    assert "approximate" in detector.fitted_threshold.describe()
    assert (detector.predict(NEW[20:]) == -1).all()


@pytest.mark.parametrize("seed", range(3))
def test_cross_fitting_keeps_about_the_wanted_rate(make, seed):
    """Fits differ in the scale of their scores; the threshold must not."""
    detector = make(cross_fit=5, false_alarm_rate=0.1, random_state=seed).fit(NORMALS[:60])
    realised = detector.is_anomaly(drawings(300, seed=77)).mean()
    assert 0.005 < realised < 0.35


def test_a_failed_fit_leaves_no_old_threshold_behind(make):
    detector = make(views=64).fit(NORMALS)

    def watch(progress):
        if progress.stage == "training":
            raise RuntimeError

    detector.watch = watch
    with pytest.raises(RuntimeError):
        detector.fit(NORMALS)
    with pytest.raises(NotFittedError):
        detector.predict(NEW)


@pytest.mark.parametrize(
    "chosen", [{"holdout": 0.4, "size": "pad"}, {"holdout": 0.0}, {"cross_fit": 2, "false_alarm_rate": 0.07}]
)
def test_a_loaded_detector_is_the_same_estimator(make, tmp_path, chosen):
    rows = NORMALS[:60, 1:15].reshape(60, -1)
    chosen = {"random_state": 7, "side": 15, "image_shape": (14, 16), "size": "crop", **chosen}
    detector = make(views=640, **chosen).fit(rows)
    detector.save(tmp_path / "model.safetensors")
    loaded = askew.load(tmp_path / "model.safetensors")
    assert {name: loaded.get_params()[name] for name in chosen} == chosen
    again = clone(loaded).fit(rows)
    np.testing.assert_array_equal(again.score_samples(NEW), detector.score_samples(NEW))
    assert again.training_ == detector.training_.model_copy(update={"seconds": again.training_.seconds})
    fresh = drawings(150, seed=8)
    assert loaded.calibrate(fresh).offset_ == detector.calibrate(fresh).offset_
    assert loaded.fitted_threshold.false_alarm_rate == chosen.get("false_alarm_rate", 0.01)


def test_a_loaded_detector_scores_rows_of_the_shape_it_was_fitted_on(make, tmp_path):
    rows = NORMALS.reshape(len(NORMALS), -1)
    detector = make(views=64, image_shape=(16, 16)).fit(rows)
    detector.save(tmp_path / "model.safetensors")
    loaded = askew.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(NORMALS))


def test_calibrating_counts_repeats_once(make):
    detector = make(views=64).fit(NORMALS)
    detector.calibrate(np.concatenate([drawings(5, seed=8)] * 20))
    assert detector.fitted_threshold.n == 5


def test_repeats_of_an_image_never_end_on_both_sides(make):
    detector = make(views=64).fit(np.concatenate([NORMALS[:50]] * 3))
    assert detector.training_.images == 3 * (50 - detector.training_.held_out)


def test_one_unreadable_image_is_a_row_and_not_the_end(fitted, tmp_path):
    folder = write_images(tmp_path, NEW[:5])
    (folder / "0002.png").write_bytes(b"not an image")
    verdicts = list(fitted.verdicts(folder))
    assert [verdict.error is not None for verdict in verdicts] == [False, False, True, False, False]
    assert verdicts[2].anomaly_score is None
    with pytest.raises(UnreadableImage, match="0002"):
        fitted.score_samples(folder)


def test_colour_images_are_refused_by_a_grey_model_with_the_reason(fitted):
    (verdict,) = fitted.verdicts(oddities(1, channels=3))
    assert "colour" in verdict.error


def test_grey_images_are_scored_by_a_colour_model(make):
    detector = make(views=64).fit(drawings(60, channels=3))
    assert np.isfinite(detector.score_samples(NEW)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 1.5])
def test_floats_outside_the_unit_range_are_refused(make, fitted, value):
    images = NORMALS / 255
    images[3, 4, 5] = value
    with pytest.raises(InvalidInput):
        make().fit(images)
    with pytest.raises(InvalidInput):
        fitted.score_samples(images)


SPLIT = Split(NORMALS, np.zeros(len(NORMALS), np.int64))


@pytest.mark.parametrize(
    "thing", [DataSet.of("x", "X", ["a"], SPLIT, SPLIT), SPLIT, None, 7, {"a": 1}, iter(NORMALS)], ids=type
)
def test_what_is_neither_files_nor_an_array_is_refused_in_one_line(make, fitted, thing):
    of_rows = make(views=64, side=None).fit(np.random.default_rng(0).normal(size=(20, 4)))
    for call in (make().fit, fitted.score_samples, fitted.calibrate, of_rows.score_samples):
        with pytest.raises(InvalidInput, match=f"an array, got {type(thing).__name__}; of a data set give the images"):
            call(thing)


def test_too_few_images_are_refused_and_few_are_warned_of(make, caplog):
    with pytest.raises(InvalidInput, match="1 sample"):
        make().fit(NORMALS[:1])
    with pytest.raises(InvalidInput, match="same picture"):
        make().fit(np.concatenate([NORMALS[:1]] * 20))
    with pytest.raises(NoImages):
        make().fit([])
    with caplog.at_level(logging.INFO, "askew"):
        make(views=64).fit(NORMALS[:10])
    assert "only 10 images" in caplog.text


def test_a_loss_that_is_not_finite_is_an_error_and_not_a_model(make, tiny_settings):
    training = tiny_settings.training.model_copy(update={"learning_rate": 100.0, "schedule": "constant"})
    with pytest.raises(Diverged):
        make(preset=tiny_settings.model_copy(update={"training": training})).fit(NORMALS)


def test_a_checkpoint_of_another_fit_is_refused(make, tmp_path, monkeypatch):
    checkpoint = tmp_path / "run.checkpoint"
    make(checkpoint=str(checkpoint), views=640).fit(NORMALS)
    assert checkpoint.exists()
    with pytest.raises(BadFile, match="other settings, seed, images"):
        make(checkpoint=str(checkpoint), views=640, random_state=5).fit(NORMALS)


@pytest.fixture
def interrupted(make, monkeypatch, tmp_path):
    """A function that begins or goes on with a fit of ten steps, stops it in one, and returns its checkpoint."""
    checkpoint = tmp_path / "fit.checkpoint"
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(training, "WATCH_SECONDS", -1.0)

    def begin(*, at=5, **parameters):
        told = 0

        def watch(progress):
            nonlocal told
            told += progress.stage == "training"
            if told == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            make(views=640, checkpoint=str(checkpoint), watch=watch, **parameters).fit(NORMALS)
        return checkpoint

    return begin


def assert_same_tensors(one, other):
    ours, theirs = one._tensors(), other._tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name], err_msg=name)


def test_a_fit_is_finished_in_the_precision_it_was_begun_in_wherever_it_is_resumed(make, interrupted, monkeypatch):
    whole = make(precision="bf16", views=640).fit(NORMALS)
    monkeypatch.setattr(engine, "fast_precision", lambda device: ("bf16", "of this machine"))
    checkpoint = interrupted(precision="auto")
    monkeypatch.setattr(engine, "fast_precision", lambda device: ("fp32", "of that machine"))
    assert engine.Engine.choose().precision == "fp32"
    resumed = make(precision="auto", views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    assert resumed.engine_.precision == "bf16"
    assert_same_tensors(resumed, whole)


def test_a_fit_is_not_finished_in_another_precision_than_it_was_begun_in(make, interrupted):
    checkpoint = interrupted(precision="bf16")
    before = checkpoint.read_bytes()
    with pytest.raises(BadFile, match="was begun in bf16, not in fp32; repeat"):
        make(precision="fp32", views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    assert checkpoint.read_bytes() == before


def test_a_fit_that_was_begun_compiled_is_finished_so_and_says_so(make, interrupted, monkeypatch, tmp_path):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda network, dynamic: compiled.append(network) or network)
    monkeypatch.setattr(engine, "_can_compile", lambda: True)
    checkpoint = interrupted(compiled=True)
    monkeypatch.setattr(engine, "_can_compile", lambda: False)
    with pytest.raises(BadFile, match=r"was begun with torch\.compile, which does not work here"):
        make(compiled=True, views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    monkeypatch.setattr(engine, "_can_compile", lambda: True)
    compiled.clear()
    detector = make(views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    assert len(compiled) == 1
    detector.save(tmp_path / "model.safetensors")
    monkeypatch.setattr(engine, "_can_compile", lambda: pytest.fail("scoring compiles nothing"))
    loaded = askew.load(tmp_path / "model.safetensors")
    assert detector.engine_.compiled
    assert loaded.engine_.compiled
    assert clone(loaded).compiled


def test_a_fit_that_was_begun_uncompiled_is_finished_so(make, interrupted, monkeypatch):
    monkeypatch.setattr(engine, "_can_compile", lambda: False)
    checkpoint = interrupted(compiled=True)
    monkeypatch.setattr(engine, "_can_compile", lambda: True)
    assert not make(compiled=True, views=640, checkpoint=str(checkpoint)).fit(NORMALS).engine_.compiled


@pytest.mark.parametrize(("parts", "moments"), [(0, (5, 3)), (2, (5, 9))])
def test_the_seconds_of_a_fit_are_those_of_all_its_legs(make, interrupted, parts, moments):
    for leg, at in enumerate(moments):
        checkpoint = interrupted(cross_fit=parts, at=at)
        file = checkpoint_files(checkpoint)[-1]
        tensors, document = storage.read(file, kind="checkpoint")
        assert 1000 * leg < document["seconds"] < 1000 * leg + 500
        document["seconds"] += 1000
        storage.write(file, kind="checkpoint", tensors=tensors, document=document)
    detector = make(views=640, cross_fit=parts, checkpoint=str(checkpoint)).fit(NORMALS)
    assert 2000 < detector.training_.seconds < 2500


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_in_training_costs_the_checkpoint_and_not_the_fit(make, interrupted, monkeypatch, caplog):
    whole = make(views=640).fit(NORMALS)
    checkpoint = interrupted()
    before = checkpoint.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_room)
        detector = make(views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    assert "without a checkpoint" in caplog.text
    assert "No space left on device" in caplog.text
    assert_same_tensors(detector, whole)
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_a_disk_that_is_full_when_the_model_is_written_loses_neither_the_old_one_nor_the_checkpoint(
    make, monkeypatch, tmp_path
):
    checkpoint, model = tmp_path / "fit.checkpoint", tmp_path / "model.safetensors"
    model.write_bytes(b"precious")
    detector = make(views=640, checkpoint=str(checkpoint)).fit(NORMALS)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_room)
        with pytest.raises(BadFile, match=r"model\.safetensors: cannot be written: No space left on device$"):
            detector.save(model)
    assert model.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.checkpoint", "model.safetensors"]
    # With room again, nothing needs to be learned again.
    told = []
    make(views=640, checkpoint=str(checkpoint), watch=told.append).fit(NORMALS).save(model)
    assert "training" not in {progress.stage for progress in told}
    np.testing.assert_array_equal(askew.load(model).score_samples(NEW), detector.score_samples(NEW))
    assert not checkpoint.exists()


KILLED = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import torch
    from pictures import drawings
    from askew.detectors import detector_class
    from askew.detectors.presets import GeometricSettings
    import askew.training
    torch.set_num_threads(1)
    askew.training.CHECKPOINT_SECONDS = 0.0
    seen = 0
    def watch(progress):
        global seen
        seen += progress.stage == {stage!r}
        if seen == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
    askew.training.WATCH_SECONDS = 0.0
    settings = GeometricSettings.model_validate_json({settings!r})
    detector_class({kind!r})(
        preset=settings, side=16, precision="fp32", checkpoint={checkpoint!r}, watch=watch, cross_fit={parts}
    ).fit(drawings(150))
"""


@pytest.mark.parametrize(
    ("stage", "moments", "parts"),
    [
        ("training", (7, 31), 0),
        ("training", (120,), 2),
        ("fitting Dirichlets", (3,), 0),
        ("scoring held-out normals", (1,), 0),
    ],
)
def test_a_killed_fit_resumes_to_the_same_file(make, tiny_settings, tmp_path, stage, moments, parts):
    checkpoint = str(tmp_path / "fit.checkpoint")
    for at in moments:
        script = textwrap.dedent(KILLED).format(
            tests=str(Path(__file__).parents[1]),
            stage=stage,
            at=at,
            settings=tiny_settings.model_dump_json(),
            kind=make().kind,
            checkpoint=checkpoint,
            parts=parts,
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert list(tmp_path.glob("*.checkpoint*"))
    make(cross_fit=parts).fit(NORMALS).save(tmp_path / "whole.safetensors")
    make(cross_fit=parts, checkpoint=checkpoint).fit(NORMALS).save(tmp_path / "killed.safetensors")
    one, other = (askew.detectors.read_model(tmp_path / f"{name}.safetensors") for name in ("whole", "killed"))
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        assert tensor.tobytes() == other[0][name].tobytes(), name
    assert not list(tmp_path.glob("*.checkpoint*"))
