"""A network's weights as plain arrays and back, checked: arrays may come from a hostile file."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew.errors import BadFile

PREFIX = "network/"


def weights_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Every parameter and buffer, by its name after `network/`."""
    return {PREFIX + name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}


def set_weights(network: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give a network, which may be on torch's meta device, the weights among `arrays`; all of them must fit."""
    given = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    expected = network.state_dict()
    if given.keys() != expected.keys():
        odd = sorted(given.keys() ^ expected.keys())
        raise BadFile(f"its weights are not those of its network: {odd[0]!r} and {len(odd) - 1} more are odd")
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise BadFile(f"its weight {name} does not fit its network")
        if not np.isfinite(given[name]).all():
            raise BadFile(f"its weight {name} is not finite")
    network.load_state_dict(tensors, assign=True)
