"""Small images and small settings, so that a whole fit takes a second."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

# Two processes share the cores: let each use one, and let every run compute the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")


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


@pytest.fixture(scope="session")
def tiny_settings():
    """Settings of the method that fit in a second on one core."""
    from askew.detectors.presets import GeometricSettings, TransformChoice
    from askew.networks import CompactSettings
    from askew.training import TrainingSettings

    return GeometricSettings(
        transforms=TransformChoice(flips=(False,)),
        question="factors",
        networks={8: CompactSettings(widths=(16, 32), blocks=(1, 1))},
        training=TrainingSettings(
            optimiser="sgd", learning_rate=0.05, schedule="cosine", weight_decay=5e-4, batch=64, examples=6400
        ),
        jitter_shift=1,
        alpha_images=50,
        holdout=0.2,
    )
