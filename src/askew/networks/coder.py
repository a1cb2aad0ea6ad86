"""The encoder and the decoder that the paper's deep rivals share, in the authors' arithmetic (Keras's defaults)."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from askew.errors import InvalidInput
from askew.networks.wide_resnet import SameConv

WIDTHS = (64, 128, 256, 512)
LARGE_SIDE = 64  # from here on one more layer, so that a 4x4 grid is left at 32 and at 64


def layers_for(side: int) -> int:
    """How often the encoder halves an image of that side."""
    layers = 3 if side < LARGE_SIDE else 4
    if side < 8 or side % 2**layers:
        raise InvalidInput(f"this detector takes images whose side is a multiple of {2**layers}, got {side}")
    return layers


class KerasBatchNorm(nn.BatchNorm2d):
    """Batch normalisation with Keras's momentum and epsilon; a batch of one value becomes its shift, as there."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] to the same."""
        if self.training and x.numel() == x.shape[1]:
            # torch refuses: the value less its own mean is 0 whatever it was.
            return x * 0 + self.bias.view(1, -1, 1, 1)
        return super().forward(x)


class Encoder(nn.Module):
    """[n, channels, side, side] to [n, code]: halving 3x3 convolutions, each with BN and ReLU, then a dense layer."""

    def __init__(self, *, channels: int, code: int, side: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        count = layers_for(side)
        for width in WIDTHS[:count]:
            layers += [SameConv(channels, width, 3, 2, bias=True), KerasBatchNorm(width), nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*layers)
        self.dense = nn.Linear(channels * (side // 2**count) ** 2, code)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side] to [n, code]."""
        code: Tensor = self.dense(self.layers(x).flatten(1))
        return code


class Decoder(nn.Module):
    """[n, code] to [n, channels, side, side] in [-1, 1]: a dense layer, then transposed convolutions that double."""

    def __init__(self, *, channels: int, code: int, side: int) -> None:
        super().__init__()
        count = layers_for(side)
        self.grid = side // 2**count
        self.width = 256
        self.dense = nn.Linear(code, self.width * self.grid**2)
        self.norm = KerasBatchNorm(self.width * self.grid**2)
        layers: list[nn.Module] = []
        widths = [self.width, 128, 64, 64][:count]
        for before, after in pairwise(widths):
            layers += [Doubling(before, after), KerasBatchNorm(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, Doubling(widths[-1], channels), nn.Tanh())
        initialise(self)

    def forward(self, code: Tensor) -> Tensor:
        """[n, code] to [n, channels, side, side]."""
        x = functional.relu(self.norm(self.dense(code)[:, :, None, None]))
        image: Tensor = self.layers(x.view(len(code), self.width, self.grid, self.grid))
        return image


class Doubling(nn.ConvTranspose2d):
    """TensorFlow's transposed 'same' convolution with stride 2: torch's, less the last row and column."""

    def __init__(self, channels_in: int, channels_out: int, groups: int = 1) -> None:
        super().__init__(channels_in, channels_out, 3, 2, groups=groups)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[n, in, h, w] to [n, out, 2h, 2w]."""
        return super().forward(x, output_size)[:, :, :-1, :-1]


def initialise(network: nn.Module) -> None:
    """Draw the weights as Keras does: Glorot uniform, no shifts."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
