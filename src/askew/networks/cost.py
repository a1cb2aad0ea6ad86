"""What a network costs, counted from its layers and not from a clock."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

TRAINING_FACTOR = 3  # a training step's forward pass, and its two gradients of the same cost


def multiply_accumulates(network: nn.Module, *, channels: int, side: int) -> int:
    """Multiply-accumulates of one view's forward pass: convolutions and dense layers, which are nearly all of it."""
    total = 0

    def count(layer: nn.Module, given: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += output.numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.ConvTranspose2d):
            total += given[0].numel() * layer.weight[0].numel()  # it spreads each value that it is given
        elif isinstance(layer, nn.Linear):
            total += output.numel() * layer.in_features

    twin = copy.deepcopy(network).float().eval()
    for layer in twin.modules():
        layer.register_forward_hook(count)
    place = next(twin.parameters()).device
    with torch.inference_mode():
        twin(torch.zeros(1, channels, side, side, device=place))
    return total
