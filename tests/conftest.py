"""Settings and a model so small that a whole fit takes a second."""

import os
import signal

import numpy as np
import pytest

from pictures import drawings, oddities, write_images

# Two processes share the cores: let each use one, and let every run compute the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A suite in the background of a shell is told to ignore Ctrl-C, and so would be what it starts: some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def place(tmp_path_factory, tiny_settings):
    """A folder with `normal/`, `new/` (10 normal, then 5 odd) and `model.safetensors`."""
    import askew

    folder = tmp_path_factory.mktemp("place")
    write_images(folder / "normal", drawings(150))
    write_images(folder / "new", np.concatenate([drawings(10, seed=5), oddities(5)]))
    detector = askew.GeometricDetector(preset=tiny_settings, side=16, precision="fp32")
    detector.fit(folder / "normal").save(folder / "model.safetensors")
    return folder
