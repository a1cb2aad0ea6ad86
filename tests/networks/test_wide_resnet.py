import math

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torch.nn import functional

import references
from askew.engine import Engine
from askew.errors import InvalidInput
from askew.networks import NetworkSettings, WideResNet, WideResNetSettings
from askew.networks.wide_resnet import Block, SameConv
from askew.training import TrainingSettings, train
from goldens import golden

CPU = Engine(torch.device("cpu"), "fp32")
GOLDEN_NETWORKS = {"wrn_10_4_32x32x3": (10, 4, 32), "wrn_16_2_64x64x3": (16, 2, 64)}


def golden_network(name):
    """The network with the authors' weights, and the other arrays of its file."""
    arrays = golden("full", f"{name}.npz")
    depth, width, side = GOLDEN_NETWORKS[name]
    network = WideResNet(channels=3, classes=72, depth=depth, width=width, side=side)
    weights = iter([arrays[key] for key in sorted(arrays) if key.startswith("w")])
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(torch.from_numpy(next(weights)).permute(3, 2, 0, 1))
            elif isinstance(module, nn.BatchNorm2d):
                for values in (module.weight, module.bias, module.running_mean, module.running_var):
                    values.copy_(torch.from_numpy(next(weights)))
            elif isinstance(module, nn.Linear):
                module.weight.copy_(torch.from_numpy(next(weights)).T)
                module.bias.copy_(torch.from_numpy(next(weights)))
    assert next(weights, None) is None
    return network, arrays


def softmax(network, images):
    network.eval()
    with torch.inference_mode():
        return network(torch.from_numpy(images).permute(0, 3, 1, 2)).softmax(1).numpy()


@pytest.mark.parametrize("name", GOLDEN_NETWORKS)
def test_answers_equal_the_authors_program(name):
    network, arrays = golden_network(name)
    np.testing.assert_allclose(softmax(network, arrays["input"]), arrays["softmax_eval"], atol=1e-5)


@pytest.mark.parametrize(("depth", "width", "side", "channels"), [(10, 1, 32, 3), (16, 1, 64, 1), (10, 2, 32, 1)])
def test_answers_equal_a_network_of_loops(depth, width, side, channels):
    torch.manual_seed(0)
    network = WideResNet(channels=channels, classes=7, depth=depth, width=width, side=side).eval()
    for name, values in network.state_dict().items():
        if name.endswith((".bias", "running_mean")):
            nn.init.normal_(values)
        elif "norm" in name and values.is_floating_point():
            nn.init.uniform_(values, 0.5, 2)
    image = torch.rand(1, channels, side, side) * 2 - 1
    arrays = {name: values.double().numpy() for name, values in network.state_dict().items()}
    slow = references.wide_residual_network(image[0].double().numpy(), arrays, blocks=(depth - 4) // 6)
    with torch.inference_mode():
        fast = network(image)[0].numpy()
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-4 * np.abs(slow).max())


def test_three_training_steps_equal_the_authors_program():
    network, arrays = golden_network("wrn_10_4_32x32x3")
    images, labels = torch.from_numpy(arrays["train_input"]), torch.from_numpy(arrays["train_labels"])
    losses = []

    def loss(rows, draw):
        # The authors' steps take the images in order, whatever the shuffle says.
        batch = slice(32 * len(losses), 32 * len(losses) + 32)
        assert len(rows) == 32
        logits = network(CPU.scaled(images[batch]))
        entropy = functional.cross_entropy(logits, labels[batch])
        penalty = 0.00025 * sum(parameter.detach().square().sum() for parameter in network.parameters())
        losses.append(float(entropy.detach() + penalty))
        return entropy, (logits.argmax(1) == labels[batch]).float().mean()

    paper = TrainingSettings(
        optimiser="adam", learning_rate=1e-3, schedule="constant", weight_decay=5e-4, batch=32, epochs=1
    )
    train(network, loss, examples=96, settings=paper, engine=CPU, seed=0)
    np.testing.assert_allclose(losses, arrays["train_losses"], rtol=1e-3)
    np.testing.assert_allclose(softmax(network, arrays["input"]), arrays["softmax_eval_after_3_steps"], atol=5e-3)


@pytest.mark.parametrize(
    ("depth", "width", "side", "channels", "everything", "trainable"),
    [
        (10, 4, 32, 3, 1_216_568, 1_214_744),
        (10, 4, 32, 1, 1_216_280, 1_214_456),
        (16, 8, 64, 3, 11_110_968, 11_103_768),
        (16, 8, 32, 3, 11_000_376, 10_993_176),
    ],
)
def test_there_are_as_many_parameters_as_in_the_authors_program(depth, width, side, channels, everything, trainable):
    with torch.device("meta"):
        network = WideResNetSettings(depth=depth, width=width).build(channels=channels, classes=72, side=side)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    moving = sum(buffer.numel() for name, buffer in network.named_buffers() if "running" in name)
    assert (parameters + moving, parameters) == (everything, trainable)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (6, 10)])
def test_convolutions_are_padded_as_tensorflow_pads_them(kernel, stride, size):
    torch.manual_seed(0)
    convolution = SameConv(2, 3, kernel, stride)
    x = torch.randn(1, 2, *size)
    slow = references.same_convolution(x[0].numpy(), convolution.weight.detach().numpy(), stride)
    np.testing.assert_allclose(convolution(x)[0].detach().numpy(), slow, atol=1e-5)


def test_a_block_projects_what_the_first_norm_and_relu_gave_and_else_adds_what_came_in():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    for block in (Block(3, 6, 2).eval(), Block(3, 3, 1).eval()):
        nn.init.uniform_(block.norm1.weight, 0.5, 2)
        nn.init.zeros_(block.conv2.weight)
        active = functional.relu(block.norm1(x))
        expected = x if block.shortcut is None else block.shortcut(active)
        assert torch.equal(block(x), expected)


def test_features_at_64_pixels_are_a_flattened_2x2_grid_row_by_row():
    network = WideResNet(channels=3, classes=5, depth=10, width=1, side=64).eval()
    assert network.dense.in_features == 4 * 64
    x = torch.randn(2, 3, 64, 64)
    seen = []
    network.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        network(x)
        features = functional.relu(network.norm(network.blocks(network.stem(x))))
    for row in range(2):
        for column in range(2):
            window = features[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].mean((2, 3))
            cell = 2 * row + column
            torch.testing.assert_close(seen[0][:, 64 * cell : 64 * cell + 64], window)


def test_weights_start_as_the_authors_do():
    torch.manual_seed(0)
    network = WideResNet(channels=3, classes=72, depth=10, width=4, side=32)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            assert module.bias is None
            fan_in = module.weight[0].numel()
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.15)
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1e-5, 0.1)
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()
    bound = 1 / math.sqrt(network.dense.in_features)
    assert 0.95 * bound < network.dense.weight.abs().max().item() <= bound
    assert not network.dense.bias.any()


def test_the_same_seed_gives_the_same_weights_and_another_others():
    def weights(seed):
        torch.manual_seed(seed)
        return WideResNet(channels=1, classes=4, depth=10, width=1, side=32).state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_logits_are_float32_whatever_the_convolutions_ran_in():
    network = WideResNet(channels=1, classes=4, depth=10, width=1, side=32).eval()
    x = torch.randn(2, 1, 32, 32)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits = network(x)
    assert logits.shape == (2, 4)
    assert logits.dtype == torch.float32
    with torch.inference_mode():
        torch.testing.assert_close(logits, network(x), atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"depth": 12}, "depth 6n\\+4 .*, got 12"),
        ({"depth": 4}, "depth 6n\\+4 .*, got 4"),
        ({"side": 48}, "multiple of 32, got 48"),
        ({"side": 16}, "multiple of 32, got 16"),
    ],
)
def test_networks_that_the_paper_has_not_are_refused(wrong, words):
    with pytest.raises(InvalidInput, match=words):
        WideResNet(**{"channels": 3, "classes": 72, "depth": 10, "width": 4, "side": 32, **wrong})


def test_settings_come_back_from_json_and_keep_within_bounds():
    adapter = TypeAdapter(NetworkSettings)
    settings = WideResNetSettings(depth=16, width=8)
    assert adapter.validate_json(adapter.dump_json(settings)) == settings
    for hostile in ({"depth": 10**6, "width": 4}, {"depth": 10, "width": 10**6}, {"depth": 10, "width": 4, "more": 1}):
        with pytest.raises(ValidationError):
            adapter.validate_python({"kind": "wide-resnet", **hostile})
