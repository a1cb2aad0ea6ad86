import numpy as np
import pytest

from askew.detectors.features import FeatureLayout, are_features


def test_rows_become_small_images_scaled_by_feature():
    X = np.array([[0.0, -5.0], [10.0, 5.0], [5.0, 0.0]])
    layout = FeatureLayout.of(X)
    images = layout.images(X)
    assert images.shape == (3, 8, 8, 1)
    np.testing.assert_array_equal(images.reshape(3, -1)[:, :2], [[0, 0], [255, 255], [128, 128]])
    assert not images.reshape(3, -1)[:, 2:].any()
    np.testing.assert_array_equal(layout.images(np.array([[1e300, -1e300]])).reshape(-1)[:2], [255, 0])


def test_constant_and_huge_features_stay_finite():
    X = np.array([[7.0, -1.7e308], [7.0, 1.7e308]])
    assert FeatureLayout.of(X).images(X).reshape(2, -1)[:, :2].tolist() == [[0, 0], [0, 255]]


def test_many_features_take_a_larger_square():
    assert FeatureLayout.of(np.zeros((2, 100))).side == 10


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        (np.zeros((5, 4)), True),
        ([[1.0, 2.0], [3.0, 4.0]], True),
        (np.zeros(5), True),
        (np.zeros((5, 8, 8)), False),
        (np.zeros((5, 8, 8, 3)), False),
        ("folder", False),
        (["a.png", "b.png"], False),
        ([], False),
    ],
)
def test_features_are_told_from_images(X, expected):
    assert are_features(X, None) is expected


def test_a_shape_makes_rows_images():
    assert not are_features(np.zeros((5, 64)), (8, 8))
