"""The shared encoder and decoder against the authors' parameter counts and TensorFlow's arithmetic, written out."""

import json
import math

import numpy as np
import pytest
import torch

from askew.errors import InvalidInput
from askew.networks import Decoder, Encoder
from askew.networks.coder import Doubling, KerasBatchNorm
from goldens import FOLDERS

COUNTS = {
    "encoder_32x32x3_rep256": 1421440,
    "decoder_32x32x3_rep256": 1440387,
    "encoder_32x32x3_rep5": 393093,
    "critic_32x32x3": 376705,
    "encoder_32x32x1_rep256": 1420288,
    "decoder_32x32x1_rep256": 1439233,
    "encoder_64x64x3_rep256": 3652224,
    "decoder_64x64x3_rep256": 1477571,
    "encoder_64x64x3_rep5": 1595781,
    "critic_64x64x3": 1563009,
}


def size(network):
    """As Keras counts: parameters and running statistics, but for torch's count of batches."""
    arrays = network.state_dict().items()
    return sum(value.numel() for name, value in arrays if not name.endswith("num_batches_tracked"))


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_networks_have_the_authors_parameter_counts(name, count):
    kind, shape, *rest = name.split("_")
    side, _, channels = map(int, shape.split("x"))
    code = 1 if kind == "critic" else int(rest[0].removeprefix("rep"))
    network = (Decoder if kind == "decoder" else Encoder)(channels=channels, code=code, side=side)
    assert size(network) == count


def test_these_are_the_counts_of_the_authors_program():
    path = FOLDERS["full"] / "parameter_counts.json"
    if not path.exists():
        pytest.skip("the authors' outputs are not beside the checkout")
    given = json.loads(path.read_text())
    assert {name: given[name] for name in COUNTS} == COUNTS


def test_a_doubling_is_the_gradient_of_tensorflows_same_convolution():
    """Tensorflow defines it so: it spreads each value over the window that a 'same' convolution would read it from."""
    torch.manual_seed(0)
    layer = Doubling(2, 3).double()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    slow = np.zeros((3, 8, 8))
    weight = layer.weight.detach().numpy()
    for i in range(4):
        for j in range(4):
            for u in range(3):
                for v in range(3):
                    if 2 * i + u < 8 and 2 * j + v < 8:
                        slow[:, 2 * i + u, 2 * j + v] += x[0, :, i, j].numpy() @ weight[:, :, u, v]
    slow += layer.bias.detach().numpy()[:, None, None]
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), slow, atol=1e-12)


@pytest.mark.parametrize("side", [8, 16, 32, 64, 96])
def test_a_decoder_gives_back_the_shape_that_an_encoder_took(side):
    encoder, decoder = Encoder(channels=3, code=5, side=side), Decoder(channels=3, code=5, side=side)
    image = decoder(encoder(torch.rand(2, 3, side, side)))
    assert image.shape == (2, 3, side, side)
    assert image.abs().max() <= 1


@pytest.mark.parametrize("side", [4, 12, 28, 72])
def test_a_side_that_cannot_be_halved_so_often_is_refused(side):
    with pytest.raises(InvalidInput, match="multiple of"):
        Encoder(channels=1, code=5, side=side)


def test_a_batch_of_one_value_becomes_its_shift():
    norm = KerasBatchNorm(4)
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(1, 4, 1, 1, requires_grad=True)
    y = norm(x)
    torch.testing.assert_close(y.flatten(), norm.bias)
    y.sum().backward()
    assert not x.grad.any()
    assert math.isclose(norm.eps, 1e-3)
