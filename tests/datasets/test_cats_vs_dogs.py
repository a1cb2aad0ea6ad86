import hashlib
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from askew.datasets import cats_vs_dogs, open_dataset
from askew.datasets.cats_vs_dogs import shrunk, split
from askew.errors import NoImages
from pictures import oddities


def mean_areas(image, side):
    """What `shrunk` makes, pixel by pixel and in fractions."""
    height, width, channels = image.shape
    short = min(height, width)
    scaled = [max(side, round(side * length / short)) for length in (height, width)]
    result = np.empty((side, side, channels), np.uint8)
    for row in range(side):
        for column in range(side):
            spans = []
            for length, size, place in zip((height, width), scaled, (row, column), strict=True):
                step = Fraction(length, size)
                begin = (place + (size - side) // 2) * step
                covered = [(i, min(begin + step, i + 1) - max(begin, i)) for i in range(length)]
                spans.append([(i, part / step) for i, part in covered if part > 0])
            for channel in range(channels):
                mean = sum(p * q * int(image[i, j, channel]) for i, p in spans[0] for j, q in spans[1])
                result[row, column, channel] = round(mean)
    return result


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (5, 7), (7, 5), (9, 4), (11, 23), (2, 2), (1, 9), (3, 2)])
def test_pixels_are_means_of_the_areas_they_cover(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    for side in (2, 4):
        np.testing.assert_array_equal(shrunk(image, side), mean_areas(image, side))


def test_a_pixel_between_two_counts_for_both_by_halves():
    row = np.array([0, 90, 240], np.uint8)
    image = np.repeat(row[None, :, None], 3, axis=0)
    # Three pixels become two: (0 + 90 / 2) / 1.5 and (90 / 2 + 240) / 1.5.
    assert shrunk(image, 2)[:, :, 0].tolist() == [[30, 190]] * 2
    # Pillow's box filter counts the one in the middle fully, twice or not at all: it is no area interpolation.
    pillow = np.asarray(Image.fromarray(image[..., 0]).resize((2, 2), Image.Resampling.BOX))
    assert pillow.tolist() != [[30, 190]] * 2


def test_the_middle_is_kept_and_nothing_is_stretched():
    wide = np.zeros((10, 30, 1), np.uint8)
    wide[:, 10:20] = 200
    assert (shrunk(wide, 5) == 200).all()
    np.testing.assert_array_equal(shrunk(wide.transpose(1, 0, 2), 5), shrunk(wide, 5).transpose(1, 0, 2))


def test_a_sliver_needs_no_more_memory_than_a_square():
    for shape in ((1, 1_000_000, 3), (1_000_000, 1, 3)):
        sliver = np.full(shape, 7, np.uint8)
        tracemalloc.start()
        result = shrunk(sliver, 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (result == 7).all()
        assert peak < 2**20


def test_the_split_is_the_published_one():
    names = sorted(f"{number}.jpg" for number in range(12_500))
    train, test = split(names)
    assert (len(train), len(test)) == (10_000, 2_500)
    assert sorted(train + test) == names
    assert train[:3] == ["3100.jpg", "6062.jpg", "4828.jpg"]
    # These are in docs/datasets.md.
    assert hashlib.sha256("\n".join(train).encode()).hexdigest()[:16] == "22d3459105de1c43"
    assert hashlib.sha256("\n".join(test).encode()).hexdigest()[:16] == "e9a93d29943d494e"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(12_499, (10_000, 2_499)), (13_000, (10_000, 2_500)), (300, (240, 60)), (5, (4, 1)), (6, (5, 1)), (2, (2, 0))],
)
def test_fewer_images_are_split_four_to_one(count, expected):
    train, test = split([str(number) for number in range(count)])
    assert (len(train), len(test)) == expected


def write_pets(folder, cats=10, dogs=5):
    for name, count, seed in (("Cat", cats, 0), ("Dog", dogs, 1)):
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(oddities(count, side=64, channels=3, seed=seed)):
            Image.fromarray(image).save(folder / name / f"{number}.jpg", format="PNG")  # the bytes decide, not the name
    return folder


@pytest.mark.parametrize("place", ["PetImages", "cats-vs-dogs-sample/PetImages", "."])
def test_files_become_the_split_in_its_order(tmp_path, place):
    write_pets(tmp_path / place)
    data = open_dataset("cats-vs-dogs", tmp_path)
    cats, dogs = oddities(10, side=64, channels=3, seed=0), oddities(5, side=64, channels=3, seed=1)
    order = {count: np.random.RandomState(0).permutation(count) for count in (10, 5)}
    np.testing.assert_array_equal(data.train.images, np.concatenate([cats[order[10][:8]], dogs[order[5][:4]]]))
    np.testing.assert_array_equal(data.test.images, np.concatenate([cats[order[10][8:]], dogs[order[5][4:]]]))
    assert data.train.labels.tolist() == [0] * 8 + [1] * 4
    assert data.test.labels.tolist() == [0] * 2 + [1]
    assert data.class_names == ("cat", "dog")


def test_a_damaged_file_moves_no_other(tmp_path):
    folder = write_pets(tmp_path / "PetImages", cats=30)
    names = sorted((path.name for path in (folder / "Cat").iterdir()), key=str.encode)
    cats = {f"{number}.jpg": image for number, image in enumerate(oddities(30, side=64, channels=3, seed=0))}
    learned, judged = split(names)
    (folder / "Cat" / learned[3]).write_bytes(b"")
    (folder / "Cat" / learned[5]).unlink()
    (folder / "Cat" / learned[5]).symlink_to("nowhere")
    (folder / "Cat" / judged[2]).unlink()
    (folder / "Cat" / judged[2]).mkdir()
    data = open_dataset("cats-vs-dogs", tmp_path)
    for part, order, lost in ((data.train, learned, (3, 5)), (data.test, judged, (2,))):
        expected = [cats[name] for place, name in enumerate(order) if place not in lost]
        np.testing.assert_array_equal(part.images[part.labels == 0], expected)


@pytest.mark.parametrize(
    ("missing", "damaged", "title"),
    [(0, 0, "CatsVsDogs"), (0, 2, "CatsVsDogs"), (1, 0, "CatsVsDogs, 16 + 3 of 20 photographs")],
)
def test_a_part_of_the_set_is_called_so_and_a_few_damaged_files_are_no_part(
    tmp_path, monkeypatch, missing, damaged, title
):
    monkeypatch.setattr(cats_vs_dogs, "_MOST_TRAIN", 8)
    monkeypatch.setattr(cats_vs_dogs, "_MOST_TEST", 2)
    folder = write_pets(tmp_path / "PetImages", cats=10 - missing, dogs=10)
    for name in split([f"{number}.jpg" for number in range(10)])[0][:damaged]:
        (folder / "Cat" / name).write_bytes(b"")
    for _ in range(2):  # also from the cache
        assert open_dataset("cats-vs-dogs", tmp_path).title == title


def test_a_sample_is_not_called_by_the_name_of_the_whole(tmp_path):
    write_pets(tmp_path / "PetImages")
    assert open_dataset("cats-vs-dogs", tmp_path).title == "CatsVsDogs, 12 + 3 of 25,000 photographs"


def test_files_of_other_kinds_and_hidden_ones_take_no_part(tmp_path):
    folder = write_pets(tmp_path / "PetImages")
    before = open_dataset("cats-vs-dogs", tmp_path).fingerprint
    (folder / "Cat" / "._1.jpg").write_bytes(b"")
    (folder / "Dog" / "Thumbs.db").write_bytes(b"x")
    assert open_dataset("cats-vs-dogs", tmp_path).fingerprint == before


def test_grey_photographs_get_three_channels(tmp_path):
    folder = write_pets(tmp_path / "PetImages")
    for path in (folder / "Cat").iterdir():
        Image.new("L", (70, 64), 9).save(path, format="PNG")
    assert (open_dataset("cats-vs-dogs", tmp_path).train.images[:8] == 9).all()


def test_missing_or_unreadable_photographs_are_said_in_one_line(tmp_path):
    with pytest.raises(NoImages, match=r"CatsVsDogs is not in .*PetImages/ with the folders Cat and Dog; `askew bench"):
        open_dataset("cats-vs-dogs", tmp_path)
    folder = write_pets(tmp_path / "PetImages", dogs=4)
    with pytest.raises(NoImages, match=r"Dog has 4 readable images to learn from and 0 to be judged, .* at least 5"):
        open_dataset("cats-vs-dogs", tmp_path)
    for path in (folder / "Dog").iterdir():
        path.unlink()
    with pytest.raises(NoImages, match=r"Dog has 0 readable images to learn from"):
        open_dataset("cats-vs-dogs", tmp_path)
