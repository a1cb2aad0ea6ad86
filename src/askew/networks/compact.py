"""A small residual network shaped for CPUs: it halves the image first, and all its work is wide 3x3 convolutions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class CompactBlock(nn.Module):
    """3x3, BN, ReLU, 3x3, BN, added to the input or its 1x1 projection, ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        projects = channels_in != channels_out or stride > 1
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, h, w] to [n, out, ceil(h / stride), ceil(w / stride)]."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(x)) + shortcut)


class CompactResNet(nn.Module):
    """[n, channels, side, side] in [-1, 1] to logits [n, classes]; any side of 8 or more."""

    def __init__(self, *, channels: int, classes: int, side: int, widths: Sequence[int], blocks: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        channels_in, grid = widths[0], (side + 1) // 2
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            # Never down to one pixel: batch norm could not train on a last batch of one view.
            halves = stage > 0 and grid > 3
            grid = (grid + 1) // 2 if halves else grid
            for index in range(count):
                layers.append(CompactBlock(channels_in, width, 2 if halves and index == 0 else 1))
                channels_in = width
        self.blocks = nn.Sequential(*layers)
        self.dense = nn.Linear(channels_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, side, side] to [n, classes]."""
        x = self.blocks(functional.relu(self.norm(self.stem(x))))
        # Pooling and logits in float32: scores are made of small differences between logits.
        with torch.autocast(x.device.type, enabled=False):
            logits: Tensor = self.dense(x.float().mean((2, 3)))
        return logits
