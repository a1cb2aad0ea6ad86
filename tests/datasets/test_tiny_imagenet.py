import numpy as np
import pytest
from PIL import Image

from askew.datasets import open_dataset, tiny_imagenet
from askew.errors import BadFile, NoImages
from pictures import oddities


@pytest.fixture
def six(monkeypatch):
    monkeypatch.setattr(tiny_imagenet, "COUNT", 6)
    return oddities(6, side=64, channels=3)


def write(folder, images):
    (folder / "images").mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / "images" / f"test_{number}.JPEG", format="PNG")


@pytest.mark.parametrize("base", ["tiny-imagenet-200", "."])
def test_anomalies_are_the_test_images_halved_by_means_of_2x2(tmp_path, six, base):
    write(tmp_path / base / "test", six)
    write(tmp_path / base / "val", six[:2])
    data = open_dataset("tiny-imagenet", tmp_path)
    assert data.train.images.shape == (0, 32, 32, 3)
    assert data.test.labels.tolist() == [0] * 6
    means = six.reshape(6, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.abs(data.test.images - means).max() <= 1  # rounded after each axis
    assert data.title == "Tiny-ImageNet"


def test_validation_images_serve_where_there_are_no_others_and_are_called_so(tmp_path, six):
    write(tmp_path / "tiny-imagenet-200" / "val", six)
    data = open_dataset("tiny-imagenet", tmp_path)
    assert data.title == "Tiny-ImageNet (validation images)"
    assert len(data.test.labels) == 6


def test_it_is_opened_from_the_cache_alike(tmp_path, six):
    write(tmp_path / "test", six)
    first, second = open_dataset("tiny-imagenet", tmp_path), open_dataset("tiny-imagenet", tmp_path)
    assert first.fingerprint == second.fingerprint
    np.testing.assert_array_equal(first.test.images, second.test.images)
    assert second.train.images.shape == (0, 32, 32, 3)


def test_a_set_with_other_than_all_of_its_images_is_refused(tmp_path, six):
    write(tmp_path / "test", six)
    path = tmp_path / "test" / "images" / "test_3.JPEG"
    path.write_bytes(b"\xff\xd8\xff")
    for _ in range(2):
        with pytest.raises(BadFile, match="has 5 readable images, and 6 were published"):
            open_dataset("tiny-imagenet", tmp_path)
        path.unlink(missing_ok=True)


def test_its_absence_is_said_in_one_line(tmp_path):
    with pytest.raises(NoImages, match=r"expected there is tiny-imagenet-200/test/images/ with its 10,000 files"):
        open_dataset("tiny-imagenet", tmp_path)
