"""Random flips and small shifts of uint8 batches: variety in training that the classifier is not asked about."""

import torch
from torch import Tensor


def jitter(images: Tensor, *, flip: bool, shift: int, draw: torch.Generator) -> Tensor:
    """[n, h, w, c]: each image flipped or not and moved by up to `shift` pixels, edges mirrored."""
    if not flip and not shift:
        return images
    n, height, width, channels = images.shape
    # Drawn on the CPU so that every device sees the same numbers.
    flips = torch.rand(n, generator=draw) < 0.5 if flip else torch.zeros(n, dtype=torch.bool)
    moves = torch.randint(-shift, shift + 1, (2, n), generator=draw)
    columns = torch.arange(width).expand(n, -1)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    rows = _mirrored(torch.arange(height) + moves[0][:, None], height)
    columns = _mirrored(columns + moves[1][:, None], width)
    sources = (rows[:, :, None] * width + columns[:, None, :]).view(n, -1, 1).to(images.device)
    flat = images.reshape(n, height * width, channels)
    return flat.gather(1, sources.expand(-1, -1, channels)).view(images.shape)


def _mirrored(positions: Tensor, side: int) -> Tensor:
    positions = positions.remainder(2 * side)  # mirrored again and again, however far it goes
    return torch.where(positions >= side, 2 * side - 1 - positions, positions)
