"""The energy and its gradient by slow roads, the loss written out, and how a fit that has collapsed says so."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import askew
import references
from askew import storage, training
from askew.detectors.dsebm import PRESETS, DsebmDetector, DsebmSettings, EnergyNetwork
from askew.detectors.learning import Run
from askew.errors import BadFile, Collapsed, Diverged
from askew.training import Step
from pictures import drawings, oddities

NORMALS = drawings(40, side=8)
NEW = np.concatenate([drawings(6, side=8, seed=5), oddities(6, side=8)])

# Of the authors' encoder, as golden/parameter_counts.json has them; and the centre, an image.
COUNTS = {(32, 3): 1421440 + 3072, (32, 1): 1420288 + 1024, (64, 3): 3652224 + 12288}


def tiny(name, **changes):
    training = PRESETS[name].training.model_copy(update={"epochs": None, "examples": 160, "batch": 16})
    return PRESETS[name].model_copy(update={"training": training, **changes})


def detector(name="sound", settings=None, **parameters):
    return DsebmDetector(preset=settings or tiny(name), **{"side": 8, "precision": "fp32", **parameters})


@pytest.fixture(scope="module", params=PRESETS)
def fitted(request):
    return detector(request.param).fit(NORMALS)


def network(*, side=8, channels=1, seed=0):
    """One whose every number is away from where it starts, in double precision."""
    torch.manual_seed(seed)
    made = EnergyNetwork(channels=channels, side=side).double()
    for name, value in made.named_parameters():
        if not name.endswith("dense.weight"):
            nn.init.normal_(value, mean=float("norm" in name), std=0.1)
    return made


def pixels(n, *, side=8, channels=1):
    return torch.rand(n, channels, side, side, dtype=torch.float64) * 2 - 1


def by_autograd(model, x):
    """One step down the energy, by a gradient that can be differentiated again."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.energy(x).sum(), x, create_graph=True)
    return x - gradient


def test_a_step_down_the_energy_is_by_central_differences():
    """In training mode, where the energy of an image depends on the batch: the sum of all is differentiated."""
    model = network()
    x = pixels(5)
    step = (x - model(x)).detach().flatten()
    flat = x.flatten()
    for place in np.random.default_rng(0).choice(len(flat), 60, replace=False):
        up, down = flat.clone(), flat.clone()
        up[place] += 1e-5
        down[place] -= 1e-5
        with torch.no_grad():
            rise = model.energy(up.view_as(x)).sum() - model.energy(down.view_as(x)).sum()
        assert float(step[place]) == pytest.approx(float(rise / 2e-5), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("n", "side", "channels"), [(4, 16, 3), (3, 64, 1), (1, 8, 1), (1, 16, 3)])
def test_a_step_and_what_it_teaches_are_autograds(n, side, channels):
    fast, slow = network(side=side, channels=channels), network(side=side, channels=channels)
    x = pixels(n, side=side, channels=channels)
    target = pixels(n, side=side, channels=channels)
    one, other = fast(x), by_autograd(slow, x)
    torch.testing.assert_close(one, other)
    functional.mse_loss(one, target).backward()
    functional.mse_loss(other, target).backward()
    for (name, value), again in zip(fast.named_parameters(), slow.parameters(), strict=True):
        given = torch.zeros_like(again) if again.grad is None else again.grad
        taught = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(taught, given, msg=name)
    for (name, value), again in zip(fast.named_buffers(), slow.buffers(), strict=True):
        torch.testing.assert_close(value, again, msg=name)


def test_an_energy_is_half_a_squared_distance_less_what_the_encoder_finds():
    model = network(channels=3).eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 2)
    for image in pixels(3, channels=3):
        x = image.numpy()
        slow = ((x - model.centre.detach().numpy()) ** 2).sum() / 2
        state = {name: value.numpy() for name, value in model.encoder.state_dict().items()}
        for layer in (0, 3, 6):
            x = references.same_convolution(x, state[f"layers.{layer}.weight"], 2)
            x += state[f"layers.{layer}.bias"][:, None, None]
            mean, variance, weight, bias = (
                state[f"layers.{layer + 1}.{name}"][:, None, None]
                for name in ("running_mean", "running_var", "weight", "bias")
            )
            x = np.maximum(0, (x - mean) / np.sqrt(variance + 1e-3) * weight + bias)
        code = state["dense.weight"] @ x.flatten() + state["dense.bias"]
        slow -= np.maximum(0, code).sum()
        assert float(model.energy(image[None]).detach()) == pytest.approx(slow, rel=1e-9)


def test_the_loss_is_the_squared_error_of_a_step_from_noise_towards_the_image(monkeypatch):
    caught = {}
    monkeypatch.setattr(Run, "train", lambda run, network, loss, **_: caught.update(network=network, loss=loss))
    detector(holdout=0.0).fit(NORMALS)
    rows = torch.tensor([3, 0, 5])
    loss, right = caught["loss"](Step(rows, torch.Generator().manual_seed(7), 0))
    assert right is None
    noise = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    clean = torch.from_numpy(NORMALS[rows] / 255 * 2 - 1).permute(0, 3, 1, 2).float()
    rebuilt = by_autograd(caught["network"].train(), clean + 0.5 * noise)
    errors = [(a - b) ** 2 for a, b in zip(rebuilt.flatten().tolist(), clean.flatten().tolist(), strict=True)]
    assert float(loss.detach()) == pytest.approx(sum(errors) / len(errors), rel=1e-5)


@pytest.mark.parametrize("shape", COUNTS)
def test_the_network_has_the_authors_parameter_count(shape):
    side, channels = shape
    with torch.device("meta"):
        state = EnergyNetwork(channels=channels, side=side).state_dict()
    assert sum(value.numel() for name, value in state.items() if "num_batches" not in name) == COUNTS[shape]


def test_the_paper_preset_is_the_papers():
    paper = PRESETS["paper"]
    training = paper.training
    assert (training.optimiser, training.learning_rate, training.schedule) == ("adam", 1e-3, "constant")
    assert (training.batch, training.epochs, training.examples, training.weight_decay) == (128, 200, None, 0)
    assert (training.betas, training.epsilon) == ((0.9, 0.999), "keras")
    assert (paper.noise, paper.holdout, paper.may_collapse) == (0.5, 0.0, True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert DsebmSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def test_training_raises_the_energy_of_oddities_above_that_of_normals():
    fitted = detector().fit(NORMALS)
    scores = fitted.score_samples(NEW)
    assert scores[:6].min() > scores[6:].max()
    assert fitted.training_.weaknesses == ()


@pytest.mark.parametrize(("side", "channels"), [(8, 3), (16, 1), (16, 3)])
def test_eight_images_of_any_kind_are_enough_to_fit(side, channels):
    settings = PRESETS["sound"].with_views(64)
    fitted = detector(settings=settings, side=side).fit(drawings(8, side=side, channels=channels))
    assert np.isfinite(fitted.score_samples(drawings(3, side=side, channels=channels, seed=2))).all()


def test_scores_are_without_noise_and_depend_on_the_image_alone(fitted):
    together = fitted.score_samples(NEW)
    order = np.random.default_rng(0).permutation(len(NEW))
    np.testing.assert_array_equal(fitted.score_samples(NEW[order]), together[order])
    for index in (0, 7):
        np.testing.assert_array_equal(fitted.score_samples(NEW[index : index + 1]), together[index : index + 1])
    x = torch.from_numpy(NEW / 255 * 2 - 1).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        np.testing.assert_allclose(together, -fitted.network_.energy(x).numpy(), rtol=1e-4)


def test_a_saved_detector_gives_identical_scores(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = askew.load(path)
    np.testing.assert_array_equal(loaded.score_samples(NEW), fitted.score_samples(NEW))
    assert loaded.effort_ == fitted.effort_


def test_the_effort_counts_a_gradient_of_a_gradient(fitted):
    # 8 by 8 pixels: 16, 4 and 1 places of the three convolutions, and the dense layer.
    encoding = 16 * 64 * 9 + 4 * 128 * 64 * 9 + 256 * 128 * 9 + 256 * 256
    effort = fitted.effort_
    assert (effort.views_per_image, effort.macs_per_image) == (1, encoding)
    assert (effort.training_views, effort.training_macs) == (160, 6 * 160 * encoding)


class Killed(Exception):
    """What stands for a process that ends in the middle of a step."""


@pytest.mark.parametrize("moment", [1, 6, 10])
def test_a_killed_fit_resumes_to_the_same_weights(tmp_path, monkeypatch, moment):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)

    def watch(progress):
        if progress.stage == "training" and progress.done == moment:
            raise Killed

    checkpoint = str(tmp_path / "fit.checkpoint")
    with pytest.raises(Killed):
        detector(checkpoint=checkpoint, watch=watch).fit(NORMALS)
    assert len(list(tmp_path.iterdir())) == (moment > 1)
    resumed = detector(checkpoint=checkpoint).fit(NORMALS)
    whole = detector().fit(NORMALS)
    for name, array in whole._tensors().items():
        np.testing.assert_array_equal(resumed._tensors()[name], array, err_msg=name)
    np.testing.assert_array_equal(resumed.score_samples(NEW), whole.score_samples(NEW))


def broken(monkeypatch, change):
    """Let every training end by changing the network."""
    train = Run.train

    def trained(run, network, loss, **others):
        train(run, network, loss, **others)
        with torch.no_grad():
            change(network)

    monkeypatch.setattr(Run, "train", trained)


def test_a_silent_encoder_is_refused_and_flagged_where_the_paper_keeps_it(monkeypatch, caplog):
    broken(monkeypatch, lambda network: network.encoder.dense.bias.fill_(-1e6))
    with pytest.raises(Collapsed, match="silent") as caught:
        detector("sound").fit(NORMALS)
    assert "\n" not in str(caught.value)
    kept = detector("paper").fit(NORMALS)
    (line,) = kept.training_.weaknesses
    assert "silent" in line
    assert line in caplog.text


def test_constant_scores_are_refused_and_flagged_where_the_paper_keeps_them(monkeypatch):
    monkeypatch.setattr(DsebmDetector, "_terms", lambda self, images: (np.zeros(len(images)), np.ones(len(images))))
    with pytest.raises(Collapsed, match="all score 1"):
        detector("sound", holdout=0.5).fit(NORMALS)
    (line,) = detector("paper").fit(NORMALS).training_.weaknesses
    assert "all score 1" in line


@pytest.mark.parametrize("name", PRESETS)
def test_an_energy_that_is_not_a_number_is_never_a_result(monkeypatch, name):
    broken(monkeypatch, lambda network: network.centre.fill_(np.nan))
    with pytest.raises(Diverged):
        detector(name).fit(NORMALS)


def test_a_file_that_does_not_fit_its_settings_is_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    tensors, document = storage.read(path, kind="model")

    def refused(change_tensors=None, **changes):
        storage.write(
            path, kind="model", tensors={**tensors, **(change_tensors or {})}, document={**document, **changes}
        )
        with pytest.raises(BadFile) as caught:
            askew.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "centre" in refused({"network/centre": np.zeros((3, 8, 8), np.float32)})
    assert "finite" in refused({"network/centre": np.full((1, 8, 8), np.inf, np.float32)})
    assert "odd" in refused({"network/more": np.zeros(3, np.float32)})
    assert "more" in refused(learned={"more": 1})
    assert "noise" in refused(settings={**document["settings"], "noise": -1})
