import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import references
from askew.geometry.augment import jitter


def batch(n, height, width, channels=3):
    pixels = np.random.default_rng(0).integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    return torch.from_numpy(pixels)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.booleans(), st.integers(0, 40), st.integers(8, 20), st.integers(8, 20), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_jittered_image_is_the_one_moved_and_flipped_pixel_by_pixel(flip, shift, height, width, seed):
    images = batch(3, height, width)
    fast = jitter(images, flip=flip, shift=shift, draw=seeded(seed))
    assert fast.shape == images.shape
    assert fast.dtype == torch.uint8
    draw = seeded(seed)
    flips = torch.rand(3, generator=draw) < 0.5 if flip else torch.zeros(3, dtype=torch.bool)
    moves = torch.randint(-shift, shift + 1, (2, 3), generator=draw)
    for index, image in enumerate(images.numpy()):
        slow = references.moved_and_flipped(image, int(moves[0, index]), int(moves[1, index]), bool(flips[index]))
        np.testing.assert_array_equal(fast[index].numpy(), slow)


def test_images_are_flipped_half_of_the_time_and_moved_by_every_distance():
    row = torch.arange(32, dtype=torch.uint8).view(1, 1, 32, 1).expand(2000, 8, 32, 1)
    jittered = jitter(row, flip=True, shift=2, draw=seeded())[:, 0, :, 0].int()
    flipped = jittered[:, 10] > jittered[:, 20]
    assert 0.45 < flipped.float().mean() < 0.55
    moves = jittered[~flipped][:, 16] - 16
    assert sorted(moves.unique().tolist()) == [-2, -1, 0, 1, 2]


def test_nothing_is_drawn_or_copied_where_nothing_is_asked():
    images, draw = batch(2, 8, 8), seeded()
    before = draw.get_state()
    assert jitter(images, flip=False, shift=0, draw=draw) is images
    assert torch.equal(draw.get_state(), before)


@pytest.mark.parametrize("flip", [False, True])
def test_the_same_generator_gives_the_same_images_and_leaves_the_input_alone(flip):
    images = batch(4, 12, 12)
    before = images.clone()
    assert torch.equal(
        jitter(images, flip=flip, shift=3, draw=seeded(5)), jitter(images, flip=flip, shift=3, draw=seeded(5))
    )
    assert torch.equal(images, before)
