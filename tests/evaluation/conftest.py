"""A data set so small that a whole run takes a second, and its settings."""

import numpy as np
import pytest

from askew.datasets.dataset import DataSet, Split
from askew.evaluation.ledger import RunSettings
from pictures import drawings, oddities


@pytest.fixture(scope="session")
def data():
    """Two classes of drawings; only label 0 and 1 are trained on, 20 test images of each."""
    train = np.concatenate([drawings(60), oddities(30)])
    test = np.concatenate([drawings(20, seed=5), oddities(20)])
    splits = (
        Split(train, np.repeat([0, 1], [60, 30])),
        Split(test, np.repeat([0, 1], [20, 20])),
    )
    return DataSet.of("drawings", "Drawings", ("plain", "odd"), *splits)


@pytest.fixture(scope="session")
def run(data, tiny_settings):
    return RunSettings(
        dataset="drawings",
        data=data.fingerprint,
        label=0,
        detector="geometric",
        preset="tiny",
        settings=tiny_settings.model_dump(mode="json"),
        precision="fp32",
        seed=3,
        protocol="honest",
    )
