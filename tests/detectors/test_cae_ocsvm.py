"""CAE-OC-SVM: codes and scores by a slow road, resumption to the bit, and what becomes of codes that are all alike."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import askew
from askew import storage, training
from askew.detectors.cae_ocsvm import PRESETS, CaeOcsvmDetector, CaeOcsvmSettings
from askew.errors import BadFile, Collapsed, InvalidInput
from pictures import drawings, oddities

NORMALS = drawings(40, side=8)
NEW = np.concatenate([drawings(6, side=8, seed=5), oddities(6, side=8)])
GRID = {"gammas": (0.01, 0.1), "nus": (0.1, 0.5)}


def short(examples, preset="sound", **grid):
    """A preset's settings with so many examples in training, in small batches."""
    settings = PRESETS[preset].with_views(examples)
    batch = settings.training.model_copy(update={"batch": 16})
    return settings.model_copy(update={"training": batch, "svm": settings.svm.model_copy(update=grid)})


def make(settings=None, **parameters):
    return CaeOcsvmDetector(**{"preset": settings or short(160), "side": 8, "precision": "fp32", **parameters})


@pytest.fixture(scope="module")
def fitted():
    return make().fit(NORMALS)


def code(detector, image):
    """One image's code alone, as whole numbers."""
    pixels = torch.from_numpy(2 * (image.astype(np.float32) / 255) - 1).permute(2, 0, 1)[None]
    with torch.no_grad():
        return [round(float(value) * 2**14) for value in torch.tanh(detector.network_[0](pixels))[0]]


def normality(detector, image):
    """A score with every kernel written out."""
    machine, score = detector.svm_.machine, detector.svm_.machine.offset
    for row, coefficient in zip(detector.svm_.rows[machine.support].tolist(), machine.coefficients, strict=True):
        distance = sum((a - b) ** 2 for a, b in zip(code(detector, image), row, strict=True)) / 2**28
        score += coefficient * math.exp(-machine.gamma * distance)
    return score


def test_codes_are_256_whole_numbers_from_an_encoder_that_sees_one_image(fitted):
    codes = fitted._codes(NEW)
    assert codes.shape == (12, 256)
    assert codes.dtype == np.int16
    assert np.abs(codes - np.array([code(fitted, image) for image in NEW])).max() <= 1
    assert len(np.unique(codes)) > 200


def test_scores_are_kernels_with_the_support_codes_added_up(fitted):
    np.testing.assert_allclose(fitted.score_samples(NEW), [normality(fitted, image) for image in NEW], atol=1e-4)


def test_anomalies_score_lower_than_normals(fitted):
    scores = fitted.score_samples(NEW)
    assert scores[:6].min() > scores[6:].max()


def test_scores_do_not_depend_on_companions_or_order(fitted):
    together = fitted.score_samples(NEW)
    order = np.random.default_rng(3).permutation(len(NEW))
    np.testing.assert_array_equal(fitted.score_samples(NEW[order]), together[order])
    np.testing.assert_array_equal([fitted.score_samples(image[None])[0] for image in NEW], together)


def test_a_saved_detector_is_the_same_without_its_decoder(fitted, tmp_path):
    fitted.save(tmp_path / "one.safetensors")
    loaded = askew.load(tmp_path / "one.safetensors")
    assert type(loaded) is CaeOcsvmDetector
    np.testing.assert_array_equal(loaded.score_samples(NEW), fitted.score_samples(NEW))
    assert loaded.offset_ == fitted.offset_
    assert loaded.effort_.macs_per_image == fitted.effort_.macs_per_image
    loaded.save(tmp_path / "other.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()
    tensors, _ = storage.read(tmp_path / "one.safetensors", kind="model")
    weights = sum(tensor.size for name, tensor in tensors.items() if name.startswith("network/"))
    assert weights == sum(value.numel() for value in fitted.network_.state_dict().values())


def test_the_autoencoder_learns_to_redraw_normal_images():
    def error(examples):
        detector = make(short(examples).model_copy(update={"holdout": 0.0})).fit(NORMALS)
        # As in training: so short a one does not settle the running statistics of batches, on which it hangs otherwise.
        whole = nn.Sequential(detector.network_, detector.decoder_).train()
        pixels = detector.engine_.scaled(torch.from_numpy(NORMALS))
        with torch.no_grad():
            return float((whole(pixels) - pixels).square().mean())

    assert error(640) < error(16) / 4


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", [1, 7])
def test_a_killed_fit_resumes_to_the_same_codes_and_machine(fitted, tmp_path, monkeypatch, at):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)

    def watch(progress):
        if (progress.stage, progress.done) == ("training", at):
            raise Killed

    checkpoint = str(tmp_path / "fit.checkpoint")
    with pytest.raises(Killed):
        make(checkpoint=checkpoint, watch=watch).fit(NORMALS)
    told = []
    resumed = make(checkpoint=checkpoint, watch=told.append).fit(NORMALS)
    assert next(progress.done for progress in told if progress.stage == "training") == at
    for name, tensor in fitted._tensors().items():
        assert tensor.tobytes() == resumed._tensors()[name].tobytes(), name
    assert resumed._learned() == fitted._learned()


def test_every_machine_of_a_grid_is_a_candidate():
    detector = make(short(16, "paper", **GRID)).fit(NORMALS)
    candidates = detector.candidate_scores(NEW)
    assert len(candidates) == 4
    machine = detector.svm_.machine
    np.testing.assert_array_equal(candidates[f"nu 0.1, gamma {machine.gamma:g}"], detector.score_samples(NEW))
    assert len({scores.tobytes() for scores in candidates.values()}) == 4


def test_without_a_grid_there_are_no_candidates(fitted):
    with pytest.raises(InvalidInput, match='preset="paper"'):
        fitted.candidate_scores(NEW)


def forgetful(kind):
    """The detector with an encoder that takes all images for the same."""

    class Forgetful(kind):
        def _codes(self, images):
            with torch.no_grad():
                self.network_[0].dense.weight.zero_()
            return super()._codes(images)

    return Forgetful


def test_codes_that_are_all_alike_are_refused_or_flagged():
    kind = forgetful(CaeOcsvmDetector)
    with pytest.raises(Collapsed, match="different normal images all score") as caught:
        kind(preset=short(16, holdout=0.5), side=8, precision="fp32", holdout=0.4).fit(NORMALS)
    assert "\n" not in str(caught.value)
    detector = kind(preset=short(16, "paper", **GRID), side=8, precision="fp32").fit(NORMALS)
    assert sum("collapsed" in line for line in detector.training_.weaknesses) == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 16])
def test_a_few_small_images_are_enough(side, channels):
    images = drawings(8, side=side, channels=channels)
    detector = make(short(16), side=side).fit(images)
    assert np.isfinite(detector.score_samples(images)).all()


def test_a_side_that_the_encoder_cannot_halve_is_refused_before_training():
    with pytest.raises(InvalidInput, match="multiple of 8, got 12"):
        make(side=12).fit(drawings(8, side=12))


def test_the_paper_preset_is_the_papers():
    paper = PRESETS["paper"]
    stage = paper.training
    assert (stage.optimiser, stage.learning_rate, stage.schedule) == ("adam", 1e-3, "constant")
    assert (stage.batch, stage.epochs, stage.weight_decay, stage.epsilon) == (128, 200, 0, "keras")
    assert len(paper.svm.gammas) * len(paper.svm.nus) == 90
    assert (paper.svm.most_at(32), paper.svm.most_at(64)) == (None, 2500)
    assert (paper.svm.relative, paper.svm.grid, paper.holdout, paper.may_collapse) == (False, True, 0, True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert CaeOcsvmSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def test_effort_counts_the_decoder_in_training_alone(fitted):
    effort, images = fitted.effort_, fitted.training_.images
    encoding = 9 * (1 * 64 * 16 + 64 * 128 * 4 + 128 * 256) + 256 * 256
    drawing = 256 * 256 + 9 * (256 * 128 + 128 * 64 * 4 + 64 * 1 * 16)
    machine = fitted.svm_
    assert effort.macs_per_image == encoding + 256 * len(machine.machine.support)
    assert effort.training_views == 160 + images
    assert effort.training_macs == 3 * 160 * (encoding + drawing) + images * encoding + 256 * images**2


def test_a_hostile_file_is_refused_in_one_line(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    tensors, document = storage.read(path, kind="model")

    def refused(change_tensors=None, **changes):
        other = {**document, **changes}
        storage.write(path, kind="model", tensors={**tensors, **(change_tensors or {})}, document=other)
        with pytest.raises(BadFile) as caught:
            askew.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    learned, support = document["learned"], tensors["svm/support"]
    assert "gamma" in refused(learned={**learned, "gamma": -1.0})
    assert "unknown" in refused(learned={**learned, "unknown": 1})
    assert "support vectors" in refused({"svm/support": support.astype(np.int32)})
    assert "support vectors" in refused({"svm/support": support[:, :-1]})
    assert "coefficients" in refused({"svm/coefficients": tensors["svm/coefficients"][:-1]})
    assert "coefficients" in refused({"svm/coefficients": tensors["svm/coefficients"] * np.nan})
    assert "does not fit" in refused({"network/0.dense.bias": np.zeros(5, np.float32)})
    assert "finite" in refused({"network/0.dense.bias": np.full(256, np.nan, np.float32)})
    assert "odd" in refused({"network/1.dense.bias": np.zeros(256, np.float32)})
    assert "multiple of 8" in refused(policy={**document["policy"], "side": 12})
    assert "training" in refused(settings={**document["settings"], "training": {}})
