"""The cost of a network is that of its layers."""

import pytest
from torch import nn

from askew.networks import WideResNet, multiply_accumulates


def test_a_convolution_and_a_dense_layer_cost_what_the_formula_says():
    network = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 7))
    assert multiply_accumulates(network, channels=3, side=8) == 4 * 4 * 5 * 27 + 80 * 7


def test_a_transposed_convolution_costs_what_the_convolution_it_is_the_gradient_of_does():
    one, other = nn.Conv2d(5, 3, 3, stride=2, padding=1), nn.ConvTranspose2d(3, 5, 3, stride=2, padding=1)
    cost = multiply_accumulates(one, channels=5, side=7)
    assert multiply_accumulates(other, channels=3, side=4) == cost == 4 * 4 * 3 * 45


@pytest.mark.parametrize(
    ("depth", "width", "side", "millions"),
    [(10, 4, 32, 166), (16, 8, 64, 6193)],
)
def test_the_papers_networks_cost_what_is_known_of_them(depth, width, side, millions):
    network = WideResNet(channels=3, classes=72, depth=depth, width=width, side=side)
    assert round(multiply_accumulates(network, channels=3, side=side) / 1e6) == millions


def test_counting_leaves_the_network_as_it_was():
    network = WideResNet(channels=1, classes=8, depth=10, width=1, side=32).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    multiply_accumulates(network, channels=1, side=32)
    assert network.training
    assert all((before[name] == value).all() for name, value in network.state_dict().items())
    assert not any(layer._forward_hooks for layer in network.modules())
