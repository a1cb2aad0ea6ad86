"""Deep SVDD: its arithmetic by a slow road, resumption to the bit, and the collapse it is known for."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

import askew
from askew import storage, training
from askew.detectors import deep_svdd
from askew.detectors.deep_svdd import PRESETS, DeepSvddDetector, DeepSvddSettings, Hypersphere
from askew.errors import BadFile, Collapsed, InvalidInput
from askew.networks import LeNet, set_weights
from pictures import drawings, oddities

NORMALS = drawings(40, side=8)
NEW = np.concatenate([drawings(6, side=8, seed=5), oddities(6, side=8)])


def short(examples, batch=16, **training_changes):
    """The `sound` settings with so many examples in either training."""
    sound, budget = PRESETS["sound"], {"epochs": None, "examples": examples, "batch": batch}
    return sound.model_copy(
        update={
            "pretraining": sound.pretraining.model_copy(update=budget),
            "training": sound.training.model_copy(update={**budget, **training_changes}),
        }
    )


def make(settings=None, **parameters):
    return DeepSvddDetector(**{"preset": settings or short(96), "side": 8, "precision": "fp32", **parameters})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A detector, and the path of the checkpoints that its fit left."""
    checkpoint = tmp_path_factory.mktemp("fitted") / "fit.checkpoint"
    return make(checkpoint=str(checkpoint)).fit(NORMALS), checkpoint


def contrasted(image):
    """One image's values less their mean, over their mean distance from it."""
    values = [float(value) for value in image.flatten()]
    mean = sum(values) / len(values)
    distance = sum(abs(value - mean) for value in values) / len(values)
    return np.array([(value - mean) / distance for value in values]).reshape(image.shape)


def answer(network, image, low, high):
    """The network's answer to one image alone."""
    x = torch.from_numpy((contrasted(image) - low) / (high - low)).float().permute(2, 0, 1)[None]
    with torch.no_grad():
        return network(x)[0].double().numpy()


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_is_normalised_image_by_image_over_all_channels(channels):
    images = np.concatenate([drawings(3, side=8, channels=channels), oddities(3, side=8, channels=channels)])
    fast = deep_svdd.contrasted(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(fast, [contrasted(image) for image in images], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.abs(fast).mean((1, 2, 3)), 1, rtol=1e-6)


def test_brightness_and_contrast_make_no_difference():
    image = drawings(1, side=8)[0] // 4
    alike = torch.from_numpy(np.stack([image, image + 50, 3 * image]))
    one, brighter, stronger = deep_svdd.contrasted(alike)
    torch.testing.assert_close(one, brighter)
    torch.testing.assert_close(one, stronger)


def test_an_image_without_contrast_is_a_number_all_the_same(fitted):
    assert not deep_svdd.contrasted(torch.full((1, 8, 8, 1), 7, dtype=torch.uint8)).any()
    assert np.isfinite(fitted[0].score_samples(np.full((1, 8, 8), 200, np.uint8))).all()


def test_what_was_learned_from_fills_the_range_from_0_to_1():
    settings = short(32).model_copy(update={"holdout": 0.0})
    detector = make(settings).fit(NORMALS)
    values = np.array([contrasted(image) for image in NORMALS])
    np.testing.assert_allclose((detector.low_, detector.high_), (values.min(), values.max()), rtol=1e-6)
    scaled = detector._scaled(torch.from_numpy(NORMALS))
    assert (scaled.min(), scaled.max()) == (0, 1)
    assert scaled.shape == (40, 1, 8, 8)


def test_scores_are_squared_distances_from_the_centre(fitted):
    detector, _ = fitted
    slow = []
    for image in NEW:
        given = answer(detector.network_.network, image, detector.low_, detector.high_)
        slow.append(-sum((a - c) ** 2 for a, c in zip(given, detector.network_.centre.double().numpy(), strict=True)))
    np.testing.assert_allclose(detector.score_samples(NEW), slow, rtol=1e-4)


def test_the_centre_is_the_mean_answer_before_training_kept_clear_of_zero(tmp_path):
    checkpoint = tmp_path / "fit.checkpoint"
    detector = make(short(64).model_copy(update={"holdout": 0.0}), checkpoint=str(checkpoint)).fit(NORMALS)
    pretrained, _ = storage.read(tmp_path / "fit.checkpoint.part-pretraining", kind="checkpoint")
    network = LeNet(channels=1, side=8).eval()
    set_weights(network, {f"network/{n[10:]}": v for n, v in pretrained.items() if n.startswith("network/0.")})
    mean = np.mean([answer(network, image, detector.low_, detector.high_) for image in NORMALS], axis=0)
    slow = [m if abs(m) >= 0.1 else -0.1 if m < 0 else 0.1 for m in mean]
    np.testing.assert_allclose(detector.network_.centre.numpy(), slow, rtol=1e-4, atol=1e-5)


def test_no_coordinate_of_a_centre_is_left_near_zero():
    mean = np.array([-3, -0.1, -0.09, -1e-12, 0, 1e-12, 0.0999, 0.1, 0.3])
    np.testing.assert_array_equal(
        deep_svdd.clear_of_zero(mean), np.float32([-3, -0.1, -0.1, -0.1, 0.1, 0.1, 0.1, 0.1, 0.3])
    )


def test_scores_do_not_depend_on_companions_or_order(fitted):
    detector, _ = fitted
    together = detector.score_samples(NEW)
    order = np.random.default_rng(3).permutation(len(NEW))
    np.testing.assert_array_equal(detector.score_samples(NEW[order]), together[order])
    np.testing.assert_array_equal([detector.score_samples(image[None])[0] for image in NEW], together)


def test_a_saved_detector_is_the_same(fitted, tmp_path):
    detector, _ = fitted
    twin = make().fit(NORMALS)  # saving forgets the checkpoints, which other tests may want
    twin.save(tmp_path / "one.safetensors")
    loaded = askew.load(tmp_path / "one.safetensors")
    assert type(loaded) is DeepSvddDetector
    np.testing.assert_array_equal(loaded.score_samples(NEW), detector.score_samples(NEW))
    assert loaded.offset_ == detector.offset_
    assert loaded.effort_ == detector.effort_
    loaded.save(tmp_path / "other.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()


class Killed(Exception):
    pass


@pytest.mark.parametrize(("stage", "at"), [("pretraining", 4), ("training", 1), ("training", 5)])
def test_a_killed_fit_resumes_to_the_same_weights(fitted, tmp_path, monkeypatch, stage, at):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)

    def watch(progress):
        if (progress.stage, progress.done) == (stage, at):
            raise Killed

    checkpoint = str(tmp_path / "fit.checkpoint")
    with pytest.raises(Killed):
        make(checkpoint=checkpoint, watch=watch).fit(NORMALS)
    told = []
    resumed = make(checkpoint=checkpoint, watch=told.append).fit(NORMALS)
    assert next(progress.done for progress in told if progress.stage == stage) == at
    for name, tensor in fitted[0]._tensors().items():
        assert tensor.tobytes() == resumed._tensors()[name].tobytes(), name
    assert resumed._learned() == fitted[0]._learned()


class Careless(DeepSvddDetector):
    """With shifts, which can answer any centre whatever the network is shown."""

    def _build(self, settings, side, channels):
        super()._build(settings, side, channels)
        layers = nn.Linear(side * side * channels, 16), nn.ReLU(), nn.Linear(16, deep_svdd.CODE)
        self.network_ = Hypersphere(nn.Sequential(nn.Flatten(), *layers), deep_svdd.CODE)


def test_shifts_and_a_centre_at_zero_collapse_and_it_is_caught(monkeypatch, caplog):
    monkeypatch.setattr(deep_svdd, "clear_of_zero", lambda mean: np.zeros_like(mean, dtype=np.float32))
    training = short(3200, learning_rate=0.01, weight_decay=0.01).training
    tempting, varied = short(16).model_copy(update={"training": training}), oddities(40, side=8, seed=3)
    parameters = {"side": 8, "precision": "fp32"}
    with pytest.raises(Collapsed, match="answers nearly the same to images and their negatives") as caught:
        Careless(preset=tempting, **parameters).fit(varied)
    assert "\n" not in str(caught.value)
    known = tempting.model_copy(update={"may_collapse": True})
    with caplog.at_level(logging.WARNING):
        detector = Careless(preset=known, **parameters).fit(varied)
    assert detector.shrunk_to_ < 1e-4
    lines = [line for line in detector.training_.weaknesses if "answers nearly the same" in line]
    assert len(lines) == 1
    assert lines[0] in caplog.text


def test_what_is_shipped_has_no_shift_and_its_centre_is_clear_of_zero(fitted):
    detector, _ = fitted
    assert all(parameter.dim() > 1 for parameter in detector.network_.parameters())
    assert detector.network_.centre.abs().min() >= np.float32(0.1)


def test_images_learned_by_heart_are_no_collapse():
    settings = short(120, batch=4, learning_rate=1e-3).model_copy(update={"holdout": 0.0})
    detector = make(settings).fit(NORMALS[:4])
    learned, others = detector.score_samples(NORMALS[:4]), detector.score_samples(255 - NORMALS[:4])
    assert learned.min() > others.max() / 10
    assert detector.shrunk_to_ > 0.1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 16])
def test_a_few_small_images_are_enough(side, channels):
    images = drawings(8, side=side, channels=channels)
    detector = make(short(16, batch=8), side=side).fit(images)
    assert np.isfinite(detector.score_samples(images)).all()


def test_a_last_batch_of_one_image_is_learned_from():
    settings = short(16).model_copy(update={"holdout": 0.0})
    for name in ("pretraining", "training"):
        epoch = getattr(settings, name).model_copy(update={"examples": None, "epochs": 1})
        settings = settings.model_copy(update={name: epoch})
    assert np.isfinite(make(settings).fit(NORMALS[:17]).score_samples(NEW)).all()


def test_a_side_that_the_network_cannot_halve_is_refused_before_training():
    with pytest.raises(InvalidInput, match="multiple of 8, got 12; choose side=16"):
        make(side=12).fit(drawings(8, side=12))


def test_anomalies_score_lower_than_normals():
    scores = make(short(480)).fit(NORMALS).score_samples(NEW)
    assert scores[:6].min() > scores[6:].max()


def test_the_paper_preset_is_ruff_et_als():
    paper = PRESETS["paper"]
    for stage, epochs, dropped in ((paper.pretraining, 350, 250), (paper.training, 150, 50)):
        assert (stage.optimiser, stage.epsilon, stage.batch, stage.weight_decay) == ("adam", "torch", 200, 5e-7)
        steps = stage.steps(5000)
        assert steps == 25 * epochs
        rates = [stage.learning_rate_at(step, steps) for step in (0, 25 * dropped - 1, 25 * dropped + 1, steps - 1)]
        assert rates == [1e-4, 1e-4, 1e-5, 1e-5]
    assert (paper.holdout, paper.may_collapse) == (0, True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert DeepSvddSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def test_effort_counts_both_stages_and_the_decoder(fitted):
    effort = fitted[0].effort_
    answering = 25 * (32 * 64 + 32 * 64 * 16 + 64 * 128 * 4) + 128 * 128
    drawing = 25 * (128 * 128 + 128 * 64 * 4 + 64 * 32 * 16 + 32 * 64)
    images = fitted[0].training_.images
    assert (effort.views_per_image, effort.macs_per_image) == (1, answering)
    assert effort.training_views == 96 + 96 + images
    assert effort.training_macs == 3 * (96 * (answering + drawing) + 96 * answering) + images * answering


def test_a_hostile_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "model.safetensors"
    make(short(16)).fit(NORMALS).save(path)
    tensors, document = storage.read(path, kind="model")

    def refused(change_tensors=None, **changes):
        other = {**document, **changes}
        storage.write(path, kind="model", tensors={**tensors, **(change_tensors or {})}, document=other)
        with pytest.raises(BadFile) as caught:
            askew.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    learned = document["learned"]
    assert "ends above where it starts" in refused(learned={**learned, "high": learned["low"]})
    assert "shrunk_to" in refused(learned={**learned, "shrunk_to": -1})
    assert "unknown" in refused(learned={**learned, "unknown": 1})
    assert refused(learned={})
    assert "centre" in refused({"network/centre": np.zeros(64, np.float32)})
    assert "finite" in refused({"network/centre": np.full(128, np.nan, np.float32)})
    assert "odd" in refused({"network/network.dense.bias": np.zeros(128, np.float32)})
    assert "multiple of 8" in refused(policy={**document["policy"], "side": 12})
    assert "pretraining" in refused(settings={**document["settings"], "pretraining": {}})
