"""Losses and scores written out, the mixture that is scored with, and how a fit that has collapsed says so."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import askew
import references
from askew import storage, training
from askew.detectors.dagmm import PRESETS, DagmmDetector, DagmmNetwork, DagmmSettings, likeness
from askew.detectors.gaussian_mixture import CappedMixture, Mixture
from askew.detectors.learning import Run
from askew.errors import BadFile, Collapsed, Diverged
from askew.training import Step
from pictures import drawings, oddities

NORMALS = drawings(40, side=8)
NEW = np.concatenate([drawings(6, side=8, seed=5), oddities(6, side=8)])

# Of the authors' encoder and decoder, as golden/parameter_counts.json has them, with 5 instead of 256 numbers between
# them; and of three dense layers from 7 to 64, 10 and 3.
DENSE = 7 * 64 + 64 + 64 * 10 + 10 + 10 * 3 + 3
COUNTS = {
    (32, 3): 393093 + 1440387 - 251 * 4096 + DENSE,
    (32, 1): 391941 + 1439233 - 251 * 4096 + DENSE,
    (64, 3): 1595781 + 1477571 - 251 * 4096 + DENSE,
}

PENALISED = {"paper": range(7), "sound": range(5)}  # the features whose variances must not shrink


def tiny(name):
    # At the paper's rate a mixture of the program's moves so fast that after ten steps all energies are at their cap.
    few = {"epochs": None, "examples": 160, "batch": 16, "learning_rate": 1e-4}
    training = PRESETS[name].training.model_copy(update=few)
    return PRESETS[name].model_copy(update={"training": training})


def detector(name="sound", settings=None, **parameters):
    return DagmmDetector(preset=settings or tiny(name), **{"side": 8, "precision": "fp32", **parameters})


@pytest.fixture(scope="module", params=PRESETS)
def fitted(request):
    return detector(request.param).fit(NORMALS)


def scaled(images):
    return torch.from_numpy(images / 255 * 2 - 1).permute(0, 3, 1, 2).float()


def numbers(mixture):
    return [array.double().numpy() for array in (mixture.shares, mixture.means, mixture.covariances)]


@pytest.mark.parametrize("shape", COUNTS)
def test_the_networks_have_the_authors_parameter_counts(shape):
    side, channels = shape
    with torch.device("meta"):
        state = DagmmNetwork(channels=channels, side=side).state_dict()
    mixture = {"shares", "means", "covariances"}
    counted = [value for name, value in state.items() if "num_batches" not in name and name not in mixture]
    assert sum(value.numel() for value in counted) == COUNTS[shape]


def test_likeness_is_a_relative_distance_and_a_cosine():
    given, redrawn = np.random.default_rng(0).normal(size=(2, 5, 20))
    slow = [
        (np.linalg.norm(a - b) / np.linalg.norm(a), a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        for a, b in zip(given, redrawn, strict=True)
    ]
    np.testing.assert_allclose(likeness(torch.from_numpy(given), torch.from_numpy(redrawn)), slow)


@pytest.mark.parametrize(("given", "redrawn"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_images_without_length_or_without_error_have_a_likeness_and_a_gradient(given, redrawn):
    drawn = torch.full((1, 9), redrawn, requires_grad=True)
    found = likeness(torch.full((1, 9), given), drawn)
    found.sum().backward()
    assert found.isfinite().all()
    assert drawn.grad.isfinite().all()


@pytest.mark.parametrize("name", PRESETS)
def test_the_loss_is_the_squared_error_the_energy_and_the_precisions_of_the_batch(monkeypatch, name):
    caught = []
    monkeypatch.setattr(Run, "train", lambda run, network, loss, **_: caught.append(loss))
    made = detector(name)
    made._build(tiny(name), 8, 1)
    made._train_networks(NORMALS, tiny(name), Run(made.engine_for(precision="fp32"), 0, None, None))
    network = made.network_.train()
    before = torch.random.get_rng_state()
    rows = torch.arange(30) + 3
    loss, right = caught[0](Step(rows, torch.Generator().manual_seed(7), 0))
    assert right is None
    assert torch.equal(torch.random.get_rng_state(), before)

    draw = torch.Generator().manual_seed(7)
    kept = [torch.rand(30, width, generator=draw) >= 0.5 for width in (64, 10)]
    images = scaled(NORMALS)[rows]
    with torch.no_grad():
        code = network.encoder(images)
        redrawn = network.decoder(code)
        features = torch.cat([code, likeness(images.flatten(1), redrawn.flatten(1))], 1)
        answers = features
        for layer, mask in zip(network.asked, kept, strict=False):
            answers = torch.tanh(layer(answers)) * mask * 2
        answers = torch.softmax(network.asked[2](answers), 1)
        expected = float((redrawn - images).square().mean())
    features, answers = features.double().numpy(), answers.double().numpy()
    shares, means, covariances = references.mixture_of(features, answers)
    if name == "paper":
        ridge = 1e-3 + 1e-4 * torch.randn(3, 7, generator=draw).double().numpy()
        covariances += [np.diag(row) for row in ridge]
        energies = [references.capped_energy(point, shares, means, covariances) for point in features]
    else:
        covariances += 1e-3 * np.eye(7)
        logs = [multivariate_normal(*pair).logpdf(features) for pair in zip(means, covariances, strict=True)]
        energies = -logsumexp(np.transpose(logs), b=shares, axis=1)
    expected += 0.01 * np.mean(energies)
    expected += 0.0005 * sum(1 / covariance[i, i] for covariance in covariances for i in PENALISED[name])
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-3)


def test_dropout_is_drawn_from_the_step_and_off_in_scoring(fitted):
    network, x = fitted.network_, scaled(NEW)
    with torch.no_grad():
        plain = network(x)[2]
        assert torch.equal(network(x)[2], plain)
        whole = network(x, [torch.full((len(x), width), 0.5) for width in (64, 10)])[2]
    torch.testing.assert_close(whole, plain)


def test_the_paper_scores_with_the_mixture_that_the_last_batch_was_trained_on(monkeypatch):
    seen = []
    widened = CappedMixture.widened
    monkeypatch.setattr(CappedMixture, "widened", lambda self, more: seen.append(widened(self, more)) or seen[-1])
    made = detector("paper").fit(NORMALS)
    assert len(seen) == 10
    for array, last in zip(
        numbers(made.mixture_), (seen[-1].shares, seen[-1].means, seen[-1].covariances), strict=True
    ):
        np.testing.assert_array_equal(array, last.detach().double().numpy())


def test_the_ridge_of_the_program_is_random_and_new_in_every_step(monkeypatch):
    added = []
    widened = CappedMixture.widened
    monkeypatch.setattr(CappedMixture, "widened", lambda self, more: added.append(more) or widened(self, more))
    detector("paper").fit(NORMALS)
    ridges = torch.stack(added)
    assert ridges.shape == (10, 3, 7)
    assert len(ridges.unique()) == 210
    assert float(ridges.mean()) == pytest.approx(1e-3, abs=3e-5)
    assert float(ridges.std()) == pytest.approx(1e-4, abs=2e-5)


def test_the_sound_mixture_is_of_all_images_as_they_are_when_scored():
    made = detector("sound", holdout=0.0).fit(NORMALS)
    with torch.no_grad():
        described = [made.network_(scaled(image[None])) for image in NORMALS]
    features, answers = (torch.cat([one[part] for one in described]).double().numpy() for part in (1, 2))
    for array, slow in zip(numbers(made.mixture_), references.mixture_of(features, answers), strict=True):
        np.testing.assert_allclose(array, slow, rtol=1e-3, atol=1e-5)


def test_scores_are_minus_the_energy_and_depend_on_the_image_alone(fitted):
    together = fitted.score_samples(NEW)
    assert np.ptp(together) > 0.1
    order = np.random.default_rng(0).permutation(len(NEW))
    np.testing.assert_array_equal(fitted.score_samples(NEW[order]), together[order])
    for index in (0, 7):
        np.testing.assert_array_equal(fitted.score_samples(NEW[index : index + 1]), together[index : index + 1])
    with torch.no_grad():
        features = fitted.network_(scaled(NEW))[1]
        np.testing.assert_allclose(together, -fitted.mixture_.energy(features).numpy(), rtol=1e-3)


def test_an_energy_that_is_not_finite_scores_below_all_others_whatever_its_companions(monkeypatch):
    made = detector("paper").fit(NORMALS)
    energies = DagmmDetector._energies

    def odd(self, images):
        alike = (images == NEW[3]).all(axis=(1, 2, 3))
        return np.where(alike, np.nan, energies(self, images))

    monkeypatch.setattr(DagmmDetector, "_energies", odd)
    scores = made.score_samples(NEW)
    assert np.isfinite(scores).all()
    assert scores[3] == pytest.approx(-16.0195, abs=1e-4)
    assert scores[3] < np.delete(scores, 3).min() - 0.99
    assert made.score_samples(NEW[3:4]) == scores[3]


def test_training_finds_oddities_unlikely():
    scores = detector().fit(NORMALS).score_samples(NEW)
    assert scores[:6].min() > scores[6:].max()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("side", "channels"), [(8, 3), (16, 1)])
def test_eight_images_of_any_kind_are_enough_to_fit(name, side, channels):
    made = detector(settings=PRESETS[name].with_views(32), side=side)
    made.fit(drawings(8, side=side, channels=channels))
    assert np.isfinite(made.score_samples(drawings(3, side=side, channels=channels, seed=2))).all()


def test_the_paper_preset_is_the_programs():
    paper = PRESETS["paper"]
    training = paper.training
    assert (training.optimiser, training.learning_rate, training.schedule) == ("adam", 1e-3, "constant")
    assert (training.batch, training.epochs, training.examples, training.weight_decay) == (256, 200, None, 0)
    assert (training.betas, training.epsilon) == ((0.9, 0.999), "keras")
    assert (paper.mixture, paper.holdout, paper.may_collapse) == ("last-batch", 0.0, True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert DagmmSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def test_a_saved_detector_gives_identical_scores(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = askew.load(path)
    assert type(loaded.mixture_) is type(fitted.mixture_)
    np.testing.assert_array_equal(loaded.score_samples(NEW), fitted.score_samples(NEW))
    assert loaded.effort_ == fitted.effort_


def test_the_effort_counts_training_and_the_mixtures_pass():
    made = detector("sound").fit(NORMALS)
    # 8 by 8 pixels: 16, 4 and 1 places there and 1, 4 and 16 back; the dense layers between.
    coder = 16 * 64 * 9 + 4 * 128 * 64 * 9 + 256 * 128 * 9 + 256 * 5 + 5 * 256
    coder += 256 * 128 * 9 + 4 * 128 * 64 * 9 + 16 * 64 * 9 + 7 * 64 + 64 * 10 + 10 * 3
    effort, images = made.effort_, made.training_.images
    assert (effort.views_per_image, effort.macs_per_image) == (1, coder)
    assert (effort.training_views, effort.training_macs) == (160 + images, (3 * 160 + images) * coder)


class Killed(Exception):
    """What stands for a process that ends in the middle of a step."""


@pytest.mark.parametrize(
    ("name", "stage", "moment"),
    [
        ("paper", "training", 6),
        ("paper", "scoring for variety", 10),
        ("sound", "training", 6),
        ("sound", "fitting the mixture", 16),
    ],
)
def test_a_killed_fit_resumes_to_the_same_weights_and_mixture(tmp_path, monkeypatch, name, stage, moment):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)

    def watch(progress):
        if progress.stage == stage and progress.done == moment:
            raise Killed

    checkpoint = str(tmp_path / "fit.checkpoint")
    with pytest.raises(Killed):
        detector(name, checkpoint=checkpoint, watch=watch).fit(NORMALS)
    assert list(tmp_path.iterdir())
    resumed = detector(name, checkpoint=checkpoint).fit(NORMALS)
    whole = detector(name).fit(NORMALS)
    for key, array in whole._tensors().items():
        np.testing.assert_array_equal(resumed._tensors()[key], array, err_msg=key)
    np.testing.assert_array_equal(resumed.score_samples(NEW), whole.score_samples(NEW))


def broken(monkeypatch, change):
    """Let every training end by changing the network."""
    train = Run.train

    def trained(run, network, loss, **others):
        train(run, network, loss, **others)
        with torch.no_grad():
            change(network)

    monkeypatch.setattr(Run, "train", trained)


def test_a_singular_covariance_is_refused_and_flagged_where_the_paper_keeps_it(monkeypatch):
    def numb(network):
        network.encoder.dense.weight.zero_()  # the code is the same for all images
        network.covariances[:] = torch.ones(7, 7)

    broken(monkeypatch, numb)
    with pytest.raises(Collapsed, match="singular") as caught:
        detector("sound").fit(np.concatenate([NORMALS, drawings(40, side=8, seed=3)]))
    assert "\n" not in str(caught.value)
    assert any("singular" in line for line in detector("paper").fit(NORMALS).training_.weaknesses)


def test_a_mixture_of_one_component_is_flagged(monkeypatch):
    def dominant(network):
        network.asked[2].weight.zero_()
        network.asked[2].bias.copy_(torch.tensor([0.0, 20.0, 0.0]))
        network.shares.copy_(torch.tensor([0.0, 1.0, 0.0]))

    broken(monkeypatch, dominant)
    for name in PRESETS:
        assert any("one alone is alive" in line for line in detector(name).fit(NORMALS).training_.weaknesses)


def test_ties_at_the_cap_are_flagged_and_constant_scores_are_too(monkeypatch):
    broken(monkeypatch, lambda network: network.means.fill_(100))
    lines = detector("paper").fit(NORMALS).training_.weaknesses
    assert any("all score -15.01" in line for line in lines)
    assert any("tie" in line for line in lines)


def test_constant_scores_are_refused_by_the_sound_settings(monkeypatch):
    monkeypatch.setattr(Mixture, "energy", lambda self, features: 0 * features.sum(1) + 2)
    with pytest.raises(Collapsed, match="all score -2"):
        detector("sound", holdout=0.5).fit(NORMALS)


def test_energies_that_are_no_numbers_are_refused_and_flagged_where_the_paper_keeps_them(monkeypatch):
    monkeypatch.setattr(DagmmDetector, "_energies", lambda self, images: np.full(len(images), np.nan))
    with pytest.raises(Diverged):
        detector("sound").fit(NORMALS)
    made = detector("paper").fit(NORMALS)
    assert any("not finite" in line for line in made.training_.weaknesses)
    assert np.isfinite(made.score_samples(NEW)).all()


@pytest.mark.parametrize("name", PRESETS)
def test_a_training_that_diverges_is_an_error_and_not_a_model(monkeypatch, name):
    build = DagmmDetector._build

    def poisoned(self, settings, side, channels):
        build(self, settings, side, channels)
        with torch.no_grad():
            self.network_.encoder.dense.bias.fill_(torch.nan)

    monkeypatch.setattr(DagmmDetector, "_build", poisoned)
    with pytest.raises(Diverged):
        detector(name).fit(NORMALS)


def test_a_file_that_does_not_fit_its_settings_is_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    tensors, document = storage.read(path, kind="model")

    def refused(change_tensors=None, **changes):
        changed = {**tensors, **(change_tensors or {})}
        storage.write(path, kind="model", tensors=changed, document={**document, **changes})
        with pytest.raises(BadFile) as caught:
            askew.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "mixture" in refused({"mixture/means": np.zeros((3, 8))})
    assert "mixture" in refused({"mixture/covariances": np.full((3, 7, 7), np.nan)})
    assert "mixture" in refused({"mixture/shares": np.zeros(3)})
    assert "finite" in refused({"network/encoder.dense.bias": np.full(5, np.inf, np.float32)})
    assert "odd" in refused({"network/more": np.zeros(3, np.float32)})
    assert "more" in refused(learned={"more": 1})
    assert "mixture" in refused(settings={**document["settings"], "mixture": "of-experts"})
