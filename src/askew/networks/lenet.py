"""Ruff et al.'s network for Deep SVDD, and its mirror image that pretrains it, in their arithmetic.

A shift would let a layer answer the same whatever it is shown, which is what Deep SVDD rewards. So no layer has one.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from askew.errors import InvalidInput

CODE = 128
WIDTHS = (32, 64, 128)
HALVED = 2 ** len(WIDTHS)


class PlainNorm(nn.BatchNorm2d):
    """Batch normalisation without scale and shift; a batch of one value is normalised as in inference."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] to the same."""
        if self.training and x.numel() == x.shape[1]:
            # Differs from the reference: torch refuses such a batch, and the last one of an epoch may be one.
            return functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        return super().forward(x)


class LeNet(nn.Module):
    """[n, channels, side, side] to [n, 128]: three 5x5 convolutions, each with BN, leaky ReLU and pooling; dense."""

    def __init__(self, *, channels: int, side: int) -> None:
        super().__init__()
        if side < HALVED or side % HALVED:
            above = max(side + -side % HALVED, HALVED)
            raise InvalidInput(
                f"this detector takes images whose side is a multiple of {HALVED}, got {side}; choose side={above}"
            )
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, *WIDTHS)):
            layers += [nn.Conv2d(before, after, 5, padding=2, bias=False), *_active(after), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers)
        self.dense = nn.Linear(WIDTHS[-1] * (side // HALVED) ** 2, CODE, bias=False)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side] to [n, 128]."""
        code: Tensor = self.dense(self.layers(x).flatten(1))
        return code


class LeNetDecoder(nn.Module):
    """[n, 128] to [n, channels, side, side] in [0, 1]: the code as a small image, doubled between 5x5 convolutions."""

    def __init__(self, *, channels: int, side: int) -> None:
        super().__init__()
        self.norm = PlainNorm(CODE)
        # Ruff et al.'s, at side 32, is 8 channels of 4x4. Larger images stretch that, smaller ones have fewer cells.
        self.cells = next(cells for cells in (4, 2, 1) if cells <= side // HALVED)
        layers: list[nn.Module] = [nn.Upsample(size=side // HALVED)]
        for before, after in pairwise((CODE // self.cells**2, *reversed(WIDTHS))):
            layers += [nn.ConvTranspose2d(before, after, 5, padding=2, bias=False), *_active(after)]
            layers += [nn.Upsample(scale_factor=2)]
        layers += [nn.ConvTranspose2d(WIDTHS[0], channels, 5, padding=2, bias=False), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, code: Tensor) -> Tensor:
        """[n, 128] to [n, channels, side, side]."""
        active = functional.leaky_relu(self.norm(code[:, :, None, None]))
        image: Tensor = self.layers(active.reshape(len(code), -1, self.cells, self.cells))
        return image


def _active(channels: int) -> list[nn.Module]:
    return [PlainNorm(channels), nn.LeakyReLU()]


def _initialise(network: nn.Module) -> None:
    """Draw the convolutions as Ruff et al. do, Glorot uniform for leaky ReLUs; the dense layer is torch's."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("leaky_relu"))
