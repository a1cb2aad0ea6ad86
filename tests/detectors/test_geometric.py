"""The method itself: the paper's numbers by a slow road, presets, and what it says of its weak sides."""

import numpy as np
import pytest
import torch

import askew
from askew.detectors.presets import PRESETS, GeometricSettings, TransformChoice
from askew.errors import InvalidInput
from askew.geometry import TransformSet, fit_dirichlet
from askew.networks import CompactSettings
from pictures import drawings

NORMALS = drawings(40)


def test_scores_are_algorithm_1_written_out(tiny_settings):
    """Each view alone, each transform's Dirichlet alone, each term added by hand."""
    settings = tiny_settings.model_copy(update={"question": "transform", "alpha_images": None, "holdout": 0.0})
    detector = askew.GeometricDetector(preset=settings, side=16, precision="fp32").fit(NORMALS)
    transforms, network = detector.transforms_, detector.network_

    def answers(image, t):
        view = transforms.apply(image[None])[0, t]
        pixels = torch.from_numpy(2 * (view.astype(np.float32) / 255) - 1).permute(2, 0, 1)[None]
        with torch.no_grad():
            return network(pixels)[0].double().log_softmax(0).numpy()

    alphas = [fit_dirichlet(np.array([answers(image, t) for image in NORMALS])) for t in range(len(transforms))]
    np.testing.assert_allclose(detector.alphas_[0], alphas, rtol=1e-4)
    image = drawings(1, seed=7)[0]
    slow = 0.0
    for t in range(len(transforms)):
        for j, log_p in enumerate(answers(image, t)):
            slow += (alphas[t][j] - 1) * log_p / len(transforms)
    np.testing.assert_allclose(detector.score_samples(image[None]), [slow], rtol=1e-3)


def test_separate_questions_add_up():
    """One Dirichlet per transform and question; the normality is their sum."""
    detector = askew.GeometricDetector(views=256, precision="fp32").fit(NORMALS)
    assert detector.questions_.names == ("row_shift", "column_shift", "turn")
    assert [alphas.shape for alphas in detector.alphas_] == [(36, 3), (36, 3), (36, 4)]


def test_the_paper_preset_is_the_papers():
    paper = PRESETS["paper"]
    assert len(paper.transforms.at(32)) == 72
    assert paper.transforms.at(32) == TransformSet.paper(32)
    assert paper.transforms.at(64) == TransformSet.paper(64)
    assert paper.question == "transform"
    assert (paper.network_for(32).depth, paper.network_for(32).width) == (10, 4)
    assert (paper.network_for(64).depth, paper.network_for(64).width) == (16, 8)
    training = paper.training
    assert (training.optimiser, training.learning_rate, training.schedule) == ("adam", 1e-3, "constant")
    assert (training.batch, training.epochs, training.weight_decay, training.examples) == (128, 3, 5e-4, None)
    # 5,000 CIFAR-10 images: 1.08 million views in 8,439 steps, the last of each epoch a partial one.
    assert training.steps(5000 * 72) == 3 * 2813
    assert (paper.jitter_flip, paper.jitter_shift, paper.alpha_images, paper.holdout) == (False, 0, None, 0.0)


def test_the_paper_preset_says_which_sides_it_is_defined_for():
    with pytest.raises(InvalidInput, match="multiple of 32"):
        askew.GeometricDetector(preset="paper", side=40).fit(drawings(20, side=40))
    with pytest.raises(InvalidInput, match="starts at images of 32 pixels"):
        askew.GeometricDetector(preset="paper", side=16).fit(NORMALS)


def test_the_paper_preset_fits_and_scores(tmp_path):
    detector = askew.GeometricDetector(preset="paper", views=32, precision="fp32").fit(drawings(3, side=28))
    assert detector.policy_.fit == "pad"
    assert detector.threshold_ is None
    detector.save(tmp_path / "paper.safetensors")
    new = drawings(2, side=28, seed=3)
    np.testing.assert_array_equal(
        askew.load(tmp_path / "paper.safetensors").score_samples(new), detector.score_samples(new)
    )


def test_the_paper_preset_holds_out_when_a_rate_is_asked_for():
    detector = askew.GeometricDetector(preset="paper", views=32, precision="fp32", false_alarm_rate=0.5)
    detector.fit(drawings(4, side=32))
    assert detector.fitted_threshold.n == 1


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert GeometricSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def test_an_unknown_preset_names_the_known():
    with pytest.raises(InvalidInput, match="fast"):
        askew.GeometricDetector(preset="slow").fit(NORMALS)


def test_own_transforms_are_used_and_kept(tmp_path):
    transforms = TransformSet(16, flips=(False, True), row_shifts=tuple(range(12)), turns=(0, 2))
    detector = askew.GeometricDetector(views=256, side=16, transforms=transforms, precision="fp32").fit(NORMALS)
    assert detector.questions_.names == ("flip", "row_shift", "turn")
    detector.save(tmp_path / "own.safetensors")
    loaded = askew.load(tmp_path / "own.safetensors")
    assert loaded.transforms_ == transforms
    np.testing.assert_array_equal(loaded.score_samples(NORMALS), detector.score_samples(NORMALS))
    with pytest.raises(InvalidInput, match="side of 16"):
        askew.GeometricDetector(transforms=transforms, side=24).fit(NORMALS)


@pytest.mark.parametrize("question", ["transform", "factors"])
def test_a_set_of_one_transform_is_refused_for_nothing_could_be_learned(tiny_settings, question):
    alone = TransformChoice(flips=(False,), shifts=(0,), turns=(0,))
    settings = tiny_settings.model_copy(update={"transforms": alone, "question": question})
    for chosen in ({"preset": settings}, {"transforms": TransformSet(16), "views": 128}):
        with pytest.raises(InvalidInput, match="one transform leaves nothing to recognise; give two or more"):
            askew.GeometricDetector(side=16, **chosen).fit(NORMALS)


def test_classes_symmetric_under_a_transform_are_named(tiny_settings):
    """Plain discs look the same after every turn; so does a shift along rows, turned, like one along columns."""
    rows, columns = np.mgrid[:16, :16] - 7.5
    disc = 200.0 * (rows**2 + columns**2 < 25)
    noise = np.random.default_rng(0).normal(0, 3, (60, 16, 16))
    images = np.clip(disc + 20 + noise, 0, 255).astype(np.uint8)
    detector = askew.GeometricDetector(preset=tiny_settings, side=16, precision="fp32").fit(images)
    assert detector.recognition_["turn"] < 0.4
    assert detector.recognition_["row_shift"] < 0.7
    assert any(line.startswith("the turn of normal images") for line in detector.training_.weaknesses)


def test_any_side_from_8_works_with_the_fast_preset():
    for side in (8, 9, 13, 30):
        detector = askew.GeometricDetector(views=128, side=side, precision="fp32").fit(drawings(12, side=side))
        assert np.isfinite(detector.score_samples(drawings(2, side=side, seed=4))).all()


def test_precision_is_recorded_and_kept(tmp_path):
    detector = askew.GeometricDetector(views=128, precision="bf16", side=16).fit(NORMALS)
    detector.save(tmp_path / "bf16.safetensors")
    loaded = askew.load(tmp_path / "bf16.safetensors")
    assert loaded.engine_.precision == "bf16"
    np.testing.assert_array_equal(loaded.score_samples(NORMALS), detector.score_samples(NORMALS))


def test_the_72_fold_set_is_never_in_memory(tiny_settings, monkeypatch):
    """No call makes views of more than one batch in training, or of one image in scoring."""
    made = []
    view, apply = TransformSet.view, TransformSet.apply
    monkeypatch.setattr(TransformSet, "view", lambda s, i, t: made.append(len(i)) or view(s, i, t))
    monkeypatch.setattr(TransformSet, "apply", lambda s, i: made.append(len(i) * len(s)) or apply(s, i))
    askew.GeometricDetector(preset=tiny_settings, side=16, precision="fp32").fit(drawings(300))
    assert max(made) == 64


def test_a_network_that_does_not_fit_its_settings_is_refused(tmp_path):
    from askew import storage
    from askew.errors import BadFile

    path = tmp_path / "model.safetensors"
    askew.GeometricDetector(views=128, side=16, precision="fp32").fit(NORMALS).save(path)
    tensors, document = storage.read(path, kind="model")

    def refused(change_tensors=None, **changes):
        other = {**document, **changes}
        storage.write(path, kind="model", tensors={**tensors, **(change_tensors or {})}, document=other)
        with pytest.raises(BadFile) as caught:
            askew.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "alphas" in refused({"alphas/turn": np.ones((36, 5))})
    assert "alphas" in refused({"alphas/turn": np.full((36, 4), np.nan)})
    assert refused({"network/stem.weight": np.zeros((1, 1, 1, 1), np.float32)})
    assert refused({"network/more": np.zeros(3, np.float32)})
    assert "detector" in refused(detector="oracle")
    assert "precision" in refused(precision="fp1")
    assert "policy.side" in refused(policy={"side": 10**9, "fit": "crop", "channels": 1})
    assert refused(learned={**document["learned"], "row_shifts": [0, 10**9]})
    assert refused(learned={**document["learned"], "turns": [0, 7]})
    assert "false_alarm_rate" in refused(false_alarm_rate=2.0)
    assert "half a threshold" in refused(false_alarm_rate=None)
    networks = {"8": CompactSettings(widths=(2048,) * 6, blocks=(16,) * 6).model_dump(mode="json")}
    assert refused(settings={**document["settings"], "networks": networks})
    assert "unknown" in refused(settings={**document["settings"], "unknown": 1})
    nan = np.full_like(tensors["network/stem.weight"], np.nan)
    assert "finite" in refused({"network/stem.weight": nan})
