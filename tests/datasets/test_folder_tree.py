import numpy as np
import pytest
from PIL import Image

from askew.datasets import open_dataset
from askew.errors import InvalidInput, NoImages
from pictures import drawings, oddities, write_images


def write_tree(root, side=32, channels=1):
    write_images(root / "train" / "good", drawings(6, side=side, channels=channels))
    write_images(root / "test" / "good", drawings(3, side=side, channels=channels, seed=7))
    write_images(root / "test" / "broken", oddities(2, side=side, channels=channels))
    return root


def test_a_tree_becomes_a_set_with_classes_in_alphabetical_order(tmp_path):
    data = open_dataset(f"folder:{write_tree(tmp_path / 'screws')}")
    assert data.class_names == ("broken", "good")
    np.testing.assert_array_equal(data.train.images, drawings(6, side=32))
    assert data.train.labels.tolist() == [1] * 6
    np.testing.assert_array_equal(
        data.test.images, np.concatenate([oddities(2, side=32), drawings(3, side=32, seed=7)])
    )
    assert data.test.labels.tolist() == [0, 0, 1, 1, 1]
    assert (data.name, data.title) == (f"folder:{tmp_path / 'screws'}", "screws")


def test_one_image_in_colour_gives_both_splits_three_channels(tmp_path):
    write_tree(tmp_path)
    write_images(tmp_path / "test" / "colour", oddities(1, side=32, channels=3))
    data = open_dataset(f"folder:{tmp_path}")
    assert data.train.images.shape == (6, 32, 32, 3)
    assert data.test.images.shape == (6, 32, 32, 3)


@pytest.mark.parametrize(("side", "corner"), [(28, 0), (96, None)])
def test_other_sizes_are_brought_to_32_as_for_fitting(tmp_path, side, corner):
    data = open_dataset(f"folder:{write_tree(tmp_path, side=side)}")
    assert data.train.images.shape[1:] == (32, 32, 1)
    assert (data.train.images[:, 0, 0].max() == 0) == (corner == 0)  # small squares are framed, larger ones shrunk


def test_the_fingerprint_is_of_the_content_not_of_the_place(tmp_path):
    prints = [open_dataset(f"folder:{write_tree(tmp_path / place)}").fingerprint for place in ("a", "b/c")]
    assert prints[0] == prints[1]
    image = tmp_path / "a" / "test" / "good" / "0000.png"
    Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
    assert open_dataset(f"folder:{tmp_path / 'a'}").fingerprint != prints[0]
    (tmp_path / "b" / "c" / "test" / "broken").rename(tmp_path / "b" / "c" / "test" / "bent")
    assert open_dataset(f"folder:{tmp_path / 'b' / 'c'}").fingerprint != prints[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "test" / "broken" / "0001.png").write_bytes(b"no image")
    with pytest.raises(InvalidInput, match=r"1 of 11 images cannot be read, such as .*broken/0001\.png: not a PNG"):
        open_dataset(f"folder:{tmp_path}")


def test_a_link_that_leads_nowhere_is_a_file_that_cannot_be_read(tmp_path):
    (write_tree(tmp_path) / "train" / "good" / "link.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(
        InvalidInput, match=r"1 of 12 images cannot be read, such as .*link\.png: the file cannot be open"
    ):
        open_dataset(f"folder:{tmp_path}")


def test_what_is_no_tree_is_refused_in_one_line(tmp_path):
    write_images(tmp_path / "train" / "good", drawings(2))
    for path in (tmp_path, tmp_path / "missing", "", "\0"):
        with pytest.raises(NoImages, match=r"is no tree of images: it needs train/<class>/ and test/<class>/"):
            open_dataset(f"folder:{path}")
    (tmp_path / "test" / "good").mkdir(parents=True)
    with pytest.raises(NoImages, match="no images in"):
        open_dataset(f"folder:{tmp_path}")


def test_class_folders_of_any_name_become_text(tmp_path):
    write_tree(tmp_path)
    odd = tmp_path / "test" / "b\udcff\x1b[2J"
    try:
        (tmp_path / "test" / "broken").rename(odd)
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    data = open_dataset(f"folder:{tmp_path}")
    assert data.class_names == ("b\\xff\\x1b[2J", "good")
    assert open_dataset(f"folder:{tmp_path}").fingerprint == data.fingerprint
