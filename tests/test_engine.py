import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from askew import engine
from askew.engine import Engine
from askew.errors import InvalidInput

CPU = torch.device("cpu")


@pytest.fixture
def fresh_precision():
    engine.fast_precision.cache_clear()
    yield
    engine.fast_precision.cache_clear()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_grey_value_is_scaled_to_its_float_between_minus_one_and_one(precision):
    views = torch.arange(256, dtype=torch.uint8).view(2, 8, 4, 4)
    scaled = Engine(CPU, precision).scaled(views)
    assert scaled.shape == (2, 4, 8, 4)
    assert scaled.dtype == torch.float32
    expected = 2 * (views.numpy().astype(np.float32) / np.float32(255)) - 1
    np.testing.assert_array_equal(scaled.permute(0, 2, 3, 1).numpy(), expected)
    assert (float(scaled.min()), float(scaled.max())) == (-1.0, 1.0)


def test_scaling_leaves_the_views_alone():
    views = torch.full((1, 8, 8, 1), 7, dtype=torch.uint8)
    Engine(CPU, "fp32").scaled(views)
    assert (views == 7).all()


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_convolutions_run_in_the_engines_precision(precision, dtype):
    chosen = Engine(CPU, precision)
    network = chosen.place(nn.Conv2d(2, 3, 3))
    x = chosen.scaled(torch.zeros(1, 8, 8, 2, dtype=torch.uint8))
    with torch.inference_mode(), chosen.autocast():
        assert network(x).dtype == dtype
    assert network.weight.dtype == torch.float32
    assert network.weight.is_contiguous(memory_format=chosen.layout)
    assert x.is_contiguous(memory_format=chosen.layout)


@pytest.mark.parametrize(
    ("flags", "precision", "words"),
    [
        ({"avx2", "amx_bf16", "avx512_bf16"}, "bf16", "amx_bf16"),
        ({"avx2", "avx512_bf16"}, "bf16", "avx512_bf16"),
        ({"avx2"}, "fp32", "neither"),
        (set(), "fp32", "neither"),
    ],
)
def test_a_cpu_computes_in_what_it_has_units_for(monkeypatch, fresh_precision, flags, precision, words):
    monkeypatch.setattr(engine, "_cpu_flags", lambda: frozenset(flags))
    chosen, reason = engine.fast_precision("cpu")
    assert chosen == precision
    assert words in reason
    assert Engine.choose("cpu").precision == precision


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_precision_that_is_asked_for_is_taken_whatever_is_fast(monkeypatch, fresh_precision, precision):
    monkeypatch.setattr(engine, "_cpu_flags", frozenset)
    assert Engine.choose("cpu", precision) == Engine(CPU, precision)


def test_an_unknown_precision_is_refused():
    with pytest.raises(InvalidInput, match="got 'fp16'"):
        Engine.choose("cpu", "fp16")


@pytest.mark.parametrize("device", ["toaster", "cpu:x", ""])
def test_a_device_that_cannot_be_used_is_refused_with_what_to_do(device):
    with pytest.raises(InvalidInput, match=r"cannot be used here .* choose auto or cpu"):
        Engine.choose(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_this_machine_lacks_is_refused_in_one_line():
    with pytest.raises(InvalidInput, match="device 'cuda' cannot be used here") as caught:
        Engine.choose("cuda")
    assert "\n" not in str(caught.value)


def test_without_a_compiler_the_network_runs_as_it_is_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(engine.shutil, "which", lambda _: None)
    network = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING, "askew"):
        chosen = Engine.choose("cpu", "fp32", compiled=True)
    # What is recorded with the fit is what was done.
    assert not chosen.compiled
    assert chosen.accelerated(network) is network
    assert [record.getMessage() for record in caplog.records] == [
        "training without torch.compile: no C++ compiler on the path"
    ]


def test_a_network_is_compiled_only_on_request(monkeypatch):
    network, compiled = nn.Linear(2, 2), nn.Linear(2, 2)
    monkeypatch.setattr(torch, "compile", lambda given, dynamic: compiled if given is network and not dynamic else None)
    monkeypatch.setattr(engine, "_can_compile", lambda: True)
    assert Engine.choose("cpu").accelerated(network) is network
    assert Engine.choose("cpu", compiled=True).accelerated(network) is compiled


@pytest.fixture
def loose_arithmetic():
    """What a program may have asked of torch: TF32 wherever it is fast."""
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    yield
    torch.backends.cudnn.allow_tf32 = before[0]
    torch.set_float32_matmul_precision(before[1])


def arithmetic():
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


def test_float32_is_float32_on_a_gpu_and_the_switches_are_put_back(loose_arithmetic):
    with Engine(torch.device("cuda"), "fp32").exact():
        assert arithmetic() == (False, "highest")
    assert arithmetic() == (True, "high")


def test_forward_passes_are_exact_whoever_makes_them(monkeypatch, loose_arithmetic):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it asks for a GPU
    with Engine(torch.device("cuda"), "fp32").autocast():
        assert arithmetic() == (False, "highest")
    assert arithmetic() == (True, "high")


def test_the_switches_are_left_alone_on_a_cpu(loose_arithmetic):
    with Engine(CPU, "fp32").exact():
        assert arithmetic() == (True, "high")


def test_large_images_go_through_in_pieces_and_usual_ones_in_one():
    engine = Engine(torch.device("cpu"), "fp32")
    for side, counts in ((32, [72]), (128, [72]), (256, [18] * 4), (1024, [1] * 72)):
        views = torch.zeros(1, dtype=torch.uint8).expand(72, side, side, 1)
        pieces = [tuple(piece.shape) for piece in engine.pieces(views)]
        assert pieces == [(count, 1, side, side) for count in counts]
