import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from askew.errors import UnreadableImage
from askew.images import SizePolicy, auto_fit, open_images, prepare


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def policy(side, fit="crop", channels=3):
    return SizePolicy(side=side, fit=fit, channels=channels)


def block_means(image, factor):
    """The plain version of shrinking by a whole factor."""
    height, width, channels = image.shape
    blocks = image.reshape(height // factor, factor, width // factor, factor, channels)
    return blocks.astype(float).mean(axis=(1, 3))


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_the_right_size_is_untouched(fit, channels):
    image = noise(32, 32, channels)
    assert (prepare(image, policy(32, fit, channels)) == image).all()


@pytest.mark.parametrize("factor", [2, 3, 4, 7])
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_shrinking_by_a_whole_factor_is_the_mean_of_each_block(fit, factor):
    image = noise(16 * factor, 16 * factor, 3)
    assert np.abs(prepare(image, policy(16, fit)) - block_means(image, factor)).max() <= 1


def test_shrinking_a_little_keeps_a_single_line():
    image = np.zeros((40, 40, 1), np.uint8)
    for column in range(40):
        line = image.copy()
        line[:, column] = 255
        assert prepare(line, policy(32, channels=1)).max() > 100


def test_mnist_is_padded_by_two_zeros_all_round():
    image = noise(28, 28, 1)
    padded = prepare(image, policy(32, "pad", 1))
    assert (padded[2:30, 2:30] == image).all()
    padded[2:30, 2:30] = 0
    assert not padded.any()


def test_pad_shrinks_the_longer_side_and_keeps_the_ratio():
    padded = prepare(np.full((64, 32, 1), 200, np.uint8), policy(32, "pad", 1))
    assert (padded[:, 8:24] == 200).all()
    assert not padded[:, :8].any()
    assert not padded[:, 24:].any()


def test_crop_keeps_the_middle():
    image = noise(32, 50, 3)
    assert (prepare(image, policy(32)) == image[:, 9:41]).all()


def test_stretch_uses_the_whole_image():
    image = noise(64, 128, 3)
    tall = image.reshape(32, 2, 32, 4, 3).astype(float).mean(axis=(1, 3))
    assert np.abs(prepare(image, policy(32, "stretch")) - tall).max() <= 1.5


def test_enlarging_invents_no_level():
    image = noise(9, 9, 3) // 2 + 60
    large = prepare(image, policy(32))
    assert large.min() >= image.min()
    assert large.max() <= image.max()


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", [(1, 100_000), (100_000, 1), (1, 1), (2, 3)])
def test_extreme_shapes_stay_small(fit, shape):
    import tracemalloc

    image = np.full((*shape, 3), 77, np.uint8)
    tracemalloc.start()
    prepared = prepare(image, policy(64, fit))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert prepared.shape == (64, 64, 3)
    assert set(np.unique(prepared)) <= {0, 77}
    assert peak < 2 * 2**20


def test_grey_is_repeated_and_equal_channels_count_as_grey():
    image = noise(20, 20, 1)
    repeated = prepare(image, policy(16, channels=3))
    assert (repeated == prepare(image, policy(16, channels=1))).all()
    assert (prepare(np.repeat(image, 3, axis=2), policy(16, channels=1)) == repeated[..., :1]).all()


def test_colour_is_not_dropped_in_silence():
    with pytest.raises(UnreadableImage, match=r"fitted on grey images; convert it to grey, or fit on"):
        prepare(noise(20, 20, 3), policy(16, channels=1))


@pytest.mark.parametrize(
    ("height", "width", "fit", "seen"),
    [
        (28, 28, "pad", None),
        (16, 16, "pad", None),
        (31, 31, "pad", None),
        (15, 15, "crop", None),
        (32, 32, "crop", None),
        (256, 256, "crop", None),
        (30, 40, "crop", "40x30, are not square: the middle 75 %"),
        (28, 20, "crop", "20x28, are not square: the middle 71 %"),
    ],
)
def test_small_squares_are_framed_and_all_else_is_cropped(height, width, fit, seen):
    chosen, note = auto_fit(open_images(noise(2, height, width)), 32)
    assert chosen == fit
    if seen is None:
        assert note is None
    else:
        assert note == f'images such as the first, {seen} is used; size="pad" or "stretch" uses all of it'


def test_the_first_image_that_can_be_read_decides_the_fit(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"junk")
    assert auto_fit(open_images(tmp_path), 32) == ("crop", None)
    Image.fromarray(noise(28, 28)).save(tmp_path / "c.png")
    Image.fromarray(noise(30, 40)).save(tmp_path / "d.png")
    assert auto_fit(open_images(tmp_path), 32) == ("pad", None)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    side=st.integers(8, 40),
    fit=st.sampled_from(["crop", "pad", "stretch"]),
    channels=st.sampled_from([1, 3]),
)
@settings(max_examples=60, deadline=None)
def test_every_size_comes_out_right_and_owned(height, width, side, fit, channels):
    image = noise(height, width, channels, seed=height * 100 + width)
    before = image.copy()
    prepared = prepare(image, policy(side, fit, channels))
    assert prepared.shape == (side, side, channels)
    assert prepared.dtype == np.uint8
    assert prepared.flags.c_contiguous
    assert prepared.flags.writeable
    assert not np.shares_memory(prepared, image)
    assert (image == before).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"side": 7},
        {"side": 1025},
        {"side": "32"},
        {"side": 32.0},
        {"fit": "zoom"},
        {"channels": 2},
        {"extra": 1},
    ],
)
def test_a_policy_from_a_file_is_checked(wrong):
    with pytest.raises(ValidationError):
        SizePolicy.model_validate({"side": 32, "fit": "crop", "channels": 3, **wrong})


def test_a_policy_survives_json_and_cannot_change():
    given_policy = policy(32, "pad", 1)
    assert SizePolicy.model_validate_json(given_policy.model_dump_json()) == given_policy
    with pytest.raises(ValidationError):
        given_policy.side = 64
