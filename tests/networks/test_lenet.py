"""Ruff et al.'s network, layer by layer, and what it must not have: a shift."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from askew.errors import InvalidInput
from askew.networks import LeNet, LeNetDecoder
from askew.networks.lenet import PlainNorm


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def normed(x):
    """Of a whole batch, channel by channel."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return functional.leaky_relu((x - mean) / (variance + 1e-4).sqrt(), 0.01)


def test_it_has_the_layers_of_ruff_et_al_at_side_32():
    network, decoder = LeNet(channels=3, side=32), LeNetDecoder(channels=3, side=32)
    assert parameters(network) == 25 * (3 * 32 + 32 * 64 + 64 * 128) + 128 * 16 * 128
    assert parameters(decoder) == 25 * (8 * 128 + 128 * 64 + 64 * 32 + 32 * 3)


def test_answers_are_those_of_the_layers_written_out():
    torch.manual_seed(0)
    network, x = LeNet(channels=3, side=16), torch.rand(4, 3, 16, 16)
    convolutions = [layer.weight for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    slow = x
    for weight in convolutions:
        slow = functional.max_pool2d(normed(functional.conv2d(slow, weight, padding=2)), 2)
    torch.testing.assert_close(network(x), slow.flatten(1) @ network.dense.weight.T)


def test_drawings_are_those_of_the_layers_written_out():
    torch.manual_seed(0)
    decoder, code = LeNetDecoder(channels=3, side=32), torch.randn(4, 128)
    first, *more = [layer.weight for layer in decoder.modules() if isinstance(layer, nn.ConvTranspose2d)]
    slow = normed(code[:, :, None, None]).view(4, 8, 4, 4)
    slow = functional.conv_transpose2d(slow, first, padding=2)
    for weight in more:
        slow = normed(slow).repeat_interleave(2, 2).repeat_interleave(2, 3)
        slow = functional.conv_transpose2d(slow, weight, padding=2)
    torch.testing.assert_close(decoder(code), slow.sigmoid())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 16, 24, 32, 64])
def test_a_decoder_gives_back_the_shape_that_the_network_took(side, channels):
    network, decoder = LeNet(channels=channels, side=side), LeNetDecoder(channels=channels, side=side)
    code = network(torch.rand(2, channels, side, side)).detach().requires_grad_()
    assert code.shape == (2, 128)
    image = decoder(code)
    assert image.shape == (2, channels, side, side)
    assert 0 <= image.min() <= image.max() <= 1
    (image**2).sum().backward()
    assert (code.grad != 0).any(0).all(), "a part of the code goes unseen"


def test_no_layer_has_a_shift():
    for network in (LeNet(channels=1, side=16), LeNetDecoder(channels=1, side=16)):
        assert all(parameter.dim() > 1 for parameter in network.parameters())


@pytest.mark.parametrize(("side", "instead"), [(4, 8), (12, 16), (28, 32)])
def test_a_side_that_cannot_be_halved_so_often_is_refused(side, instead):
    with pytest.raises(InvalidInput, match=f"multiple of 8, got {side}; choose side={instead}"):
        LeNet(channels=1, side=side)


def test_a_batch_of_one_value_is_normalised_as_in_inference():
    norm, x = PlainNorm(3), torch.randn(1, 3, 1, 1)
    norm.running_mean += 0.5
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    torch.testing.assert_close(norm.train()(x), norm.eval()(x))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
