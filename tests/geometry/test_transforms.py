import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import references
from askew import geometry
from askew.errors import InvalidInput
from askew.geometry import Transform, TransformSet
from goldens import golden


def image(side, channels=3, seed=0):
    return np.random.default_rng([side, seed]).integers(0, 256, (side, side, channels), dtype=np.uint8)


@st.composite
def settings_and_transforms(draw):
    side = draw(st.integers(8, 96))
    shifts = st.lists(st.integers(-side, side), min_size=1, max_size=3, unique=True).map(tuple)
    flips = draw(st.sampled_from([(False,), (True,), (False, True), (True, False)]))
    turns = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(tuple))
    return TransformSet(side, flips, draw(shifts), draw(shifts), turns)


@pytest.mark.parametrize("side", [8, 9, 13, 16])
def test_every_view_of_the_papers_set_is_the_one_made_pixel_by_pixel(side):
    transforms, pixels = TransformSet.paper(side), image(side)
    views = transforms.apply(pixels[None])[0]
    for fast, transform in zip(views, transforms.transforms, strict=True):
        np.testing.assert_array_equal(fast, references.view(pixels, *transform))


@given(settings_and_transforms(), st.data())
@settings(max_examples=40, deadline=None)
def test_views_are_those_made_pixel_by_pixel_at_any_side(transforms, data):
    t = data.draw(st.integers(0, len(transforms) - 1))
    pixels = image(transforms.side, channels=data.draw(st.sampled_from([1, 3])))
    (fast,) = transforms.view(torch.from_numpy(pixels[None]), torch.tensor([t]))
    np.testing.assert_array_equal(fast.numpy(), references.view(pixels, *transforms.transforms[t]))


@pytest.mark.parametrize(
    ("folder", "name"),
    [("part", "32x32x3"), ("part", "32x32x1"), *(("full", n) for n in ("32x32x3", "32x32x1", "64x64x3"))],
)
def test_views_equal_the_authors_program_exactly(folder, name):
    arrays = golden(folder, "transforms.npz")
    pixels = arrays[f"image_{name}"]
    views = TransformSet.paper(len(pixels)).apply(pixels[None])
    np.testing.assert_array_equal(views[0], arrays[f"transformed_{name}"])


@pytest.mark.parametrize("folder", ["part", "full"])
def test_views_of_the_small_set_equal_the_authors_program_exactly(folder):
    arrays = golden(folder, "transforms.npz")
    views = TransformSet.flips_and_turns(32).apply(arrays["image_32x32x3"][None])
    np.testing.assert_array_equal(views[0], arrays["transformed_simple_8"])


@given(settings_and_transforms())
@settings(max_examples=15, deadline=None)
def test_apply_and_view_numpy_and_torch_agree(transforms):
    pixels = np.stack([image(transforms.side, seed=seed) for seed in range(2)])
    views = transforms.apply(pixels)
    on_torch = transforms.apply(torch.from_numpy(pixels))
    assert views.shape == (2, len(transforms), transforms.side, transforms.side, 3)
    assert views.dtype == np.uint8
    assert on_torch.dtype == torch.uint8
    np.testing.assert_array_equal(views, on_torch.numpy())
    indexes = torch.arange(len(transforms)).repeat(2)
    repeated = torch.from_numpy(pixels).repeat_interleave(len(transforms), dim=0)
    one_by_one = transforms.view(repeated, indexes)
    assert one_by_one.dtype == torch.uint8
    np.testing.assert_array_equal(one_by_one.numpy(), views.reshape(-1, *views.shape[2:]))


@pytest.mark.parametrize("side", [8, 32, 33, 64])
def test_the_papers_72_are_counted_flip_rows_columns_turn(side):
    transforms = TransformSet.paper(side)
    shifts = (0, -(side // 4), side // 4)
    assert len(transforms) == len(set(transforms.transforms)) == 72
    for f in range(2):
        for r in range(3):
            for c in range(3):
                for k in range(4):
                    index = 36 * f + 12 * r + 4 * c + k
                    assert transforms.transforms[index] == (bool(f), shifts[r], shifts[c], k)
                    assert transforms.labels[index].tolist() == [f, r, c, k]


def test_the_small_set_is_counted_flip_turn():
    transforms = TransformSet.flips_and_turns(32)
    assert [(t.flip, t.turn) for t in transforms.transforms] == [(f, k) for f in (False, True) for k in range(4)]
    assert {(t.row_shift, t.column_shift) for t in transforms.transforms} == {(0, 0)}


def test_the_first_transform_of_the_usual_sets_is_the_identity():
    pixels = image(32)[None]
    for transforms in (TransformSet.paper(32), TransformSet.flips_and_turns(32), TransformSet(32)):
        assert transforms.transforms[0] == Transform(flip=False, row_shift=0, column_shift=0, turn=0)
        np.testing.assert_array_equal(transforms.apply(pixels)[:, 0], pixels)


@given(settings_and_transforms())
@settings(max_examples=20, deadline=None)
def test_a_view_only_moves_pixels_and_a_shift_brings_in_mirrored_ones(transforms):
    assert transforms.table.shape == (len(transforms), transforms.side**2)
    assert transforms.table.min() >= 0
    assert transforms.table.max() < transforms.side**2
    for sources, transform in zip(transforms.table, transforms.transforms, strict=True):
        if not transform.row_shift and not transform.column_shift:
            assert len(set(sources.tolist())) == transforms.side**2


def test_the_papers_set_goes_up_to_the_largest_side_that_images_are_brought_to(monkeypatch):
    monkeypatch.setattr(geometry.transforms, "_TABLES", {})  # what is made for this test goes with it
    transforms, pixels = TransformSet.paper(1024), image(1024, channels=1)
    assert transforms.table.nbytes == 4 * 72 * 1024**2
    (fast,) = transforms.view(torch.from_numpy(pixels[None]), torch.tensor([71]))
    flip, row_shift, column_shift, turn = transforms.transforms[71]
    moved = np.roll(pixels[:, ::-1] if flip else pixels, (-row_shift, -column_shift), axis=(0, 1))
    inside = slice(0, 1024 - row_shift), slice(0, 1024 - column_shift)
    unturned = np.rot90(fast.numpy(), -turn)
    np.testing.assert_array_equal(unturned[inside], moved[inside])


def test_equal_sets_are_equal_and_hash_alike():
    assert TransformSet.paper(32) == TransformSet.paper(32)
    assert len({TransformSet.paper(32), TransformSet.paper(32), TransformSet.paper(64)}) == 2


@pytest.mark.parametrize("shape", [(2, 32, 48, 3), (2, 48, 32, 3), (32, 32, 3), (2, 16, 16, 3), (2, 32, 32)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_images_of_another_shape_are_refused_with_what_was_given(shape, kind):
    images = np.zeros(shape, np.uint8) if kind == "numpy" else torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(InvalidInput, match="square for quarter turns") as caught:
        TransformSet.paper(32).apply(images)
    assert str(list(shape)) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"side": 7}, "at least 8x8 pixels, got a side of 7"),
        ({"flips": ()}, "flip needs a tuple of 1 to 64 values"),
        ({"turns": (1, 1)}, "turn needs a tuple of 1 to 64 values, each once"),
        ({"turns": (4,)}, "quarters from 0 to 3"),
        ({"turns": [0, 1]}, "needs a tuple"),
        ({"row_shifts": (0, 33)}, "cannot exceed the side of 32"),
        ({"column_shifts": (0.5,)}, "whole numbers"),
        ({"flips": (2,)}, "flipped or not"),
        ({"side": 4096, "turns": (0, 1, 2, 3), "flips": (False, True)}, "8 views of 4096x4096 pixels are too many"),
    ],
)
def test_impossible_sets_are_refused_in_clear_words(arguments, words):
    with pytest.raises(InvalidInput, match=words):
        TransformSet(**{"side": 32, **arguments})
