"""ADGAN: its game and its search by slow roads, the paper's quirks, and what it says when it has come to nothing."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import askew
from askew import storage, training
from askew.detectors.adgan import CODE, PRESETS, AdganDetector, AdganSettings, Players, gradient_penalty
from askew.detectors.adgan_inversion import InversionSettings, errors_left
from askew.detectors.learning import Run
from askew.engine import Engine
from askew.errors import BadFile, Collapsed, InvalidInput
from askew.networks import Decoder
from askew.training import Step
from pictures import drawings, oddities

NORMALS = drawings(12, side=8)
NEW = np.concatenate([drawings(9, side=8, seed=5), oddities(8, side=8)])
BATCH = 8


def small(name, steps=7, **training):
    """A preset with small batches, and few of them."""
    given = {"batch": BATCH, "examples": steps * BATCH, **training}
    return PRESETS[name].model_copy(update={"training": PRESETS[name].training.model_copy(update=given)})


def make(name="sound", **parameters):
    return AdganDetector(**{"preset": small(name), "side": 8, **parameters})


@pytest.fixture(scope="module", params=["sound", "paper"])
def fitted(request):
    return make(request.param).fit(NORMALS)


@pytest.fixture
def watching_always(monkeypatch):
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)


# -- the game ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "side", "generator", "critic"),
    [(3, 32, 1440387, 376705), (1, 32, 1439233, 375553), (3, 64, 1477571, 1563009)],
)
def test_networks_have_the_authors_parameter_counts(channels, side, generator, critic):
    with torch.device("meta"):
        players = Players(channels=channels, side=side)
    for network, count in ((players.generator, generator), (players.critic, critic)):
        arrays = network.state_dict().items()
        assert sum(value.numel() for name, value in arrays if not name.endswith("num_batches_tracked")) == count


def test_the_paper_settings_are_the_papers():
    paper = PRESETS["paper"]
    rates = paper.training
    assert (rates.learning_rate, rates.betas, rates.batch, rates.weight_decay) == (1e-4, (0.0, 0.9), 128, 0)
    assert rates.steps(5000) == 3 * 100 * 100
    assert (paper.critic_updates, paper.penalty, paper.holdout, paper.may_collapse) == (2, 20, 0, True)
    search = paper.inversion
    assert (search.starts, search.updates, search.code_rate, search.generator_rate) == (8, 5, 0.25, 5e-5)
    assert search.over_starts == "mean"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json(name):
    assert AdganSettings.model_validate_json(PRESETS[name].model_dump_json()) == PRESETS[name]


def tiny_critic(norm):
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1)]
    return nn.Sequential(*(layer for layer in layers if norm or not isinstance(layer, nn.BatchNorm2d))).double()


@pytest.mark.parametrize("norm", [False, True])
def test_the_gradient_penalty_is_that_of_finite_differences(norm):
    """With batch norm, too, where a pixel moves the answers to all images."""
    critic, images = tiny_critic(norm), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    slow, step = 0.0, 1e-6
    for image in range(len(images)):
        squares = 0.0
        for pixel in np.ndindex(images.shape[1:]):
            ends = []
            for sign in (1, -1):
                moved = images.clone()
                moved[(image, *pixel)] += sign * step
                ends.append(critic(moved).sum().item())
            squares += ((ends[0] - ends[1]) / (2 * step)) ** 2
        slow += (math.sqrt(squares) - 1) ** 2 / len(images)
    assert math.isclose(gradient_penalty(critic, images).item(), slow, rel_tol=1e-7)


def test_the_gradient_penalty_is_that_of_each_image_alone_where_none_sees_another():
    critic, images = tiny_critic(norm=False), torch.randn(5, 2, 4, 4, dtype=torch.float64)
    slow = []
    for image in images:
        image = image.clone().requires_grad_()
        critic(image[None]).backward()
        slow.append((image.grad.square().sum().sqrt() - 1) ** 2)
    torch.testing.assert_close(gradient_penalty(critic, images), torch.stack(slow).mean(), rtol=1e-12, atol=0)


def test_a_critic_moves_as_its_gradient_penalty_says():
    """The penalty is a gradient itself: its own, by every weight, against finite differences."""
    critic, images = tiny_critic(norm=True), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    gradient_penalty(critic, images).backward()
    for weight in critic.parameters():
        given = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for place in list(np.ndindex(weight.shape))[:5]:
            ends = []
            for change in (1e-6, -2e-6):
                weight.data[place] += change
                ends.append(gradient_penalty(critic, images).item())
            weight.data[place] += 1e-6
            assert math.isclose(given[place].item(), (ends[0] - ends[1]) / 2e-6, rel_tol=1e-5, abs_tol=1e-8)


def test_a_critic_without_any_slope_is_penalised_and_not_broken():
    critic, images = tiny_critic(norm=False), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    critic[-1].weight.data.zero_()
    penalty = gradient_penalty(critic, images)
    penalty.backward()
    assert penalty.item() == 1
    assert all(weight.grad.isfinite().all() for weight in critic.parameters() if weight.grad is not None)


def test_two_updates_of_the_critic_are_followed_by_one_of_the_generator(watching_always):
    detector, seen = make(), []

    def watch(progress):
        if progress.stage == "training":
            seen.append({name: value.clone() for name, value in detector.players_.state_dict().items()})

    detector.watch = watch
    detector.fit(NORMALS)
    assert len(seen) == 7
    for number, (before, after) in enumerate(pairwise(seen), 1):
        weights = [name for name, _ in Players(channels=1, side=8).named_parameters()]
        moved = {name.split(".")[0] for name in weights if not torch.equal(before[name], after[name])}
        assert moved == {"generator" if number % 3 == 2 else "critic"}
        # What the critic meets is made in inference mode, which leaves the generator's running statistics alone.
        same = torch.equal(before["generator.norm.running_mean"], after["generator.norm.running_mean"])
        assert same == (number % 3 != 2)


def test_one_optimiser_moves_both_as_two_of_their_own_would(monkeypatch):
    def two_optimisers(run, network, loss, *, examples, settings):
        network.train()
        adams = {
            name: torch.optim.Adam(player.parameters(), settings.learning_rate, settings.betas)
            for name, player in network.named_children()
        }
        shuffle = training._Shuffle(examples, settings.batch, run.seed)
        for number in range(settings.steps(examples)):
            value, _ = loss(Step(shuffle.rows(number), training._generator(run.seed, number + 1), number))
            network.zero_grad()
            value.backward()
            adam = adams["generator" if number % 3 == 2 else "critic"]
            adam.param_groups[0]["eps"] = 1e-7 / math.sqrt(1 - 0.9 ** (number + 1))
            adam.step()

    one = make().fit(NORMALS)._tensors()
    monkeypatch.setattr(Run, "train", two_optimisers)
    other = make().fit(NORMALS)._tensors()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_the_losses_are_those_of_a_wasserstein_game(monkeypatch):
    """Written out, for a batch that had to be filled up; each is what its player makes less of."""
    caught = []
    monkeypatch.setattr(Run, "train", lambda run, network, loss, **others: caught.append((network.train(), loss)))
    make(holdout=0.0).fit(NORMALS)
    ((players, loss),) = caught
    players.train()

    def step(number):
        return Step(torch.arange(3), training._generator(0, 7), number)

    draw = step(0).draw
    codes = torch.randn(BATCH, CODE, generator=draw)
    rows = torch.cat([torch.arange(3), torch.randint(len(NORMALS), (5,), generator=draw)])
    share = torch.rand(BATCH, 1, 1, 1, generator=draw)
    real = torch.from_numpy(NORMALS)[rows].permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        made = players.generator.eval()(codes)
    mixed, critic = share * real + (1 - share) * made, players.critic
    slow = critic(made).mean() - critic(real).mean() + 20 * gradient_penalty(critic, mixed)
    torch.testing.assert_close(loss(step(0))[0], slow)
    torch.testing.assert_close(loss(step(4))[0], slow)
    slow = -critic(players.generator.train()(codes)).mean()
    torch.testing.assert_close(loss(step(2))[0], slow)


# -- the search -------------------------------------------------------------------------------------------------------


def worn_generator(channels=1):
    """As if it had been trained: no weight and no statistic is what it began as."""
    torch.manual_seed(1)
    generator = Decoder(channels=channels, code=CODE, side=8).double()
    for name, value in generator.state_dict().items():
        if value.ndim == 1:
            value.copy_(torch.rand_like(value) + (0.5 if name.endswith(("running_var", "weight")) else -0.5))
    return generator.eval().requires_grad_(False)


def slow_errors(generator, image, start, settings):
    """The error of one image from one start: separate modules, torch's own Adam, no batch but of one."""
    own = copy.deepcopy(generator).requires_grad_(True)
    statistics = {name: value.clone() for name, value in own.named_buffers()}
    code = start[None].clone().requires_grad_()
    adams = [torch.optim.Adam([code], settings.code_rate, betas=(0.5, 0.999))]
    if settings.generator_rate is not None:
        adams.append(torch.optim.Adam(own.parameters(), settings.generator_rate, betas=(0.5, 0.999)))
    for number in range(settings.updates):
        for adam, mode in zip(adams, (False, True), strict=False):
            own.train(mode)
            own.zero_grad()
            code.grad = None
            (own(code) - image[None]).square().mean().backward()
            adam.param_groups[0]["eps"] = 1e-7 / math.sqrt(1 - 0.999 ** (number + 1))
            adam.step()
            for name, value in own.named_buffers():
                value.copy_(statistics[name])  # the authors' program fetches the loss, but not the layers' updates
    with torch.no_grad():
        return (own.eval()(code) - image[None]).square().mean().item()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PRESETS)
def test_the_search_is_one_start_of_one_image_at_a_time(name, channels):
    changes = {"starts": 2, "updates": 2}
    if name == "paper":
        changes["generator_rate"] = 1e-2  # far enough for a mistake to show
    settings = PRESETS[name].inversion.model_copy(update=changes)
    generator, draw = worn_generator(channels), torch.Generator().manual_seed(0)
    images = torch.rand(2, channels, 8, 8, generator=draw, dtype=torch.float64) * 2 - 1
    starts = torch.randn(2, CODE, generator=draw, dtype=torch.float64)
    before = copy.deepcopy(generator.state_dict())
    fast = errors_left(generator, images, starts, settings)
    over = np.mean if name == "paper" else np.min
    slow = [over([slow_errors(generator, image, start, settings) for start in starts]) for image in images]
    np.testing.assert_allclose(fast.numpy(), slow, rtol=1e-9)
    for key, value in generator.state_dict().items():
        assert torch.equal(value, before[key])


def test_more_updates_leave_less():
    generator = worn_generator()
    images, starts = torch.rand(2, 1, 8, 8).double() * 2 - 1, torch.randn(2, CODE).double()
    settings = PRESETS["paper"].inversion
    left = [
        errors_left(generator, images, starts, settings.model_copy(update={"updates": updates}))
        for updates in (1, 5, 25)
    ]
    assert (left[1] < left[0]).all()
    assert (left[2] < left[1]).all()


def test_the_papers_update_of_the_generator_cannot_see_the_code():
    """A batch of one leaves of the first batch norm only its shift, so all codes make the same image, and update."""
    generator = worn_generator().requires_grad_(True)
    one, other = torch.randn(2, 1, CODE, dtype=torch.float64)
    image, updates = torch.rand(1, 1, 8, 8, dtype=torch.float64), []
    for code in (one, other):
        code.requires_grad_()
        generator.zero_grad()
        (generator.train()(code) - image).square().mean().backward()
        updates.append({name: weight.grad for name, weight in generator.named_parameters()})
        assert not code.grad.any()
    for name, update in updates[0].items():
        # So the dense layer never moves, and all copies of the generator can share it.
        assert update is None or torch.equal(update, updates[1][name])
        assert (update is not None and update.any()) == (not name.startswith(("dense.", "norm.weight"))), name
    assert (generator.eval()(one) != generator(other)).any()


def test_every_image_starts_from_the_same_codes_and_the_seed_decides_them():
    first, again, other = (make(random_state=seed).fit(NORMALS).starts_ for seed in (0, 0, 1))
    assert first.shape == (PRESETS["sound"].inversion.starts, CODE)
    assert torch.equal(first, again)
    assert (first != other).all()


# -- the detector -----------------------------------------------------------------------------------------------------


def test_a_score_is_the_error_that_is_left(fitted):
    search, generator = fitted.settings_.inversion, copy.deepcopy(fitted.players_.generator).double()
    image = torch.from_numpy(2 * (NEW[3].astype(np.float64) / 255) - 1).permute(2, 0, 1)
    errors = [slow_errors(generator, image, start.double(), search) for start in fitted.starts_]
    over = np.mean if search.over_starts == "mean" else np.min
    np.testing.assert_allclose(fitted.score_samples(NEW[3:4]), [-over(errors)], rtol=1e-3)


def test_scores_do_not_depend_on_companions_or_order(fitted):
    together = fitted.score_samples(NEW)
    assert len(np.unique(together)) == len(NEW)
    assert together[:9].min() > together[9:].max()
    order = np.random.default_rng(3).permutation(len(NEW))
    np.testing.assert_array_equal(fitted.score_samples(NEW[order]), together[order])
    for index in (0, 16):
        np.testing.assert_array_equal(fitted.score_samples(NEW[index : index + 1]), together[index : index + 1])


def test_a_batch_of_generators_scores_like_one_after_the_other(fitted, monkeypatch):
    """As on a GPU, where more images make a pass."""
    one = fitted.score_samples(NEW)
    monkeypatch.setattr(Engine, "images_per_pass", property(lambda engine: 4))
    np.testing.assert_allclose(fitted.score_samples(NEW), one, rtol=1e-4)


def test_scoring_works_where_gradients_are_switched_off(fitted):
    with torch.no_grad():
        switched_off = fitted.score_samples(NEW)
    np.testing.assert_array_equal(switched_off, fitted.score_samples(NEW))


@pytest.mark.parametrize(("side", "channels"), [(8, 3), (16, 1), (64, 3)])
def test_few_images_of_any_kind_are_enough_to_fit(side, channels):
    images = drawings(8, side=side, channels=channels)
    quick = PRESETS["sound"].inversion.model_copy(update={"updates": 2})
    detector = make(preset=small("sound", steps=3).model_copy(update={"inversion": quick}), side=side).fit(images)
    assert np.isfinite(detector.score_samples(images[:1])).all()


def test_a_side_that_cannot_be_halved_is_refused():
    with pytest.raises(InvalidInput, match="multiple of 8"):
        make(side=12).fit(drawings(8, side=12))


def test_one_update_makes_a_detector():
    detector = make(views=1).fit(NORMALS)
    assert detector.training_.weaknesses == ()
    assert len(np.unique(detector.score_samples(NEW))) == len(NEW)


def test_a_saved_detector_gives_identical_scores(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = askew.load(path)
    np.testing.assert_array_equal(loaded.score_samples(NEW), fitted.score_samples(NEW))
    assert loaded.effort_ == fitted.effort_
    assert not any(name.startswith("network/critic") for name in storage.read(path, kind="model")[0])
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_file_that_does_not_fit_its_settings_is_refused(fitted, tmp_path):
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

    def changed(**inversion):
        settings = document["settings"]
        return {**settings, "inversion": {**settings["inversion"], **inversion}}

    starts = tensors["starts"]
    assert "starts" in refused({"starts": starts[:, :-1].copy()})
    assert "starts" in refused({"starts": starts.astype(np.float64)})
    assert "starts" in refused({"starts": np.full_like(starts, np.nan)})
    assert "starts" in refused(settings=changed(starts=3))
    assert "inversion.starts" in refused(settings=changed(starts=10**9))
    assert "inversion.updates" in refused(settings=changed(updates=10**9))
    assert "inversion.code_rate" in refused(settings=changed(code_rate=-1))
    assert refused({"network/dense.weight": np.zeros((1, 1), np.float32)})
    assert "finite" in refused({"network/dense.weight": np.full_like(tensors["network/dense.weight"], np.inf)})
    assert refused({"network/more": np.zeros(3, np.float32)})
    assert refused(learned={"more": 1})
    missing = {name: value for name, value in tensors.items() if name != "starts"}
    storage.write(path, kind="model", tensors=missing, document=document)
    with pytest.raises(BadFile, match="starts"):
        askew.load(path)


def test_a_killed_fit_resumes_to_the_same_weights(tmp_path, monkeypatch, watching_always):
    """Also where only one of the two has ever been moved, and Adam knows nothing of the other."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    whole = make().fit(NORMALS)._tensors()

    class Killed(Exception):
        pass

    for at in (1, 3, 7):
        checkpoint = str(tmp_path / f"{at}.checkpoint")

        def watch(progress, at=at):
            if progress.stage == "training" and progress.done == at:
                raise Killed

        with pytest.raises(Killed):
            make(checkpoint=checkpoint, watch=watch).fit(NORMALS)
        resumed = make(checkpoint=checkpoint).fit(NORMALS)._tensors()
        for name, value in whole.items():
            np.testing.assert_array_equal(value, resumed[name], err_msg=f"{name}, killed after update {at}")


# -- coming to nothing ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["generator", "critic"])
def a_collapse(request, monkeypatch):
    """Training that ends with one of the two giving the same, whatever it gets."""
    train = AdganDetector._train

    def to_nothing(detector, *others):
        train(detector, *others)
        for weight in getattr(detector.players_, request.param).parameters():
            weight.data.mul_(1e-6)

    monkeypatch.setattr(AdganDetector, "_train", to_nothing)
    return {"generator": "generator has collapsed", "critic": "critic has vanished"}[request.param]


def test_a_collapse_is_refused(a_collapse):
    with pytest.raises(Collapsed, match=a_collapse) as caught:
        make().fit(NORMALS)
    assert "\n" not in str(caught.value)


def test_a_collapse_under_paper_settings_is_kept_and_flagged(a_collapse, caplog, tmp_path):
    detector = make("paper").fit(NORMALS)
    assert any(a_collapse in line for line in detector.training_.weaknesses)
    assert a_collapse in caplog.text
    detector.save(tmp_path / "model.safetensors")
    assert askew.load(tmp_path / "model.safetensors").training_.weaknesses == detector.training_.weaknesses


# -- what it costs ----------------------------------------------------------------------------------------------------


class Counted(TorchDispatchMode):
    """Counts multiply-accumulates by torch's own formulas, those of gradients of gradients among them."""

    macs = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.macs += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=made) / 2
        return made


@pytest.mark.parametrize("name", PRESETS)
def test_effort_is_what_torch_counts(name):
    images, settings = drawings(6, side=16, channels=3), small(name, steps=3)
    detector = make(preset=settings, side=16, holdout=0.0).fit(images)
    with Counted() as scoring:
        detector.score_samples(images[:1])
    together = settings.inversion.images_per_pass(detector.engine_)
    assert math.isclose(detector.effort_.macs_per_image, scoring.macs / together, rel_tol=0.02)
    with Counted() as learning:
        detector._train(images, settings, Run(detector.engine_, 0, None, None))
    assert math.isclose(detector.effort_.training_macs, learning.macs, rel_tol=0.05)


def test_the_search_has_a_bound():
    with pytest.raises(ValueError, match="updates"):
        InversionSettings(starts=1, updates=10**6, code_rate=0.1, over_starts="least")
    for settings in PRESETS.values():
        assert settings.inversion.passes <= 8 * 6 + 5
