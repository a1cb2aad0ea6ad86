import dataclasses
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import askew.datasets
from askew.datasets.bundled import CLASS_NAMES, NORMAL_CLASS, load_sample, write_folder
from askew.errors import InvalidInput
from askew.images import load_normals, open_images

FOLDER = Path(askew.datasets.__file__).parent / "sample"
MAKER = Path(__file__).resolve().parents[2] / "benchmarks" / "make_sample.py"


def test_there_are_1000_normals_and_a_balanced_test_of_all_classes():
    sample = load_sample()
    assert (sample.normal.shape, sample.normal.dtype) == ((1000, 28, 28), np.uint8)
    assert (sample.test.shape, sample.test.dtype) == ((398, 28, 28), np.uint8)
    counts = {CLASS_NAMES[label]: int((sample.test_labels == label).sum()) for label in range(10)}
    assert counts == {name: 200 if name == "sneaker" else 22 for name in CLASS_NAMES}
    assert sample.test_is_normal.dtype == np.bool_
    assert sample.test_is_normal.sum() == 200
    assert {name.split("/")[1] for name in np.array(sample.test_names)[sample.test_is_normal]} == {"sneaker"}


def test_no_test_image_is_among_the_normals():
    sample = load_sample()
    normal = {image.tobytes() for image in sample.normal}
    assert not any(image.tobytes() in normal for image in sample.test)


def test_the_sample_is_small_and_carries_its_licence():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    licence = (FOLDER / "LICENSE").read_text(encoding="utf-8")
    for words in ("MIT License", "2017 Zalando SE", "github.com/zalandoresearch/fashion-mnist", "Permission is hereby"):
        assert words in licence
    for path in FOLDER.glob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert {arrays[name].dtype for name in arrays} == {np.dtype(np.uint8)}


def test_the_sample_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_sample().normal = None
    load_sample().normal[:] = 0
    assert load_sample().normal.any()


def test_it_is_written_as_files_that_hold_the_very_pixels(tmp_path):
    sample, folder = load_sample(), write_folder(tmp_path / "new" / "sample")
    assert folder == tmp_path / "new" / "sample"
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert len(names) == 1398
    assert names[0] == "normal/0000.png"
    assert sorted(sample.test_names) == names[1000:]
    for name, pixels in [("normal/0999.png", sample.normal[999]), *zip(sample.test_names, sample.test, strict=True)]:
        with Image.open(folder / name) as image:
            assert image.mode == "L"
            np.testing.assert_array_equal(np.asarray(image), pixels)


def test_what_is_written_is_what_a_detector_reads(tmp_path):
    folder, sample = write_folder(tmp_path), load_sample()
    normals = load_normals(open_images(folder / "normal", role="normal"), side=28, fit="crop")
    np.testing.assert_array_equal(normals.images[:, :, :, 0], sample.normal)
    assert len(open_images(folder / "test")) == 398


def test_it_can_be_written_again_beside_what_else_is_there(tmp_path):
    (tmp_path / "model.safetensors").write_text("mine")
    write_folder(tmp_path)
    (tmp_path / "normal" / "0000.png").write_bytes(b"")
    write_folder(str(tmp_path))
    with Image.open(tmp_path / "normal" / "0000.png") as image:
        assert image.size == (28, 28)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_a_folder_with_images_of_somebody_elses_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "normal").mkdir()
    (tmp_path / "normal" / "mine.png").write_text("mine")
    with pytest.raises(InvalidInput, match=r"holds other files already, such as normal/mine.png; name a new folder"):
        write_folder(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.png"]


def test_a_target_that_cannot_be_a_folder_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="cannot be written to"):
        write_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_sample_is_cut_out_of_the_published_files():
    place = os.environ.get("ASKEW_DATA")
    folders = [Path(place), Path(place) / "fashion-mnist"] if place else []
    found = [folder for folder in folders if (folder / "train-images-idx3-ubyte.gz").is_file()]
    if not found:
        pytest.skip("ASKEW_DATA names no folder with the published files of Fashion-MNIST")
    expected = runpy.run_path(str(MAKER))["chosen"](found[0])
    sample = load_sample()
    np.testing.assert_array_equal(sample.normal, expected["normal.npz"]["images"])
    np.testing.assert_array_equal(sample.test, expected["test.npz"]["images"])
    np.testing.assert_array_equal(sample.test_labels, expected["test.npz"]["labels"])
    assert CLASS_NAMES[NORMAL_CLASS] == "sneaker"
