"""Pictures made on the spot: some that belong together, and some that do not."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def drawings(n: int, *, side: int = 16, channels: int = 1, seed: int = 0) -> NDArray[np.uint8]:
    """[n, side, side, channels]: a bright bar low on the left of a shaded ground; turns and shifts of it all differ."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side] / side
    ground = 60 + 60 * rows + 30 * columns
    bar = (rows > 0.55) & (columns < 0.4)
    images = np.where(bar, 230, ground)[None, :, :, None] + draw.normal(0, 12, (n, side, side, channels))
    return np.clip(images, 0, 255).astype(np.uint8)


def oddities(n: int, *, side: int = 16, channels: int = 1, seed: int = 1) -> NDArray[np.uint8]:
    """[n, side, side, channels]: nothing but noise."""
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, channels)).astype(np.uint8)


def write_images(folder: Path, images: NDArray[np.uint8]) -> Path:
    """The folder, holding the images as PNG files in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, image in enumerate(images):
        Image.fromarray(image.squeeze()).save(folder / f"{index:04}.png")
    return folder
