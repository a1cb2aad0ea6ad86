"""A small model and folders of images, made once."""

import numpy as np
import pytest

import askew
from conftest import drawings, oddities, write_images


@pytest.fixture(scope="session")
def place(tmp_path_factory, tiny_settings):
    """A folder with `normal/`, `new/` (10 normal, then 5 odd) and `model.safetensors`."""
    folder = tmp_path_factory.mktemp("place")
    write_images(folder / "normal", drawings(150))
    write_images(folder / "new", np.concatenate([drawings(10, seed=5), oddities(5)]))
    detector = askew.GeometricDetector(preset=tiny_settings, side=16, precision="fp32")
    detector.fit(folder / "normal").save(folder / "model.safetensors")
    return folder
