"""What `askew calibrate` says and refuses."""

import shutil

import askew
from pictures import drawings, write_images


def test_calibrate_says_what_it_leaves_out_and_how_far_it_is(here, place, tmp_path):
    good = write_images(tmp_path / "good", drawings(40, seed=20))
    write_images(tmp_path / "bad", drawings(2, seed=21))
    (good / "broken.png").write_bytes(b"junk")
    shutil.copy(place / "normal" / "0007.png", good / "old.png")
    model = tmp_path / "m.safetensors"
    _, err = here("calibrate", place / "model.safetensors", tmp_path, "-o", model)
    assert "using good/ only\nleft out the folders bad\n" in err
    assert f"left out of the calibration: 1 images cannot be read, the first: {good / 'broken.png'}: not a PNG" in err
    assert "left out of the calibration: 1 images were used in fitting\n" in err
    assert "scoring normals: 42 of 42" in err
    assert askew.load(model).fitted_threshold.n == 40


def test_few_images_are_said_to_support_a_rate_that_nobody_wanted(here, place, tmp_path):
    few = write_images(tmp_path / "few", drawings(2, seed=20))
    _, err = here("calibrate", place / "model.safetensors", few, "-o", tmp_path / "m.safetensors")
    assert "2 held-out images support a false-alarm rate of 33 % at the least" in err
    assert "false-alarm rate 33.3333 % supported; from 2 held-out" in err


def test_a_rate_out_of_reach_is_refused_before_anything_is_scored(here, place, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for index in range(15):
        (broken / f"{index}.png").write_bytes(b"junk")
    words = ("calibrate", place / "model.safetensors", broken, "-o", tmp_path / "m.safetensors")
    _, err = here(*words, "--false-alarm-rate", "0.001", code=2)
    assert "needs 999 held-out normal images, got 15" in err
    assert "cannot be read" not in err


def test_images_that_cannot_calibrate_are_told_why(here, place, tmp_path):
    (tmp_path / "a.png").write_bytes(b"junk")
    words = ("calibrate", place / "model.safetensors", "-o", tmp_path / "m.safetensors")
    _, err = here(*words, tmp_path / "a.png", code=2)
    assert f"1 images cannot be read, the first: {tmp_path / 'a.png'}: not a PNG" in err
    assert "used in fitting" not in err
    _, err = here(*words, place / "normal", code=2)
    assert "none of the 150 images can calibrate: 150 images were used in fitting; give other" in err
    assert "cannot be read" not in err
