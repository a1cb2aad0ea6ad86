import math
import os
import signal
import threading
import time
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from askew import storage, training
from askew.engine import Engine
from askew.errors import BadFile, Diverged
from askew.networks import CompactResNet
from askew.training import Checkpoint, Progress, TrainingSettings, train

CPU = Engine(torch.device("cpu"), "fp32")
EXAMPLES, BATCH, EPOCHS = 7, 3, 3
STEPS = 9  # 3 + 3 + 1 rows, three times
ROWS = torch.randn(EXAMPLES, 2, 4, 4, generator=torch.Generator().manual_seed(0))


class Killed(Exception):
    """What stands for a process that ends in the middle of a step."""


def settings(optimiser="adam", schedule="constant", **others):
    given = {"learning_rate": 0.05, "weight_decay": 5e-4, "batch": BATCH, "epochs": EPOCHS, **others}
    return TrainingSettings(optimiser=optimiser, schedule=schedule, **given)


def network(width=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(4 * width, 2)
    )


def loss_of(model, *, at=None, act=None, seen=None):
    """A loss with noise from its generator, which notes its rows, and does something in a step."""
    step = 0

    def loss(given):
        nonlocal step
        rows, draw, _ = given
        if step == at:
            act()
        step += 1
        if seen is not None:
            seen.append(rows.tolist())
        noise = torch.randn(len(rows), 2, 4, 4, generator=draw)
        answers = model(ROWS[rows] + 0.1 * noise)
        return (answers - 1).square().mean(), answers.detach().mean()

    return loss


def run(model, chosen, *, seed=0, checkpoint=None, watch=None, engine=CPU, **loss):
    train(
        model,
        loss_of(model, **loss),
        examples=EXAMPLES,
        settings=chosen,
        engine=engine,
        seed=seed,
        checkpoint=checkpoint,
        watch=watch,
    )
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def killed():
    raise Killed


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


@pytest.fixture
def saving_always(monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)


@pytest.fixture
def watching_always(monkeypatch):
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.0)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_the_same_seed_gives_the_same_weights_and_another_others(optimiser):
    first, again, other = (run(network(), settings(optimiser), seed=seed) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_training_does_not_touch_the_global_generator():
    model = network()
    before = torch.get_rng_state()
    run(model, settings())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_run_killed_in_any_step_ends_in_the_weights_of_one_that_was_not(path, saving_always, optimiser, schedule):
    chosen = settings(optimiser, schedule)
    uninterrupted = run(network(), chosen)
    for step in range(STEPS):
        with pytest.raises(Killed):
            run(network(), chosen, checkpoint=Checkpoint(path, "mine"), at=step, act=killed)
        rest = []
        # The fresh network differs, so what comes out can only come from the checkpoint.
        resumed = run(network(seed=step and 5), chosen, checkpoint=Checkpoint(path, "mine"), seen=rest)
        assert len(rest) == STEPS - step
        assert same(uninterrupted, resumed), f"killed in step {step}"
        path.unlink()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_killed_convolutional_network_resumes_to_the_same_bits_in_any_precision(
    path, saving_always, precision, optimiser
):
    engine = Engine(torch.device("cpu"), precision)
    pixels = torch.randint(0, 256, (48, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    def trained(seed, kill_at=None, checkpoint=None):
        torch.manual_seed(seed)
        model = engine.place(CompactResNet(channels=3, classes=4, side=16, widths=(16, 32), blocks=(1, 1)))
        assert model.stem.weight.is_contiguous(memory_format=engine.layout)
        steps = 0

        def loss(given):
            rows, draw, _ = given
            nonlocal steps
            if steps == kill_at:
                killed()
            steps += 1
            answers = model(engine.scaled(pixels[rows]))
            return nn.functional.cross_entropy(answers, rows % 4), answers.detach().mean()

        chosen = settings(optimiser, "cosine", batch=10, epochs=2)
        train(model, loss, examples=48, settings=chosen, engine=engine, seed=0, checkpoint=checkpoint)
        assert kill_at is None
        return steps, model.state_dict()

    _, uninterrupted = trained(0)
    for kill_at in (1, 5, 9):
        with pytest.raises(Killed):
            trained(0, kill_at, Checkpoint(path, "mine"))
        steps, resumed = trained(7, checkpoint=Checkpoint(path, "mine"))
        assert steps == 10 - kill_at
        assert same(uninterrupted, resumed), f"killed in step {kill_at}"
        path.unlink()


def test_a_run_killed_again_and_again_ends_in_the_same_weights(path, saving_always):
    uninterrupted = run(network(), settings(schedule="cosine"))
    for _ in range(STEPS - 1):
        with pytest.raises(Killed):
            run(network(), settings(schedule="cosine"), checkpoint=Checkpoint(path, "mine"), at=1, act=killed)
    assert same(uninterrupted, run(network(), settings(schedule="cosine"), checkpoint=Checkpoint(path, "mine")))


def test_a_finished_run_is_not_trained_again(path):
    finished = run(network(), settings(), checkpoint=Checkpoint(path, "mine"))
    seen = []
    assert same(finished, run(network(seed=1), settings(), checkpoint=Checkpoint(path, "mine"), seen=seen))
    assert not seen


def test_every_row_is_used_once_an_epoch_and_the_last_batch_is_kept():
    seen = []
    run(network(), settings(), seen=seen)
    assert [len(rows) for rows in seen] == [3, 3, 1] * EPOCHS
    epochs = [list(chain(*seen[3 * epoch : 3 * epoch + 3])) for epoch in range(EPOCHS)]
    assert all(sorted(epoch) == list(range(EXAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == EPOCHS


@pytest.mark.parametrize(("budget", "steps"), [(1, 1), (3, 1), (4, 2), (100, 34)])
def test_a_budget_of_examples_counts_whatever_the_datas_size(budget, steps):
    seen = []
    chosen = settings(epochs=None, examples=budget)
    run(network(), chosen, seen=seen)
    assert len(seen) == chosen.steps(EXAMPLES) == chosen.steps(10**6) == steps


@pytest.mark.parametrize("length", [{"examples": budget} for budget in (1, 3, 4, 7, 8, 100)] + [{"epochs": 2}])
@pytest.mark.parametrize("batch", [2, 3, 7, 50])
def test_as_many_examples_are_counted_as_are_trained_on(length, batch):
    seen = []
    chosen = settings(**{"epochs": None, "batch": batch, "learning_rate": 1e-3, **length})
    run(network(), chosen, seen=seen)
    assert chosen.seen(EXAMPLES) == sum(map(len, seen))


def test_adam_steps_are_those_of_keras():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    expected = [parameter.detach().double().numpy().copy() for parameter in model.parameters()]
    first = [np.zeros_like(values) for values in expected]
    second = [np.zeros_like(values) for values in expected]
    gradients = [[1e-6, -1e-7, 2.0], [3e-7, 1e-7, -1.0], [0.0, 1e-8, 0.5]]
    step = 0

    def loss(given):
        nonlocal step
        rows, draw, _ = given
        step += 1
        return (model.weight * torch.tensor(gradients[step - 1])).sum() + 0 * model.bias.sum(), torch.tensor(0.0)

    chosen = settings(epochs=None, examples=3, batch=1, learning_rate=0.01)
    train(model, loss, examples=10, settings=chosen, engine=CPU, seed=0)
    for number, gradient in enumerate(gradients, 1):
        rate = 0.01 * math.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        for place, slope in enumerate((np.array([gradient]), np.zeros(1))):
            slope = slope + 5e-4 * expected[place]
            first[place] = 0.9 * first[place] + 0.1 * slope
            second[place] = 0.999 * second[place] + 0.001 * slope**2
            expected[place] = expected[place] - rate * first[place] / (np.sqrt(second[place]) + 1e-7)
    np.testing.assert_allclose(model.weight.detach().numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(model.bias.detach().numpy(), expected[1], rtol=1e-5)


def test_a_cosine_starts_at_the_rate_falls_and_ends_near_zero():
    chosen = settings(schedule="cosine")
    rates = [chosen.learning_rate_at(step, 100) for step in range(100)]
    assert rates[0] == chosen.learning_rate
    assert all(later < earlier for earlier, later in pairwise(rates))
    assert 0 < rates[-1] < 0.001 * chosen.learning_rate
    assert rates[50] == pytest.approx(chosen.learning_rate / 2)
    assert {settings().learning_rate_at(step, 100) for step in range(100)} == {0.05}


def test_another_fits_checkpoint_is_refused_and_left_alone(path, saving_always):
    run(network(), settings(), checkpoint=Checkpoint(path, "mine"))
    before = path.read_bytes()
    with pytest.raises(BadFile, match="other settings, seed, images or versions"):
        run(network(), settings(), checkpoint=Checkpoint(path, "yours"))
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_network_is_refused(path):
    run(network(), settings(), checkpoint=Checkpoint(path, "mine"))
    for other in (network(width=4), nn.Linear(2, 2), nn.Sequential(network(), nn.Linear(2, 2))):
        with pytest.raises(BadFile, match="does not fit this network"):
            run(other, settings(), checkpoint=Checkpoint(path, "mine"))


def test_files_that_are_no_checkpoints_are_refused(path):
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(BadFile):
        run(network(), settings(), checkpoint=Checkpoint(path, "mine"))
    storage.write(path, kind="model", tensors={}, document={"identity": "mine"})
    with pytest.raises(BadFile, match="is a model, not a checkpoint"):
        run(network(), settings(), checkpoint=Checkpoint(path, "mine"))


@pytest.mark.parametrize("step", [None, "many", [1]])
def test_a_checkpoint_that_does_not_say_where_it_stopped_is_refused(path, step):
    run(network(), settings(), checkpoint=Checkpoint(path, "mine"))
    tensors, document = storage.read(path, kind="checkpoint")
    storage.write(path, kind="checkpoint", tensors=tensors, document={**document, "step": step})
    with pytest.raises(BadFile, match="does not fit"):
        run(network(), settings(), checkpoint=Checkpoint(path, "mine"))


@pytest.mark.parametrize(
    ("optimiser", "name", "value"),
    [
        ("adam", "exp_avg", np.float32(0)),
        ("adam", "exp_avg_sq", np.zeros((1, 2), np.float32)),
        ("adam", "exp_avg", np.zeros((3, 2, 3, 3), np.int64)),
        ("adam", "step", np.full((3, 2, 3, 3), 9, np.float32)),
        ("adam", "step", np.uint8(9)),
        ("adam", "step", np.float32(-1)),
        ("adam", "step", np.float32(np.nan)),
        ("sgd", "momentum_buffer", np.float32(0)),
        ("sgd", "momentum_buffer", np.zeros((3, 2, 3, 3), np.uint8)),
        ("sgd", "step", np.float32(9)),
    ],
)
def test_an_optimisers_state_that_torch_would_take_and_fail_on_later_is_refused(path, optimiser, name, value):
    run(network(), settings(optimiser), checkpoint=Checkpoint(path, "mine"))
    tensors, document = storage.read(path, kind="checkpoint")
    tensors[f"optimiser/0/{name}"] = value
    storage.write(path, kind="checkpoint", tensors=tensors, document={**document, "step": 4})
    with pytest.raises(BadFile, match="does not fit this network: its"):
        run(network(), settings(optimiser), checkpoint=Checkpoint(path, "mine"))


def test_a_checkpoint_says_how_many_seconds_the_fit_has_taken(path):
    began = time.monotonic() - 1000
    run(network(), settings(), checkpoint=Checkpoint(path, "mine", began=began))
    _, document = Checkpoint(path, "mine").load()
    assert 1000 <= document["seconds"] < 1100


def test_what_else_a_checkpoint_keeps_comes_back(path):
    run(network(), settings(), checkpoint=Checkpoint(path, "mine", {"precision": "fp32"}))
    _, document = Checkpoint(path, "mine").load()
    assert document["precision"] == "fp32"
    assert document["step"] == STEPS
    assert Checkpoint(path.with_name("none"), "mine").load() is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(watching_always, value):
    model, steps = network(), []

    def loss(given):
        rows, draw, _ = given
        steps.append(rows)
        result = model(ROWS[rows]).mean()
        return result * value if len(steps) == 4 else result, torch.tensor(0.0)

    with pytest.raises(Diverged, match=r"at step 4 of 9; lower the learning rate"):
        train(model, loss, examples=EXAMPLES, settings=settings(), engine=CPU, seed=0)


def test_weights_that_are_not_finite_stop_the_run_even_where_the_loss_is():
    model = nn.Linear(2, 1)

    def loss(given):
        rows, draw, _ = given
        # The root has no slope at 0: a loss of 0, and a gradient that is no number.
        return (0 * model.weight.sum()).square().sqrt(), torch.tensor(0.0)

    one_step = settings(epochs=1, batch=EXAMPLES)
    with pytest.raises(Diverged, match="weights that are not finite"):
        train(model, loss, examples=EXAMPLES, settings=one_step, engine=CPU, seed=0)


def test_ctrl_c_finishes_the_step_saves_and_stops(path):
    uninterrupted = run(network(), settings())
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(network(), settings(), checkpoint=Checkpoint(path, "mine"), at=3, act=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    _, document = Checkpoint(path, "mine").load()
    assert document["step"] == 4
    assert same(uninterrupted, run(network(), settings(), checkpoint=Checkpoint(path, "mine")))


def test_ctrl_c_stops_a_run_without_a_checkpoint_too():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        run(network(), settings(), at=3, act=interrupt, seen=seen)
    assert len(seen) == 4


def test_a_second_ctrl_c_stops_at_once(path):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        run(
            network(),
            settings(),
            checkpoint=Checkpoint(path, "mine"),
            at=3,
            act=lambda: (interrupt(), interrupt()),
            seen=seen,
        )
    assert len(seen) == 3
    assert not path.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(run(network(), settings())))
    # The seed of `network` is global, so nothing else may draw meanwhile.
    thread.start()
    thread.join()
    assert same(results[0], run(network(), settings()))


def test_a_watcher_is_told_of_every_step_when_time_allows(watching_always):
    told = []
    run(network(), settings(), watch=told.append)
    assert [progress.done for progress in told] == list(range(1, STEPS + 1))
    assert {(progress.stage, progress.total) for progress in told} == {("training", STEPS)}
    assert all(math.isfinite(progress.loss) and math.isfinite(progress.accuracy) for progress in told)
    assert told[-1].seconds_left == 0


def test_a_watcher_is_always_told_of_the_end(monkeypatch):
    monkeypatch.setattr(training, "WATCH_SECONDS", 1e9)
    told = []
    run(network(), settings(), watch=told.append)
    assert [progress.done for progress in told] == [STEPS]


def test_a_resumed_run_is_watched_from_where_it_stands(path, saving_always, watching_always):
    with pytest.raises(Killed):
        run(network(), settings(), checkpoint=Checkpoint(path, "mine"), at=5, act=killed)
    told = []
    run(network(), settings(), checkpoint=Checkpoint(path, "mine"), watch=told.append)
    assert [progress.done for progress in told] == [6, 7, 8, 9]
    assert all(progress.seconds_left >= 0 for progress in told)


def test_the_time_left_is_the_pace_so_far():
    assert Progress("training", 25, 100, seconds=10.0).seconds_left == 30.0
    assert Progress("training", 0, 100, seconds=0.0).seconds_left == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimiser": "lion"},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"batch": 0},
        {"epochs": 0},
        {"examples": 0},
        {"weight_decay": -1},
        {"schedule": "warm"},
        {"more": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    good = {"optimiser": "adam", "learning_rate": 0.1, "schedule": "constant", "weight_decay": 0.0, "batch": 8}
    TrainingSettings(**good)
    with pytest.raises(ValidationError):
        TrainingSettings(**{**good, **wrong})
