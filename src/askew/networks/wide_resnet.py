"""The paper's classifier: a wide residual network, in the authors' exact arithmetic."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew.errors import InvalidInput

POOL_WINDOW = 8  # Paper: fixed, whatever the side; at 64 px a 2x2 grid of features is left.


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow's 'same': with stride 2, bottom and right only."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=0 if stride > 1 else kernel // 2, bias=bias)
        self.pads_after = stride > 1 and kernel > 1

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, h, w] to [n, out, ceil(h / stride), ceil(w / stride)]; h and w even where stride is 2."""
        if self.pads_after:
            # torch's padding=1 would sample the other phase of the grid.
            x = functional.pad(x, (0, 1, 0, 1))
        return super().forward(x)


class Block(nn.Module):
    """BN, ReLU, 3x3, BN, ReLU, 3x3, added to the input, or to a 1x1 projection where the channels change."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = SameConv(channels_in, channels_out, 3, stride)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = SameConv(channels_out, channels_out, 3)
        self.shortcut = SameConv(channels_in, channels_out, 1, stride) if channels_in != channels_out else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, h, w] to [n, out, h / stride, w / stride]."""
        active = functional.relu(self.norm1(x))
        # Paper: the projection reads the tensor after the first BN and ReLU, the identity the one before.
        shortcut = x if self.shortcut is None else self.shortcut(active)
        x = self.conv1(active)
        x = self.conv2(functional.relu(self.norm2(x)))
        total: Tensor = x + shortcut
        return total


class WideResNet(nn.Module):
    """[n, channels, side, side] in [-1, 1] to logits [n, classes]."""

    def __init__(self, *, channels: int, classes: int, depth: int, width: int, side: int) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise InvalidInput(f"a wide residual network has depth 6n+4 (10, 16, 22, ...), got {depth}")
        if side < 32 or side % 32:
            raise InvalidInput(
                f"the paper's network pools 8x8 windows, so the side must be a multiple of 32, got {side}; "
                'choose such a side, or preset="fast", which takes any'
            )
        blocks = (depth - 4) // 6
        widths = [16 * width, 32 * width, 64 * width]
        self.stem = SameConv(channels, 16, 3)
        layers: list[nn.Module] = []
        channels_in = 16
        for channels_out, stride in zip(widths, (1, 2, 2), strict=True):
            for index in range(blocks):
                layers.append(Block(channels_in, channels_out, stride if index == 0 else 1))
                channels_in = channels_out
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(channels_in)
        cells = (side // 4 // POOL_WINDOW) ** 2
        self.dense = nn.Linear(channels_in * cells, classes)
        self.initialise()

    def initialise(self) -> None:
        """Draw the weights as the authors do: He normal convolutions, uniform dense, unit batch norms."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        bound = self.dense.in_features**-0.5
        nn.init.uniform_(self.dense.weight, -bound, bound)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side] to [n, classes]."""
        x = functional.relu(self.norm(self.blocks(self.stem(x))))
        # Pooling and logits in float32, whatever came before: scores are made of small differences between logits.
        with torch.autocast(x.device.type, enabled=False):
            x = functional.avg_pool2d(x.float(), POOL_WINDOW)
            # Paper: flattened row, column, channel.
            logits: Tensor = self.dense(x.permute(0, 2, 3, 1).flatten(1))
        return logits
