import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from askew.errors import InvalidInput, NoImages
from askew.images import Decoded, ImageSource, SizePolicy, fingerprints, load_normals, open_images, prepare

RNG = np.random.default_rng(0)


def save(folder, name, array):
    Image.fromarray(array).save(folder / name)


def test_normals_are_what_prepare_makes_of_each_image(tmp_path):
    images = [RNG.integers(0, 256, (20 + index, 30, 3), np.uint8) for index in range(20)]
    for index, image in enumerate(images):
        save(tmp_path, f"{index:02}.png", image)
    told = []
    normals = load_normals(open_images(tmp_path), side=16, fit="crop", watch=lambda *pair: told.append(pair))
    assert normals.policy == SizePolicy(side=16, fit="crop", channels=3)
    assert (normals.images == np.stack([prepare(image, normals.policy) for image in images])).all()
    assert normals.indexes == list(range(20))
    assert told == [(done, 20) for done in range(1, 21)]
    assert (normals.fingerprints == fingerprints(normals.images)).all()


def test_grey_stays_grey_until_one_image_has_colour(tmp_path):
    greys = RNG.integers(0, 256, (3, 16, 16), np.uint8)
    for index, image in enumerate(greys):
        save(tmp_path, f"{index}.png", image if index else np.repeat(image[..., None], 3, axis=2))
    normals = load_normals(open_images(tmp_path), side=16, fit="crop")
    assert normals.images.shape == (3, 16, 16, 1)
    assert (normals.images[..., 0] == greys).all()

    colour = RNG.integers(0, 256, (16, 16, 3), np.uint8)
    save(tmp_path, "9.png", colour)
    normals = load_normals(open_images(tmp_path), side=16, fit="crop")
    assert normals.policy.channels == 3
    assert (normals.images[:3] == greys[..., None]).all()
    assert (normals.images[3] == colour).all()
    assert (normals.scan.grey, normals.scan.colour) == (3, 1)


def test_channels_can_be_asked_for(tmp_path):
    save(tmp_path, "a.png", RNG.integers(0, 256, (16, 16), np.uint8))
    save(tmp_path, "b.png", RNG.integers(0, 256, (16, 16, 3), np.uint8))
    source = open_images(tmp_path)
    grey = load_normals(source, side=16, fit="crop", channels=1)
    assert grey.indexes == [0]
    assert "has colour" in grey.scan.reasons[0][1]
    assert load_normals(source.take([0]), side=16, fit="crop", channels=3).images.shape == (1, 16, 16, 3)


def test_the_scan_says_what_it_found(tmp_path):
    for index in range(4):
        save(tmp_path, f"ok{index}.png", RNG.integers(0, 256, (20, 24), np.uint8))
    save(tmp_path, "twin.png", np.asarray(Image.open(tmp_path / "ok0.png")))
    save(tmp_path, "white.png", np.full((40, 40), 255, np.uint8))
    save(tmp_path, "deep.png", RNG.integers(0, 65536, (8, 8)).astype(np.uint16))
    (tmp_path / "bad\n.png").write_bytes(b"junk")
    normals = load_normals(open_images(tmp_path).noted("a remark"), side=16, fit="crop")
    scan = normals.scan
    assert (scan.found, scan.readable, scan.unreadable) == (8, 7, 1)
    assert (scan.duplicates, scan.blank, scan.enlarged) == (1, 1, 1)
    assert scan.sizes == {(24, 20): 5, (40, 40): 1, (8, 8): 1}
    assert scan.size_range == ((8, 8), (24, 20), (40, 40))
    lines = scan.lines()
    assert lines[0] == "a remark"
    assert lines[1] == "7 images to fit on, grey, 3 sizes from 8x8 to 40x40, median 24x20"
    assert "1 image: 16-bit scaled to 8" in lines
    text = "\n".join(lines)
    for said in (
        "1 of 8 images cannot be read",
        r"bad\n.png: not a PNG",
        "only 7 images",
        "repeat",
        "content",
        "enlarged",
    ):
        assert said in text
    assert all(line.isprintable() for line in lines)


def test_a_good_set_has_no_warnings():
    normals = load_normals(open_images(RNG.integers(0, 256, (60, 28, 28), np.uint8)), side=32, fit="pad")
    assert normals.scan.lines() == ["60 images to fit on, grey, all 28x28"]


def test_a_blank_image_padded_with_black_is_blank():
    images = np.full((3, 10, 10), 255, np.uint8)
    assert load_normals(open_images(images), side=16, fit="pad").scan.blank == 3


def test_one_flat_colour_is_blank():
    images = np.zeros((2, 10, 10, 3), np.uint8)
    images[0] = 200, 30, 90
    images[1, ::2] = 200, 30, 90
    assert load_normals(open_images(images), side=8, fit="crop").scan.blank == 1


@pytest.mark.parametrize("shape", [(3, 1_000_000, 3), (1_000_000, 3, 3)])
def test_a_sliver_takes_no_more_memory_than_its_pixels(shape):
    sliver = np.arange(9_000_000, dtype=np.uint32).astype(np.uint8).reshape(shape)
    source = ImageSource(names=["sliver"], read_at=lambda _: Decoded(sliver))
    for fit in ("crop", "pad", "stretch"):
        tracemalloc.start()
        normals = load_normals(source, side=8, fit=fit, workers=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert normals.scan.blank == 0
        assert peak < sliver.nbytes


def test_nothing_readable_names_the_first_reason(tmp_path):
    for index in range(3):
        (tmp_path / f"{index}.png").write_bytes(b"junk")
    with pytest.raises(NoImages, match=r"none of the 3 images can be read; .*0\.png: not a PNG"):
        load_normals(open_images(tmp_path), side=16, fit="crop")


def test_groups_follow_the_images_that_were_read(tmp_path):
    save(tmp_path, "b.png", RNG.integers(0, 256, (16, 16), np.uint8))
    (tmp_path / "list.csv").write_text("path,group\na.png,first\nb.png,second\n")
    normals = load_normals(open_images(tmp_path / "list.csv"), side=16, fit="crop")
    assert (normals.indexes, normals.groups) == ([1], ["second"])


def test_groups_may_be_given_one_for_every_image_that_was_found(tmp_path):
    for name in ("b.png", "c.png"):
        save(tmp_path, name, RNG.integers(0, 256, (16, 16), np.uint8))
    (tmp_path / "list.csv").write_text("path,group\na.png,first\nb.png,second\nc.png,second\n")
    normals = load_normals(open_images(tmp_path / "list.csv"), side=16, fit="crop")
    assert normals.groups_for(None) == ["second", "second"]
    for given in ([7, 8, 9], np.array([7, 8, 9]), iter([7, 8, 9])):
        assert normals.groups_for(given) == [8, 9]
    with pytest.raises(InvalidInput, match="one group per image, got 2 for 3"):
        normals.groups_for(["second", "second"])
    ungrouped = load_normals(open_images(tmp_path), side=16, fit="crop")
    assert ungrouped.groups_for(None) is None


def test_threads_change_nothing(tmp_path):
    for index in range(30):
        save(tmp_path, f"{index:02}.png", RNG.integers(0, 256, (20, 20, 3) if index % 4 else (20, 20), np.uint8))
    one, two = (load_normals(open_images(tmp_path), side=8, fit="crop", workers=workers) for workers in (0, 3))
    assert (one.images == two.images).all()
    assert (one.fingerprints == two.fingerprints).all()
    assert one.scan == two.scan


def test_fingerprints_are_equal_exactly_where_images_are():
    images = RNG.integers(0, 256, (50, 8, 8, 3), np.uint8)
    images[7] = images[3]
    images[8] = images[3]
    images[8, 0, 0, 0] ^= 1
    marks = fingerprints(images)
    assert marks.dtype == np.uint64
    assert marks[7] == marks[3] != marks[8]
    assert len(set(marks.tolist())) == 49
    assert fingerprints(images[:, :, :, :1])[0] != marks[0]
    assert fingerprints(np.zeros((1, 8, 8, 1), np.uint8))[0] == fingerprints(np.zeros((9, 8, 8, 1), np.uint8))[4]


def test_wrong_settings_are_refused():
    source = open_images(np.zeros((1, 8, 8), np.uint8))
    with pytest.raises(InvalidInput, match="side 4 cannot be used"):
        load_normals(source, side=4, fit="crop")
    with pytest.raises(InvalidInput):
        load_normals(source, side=8, fit="crop", workers=-1)


def test_the_room_loads_nothing_heavy_until_used():
    code = (
        "import sys, askew.images as images; images.printable('a');"
        "heavy = {'numpy', 'PIL', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy; [getattr(images, name) for name in images.__all__];"
        "assert not {'torch', 'scipy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
