"""Where results may go, and how places are named."""

import shutil

import pytest
from PIL import Image

from pictures import drawings, write_images


def test_no_verb_overwrites_what_it_reads(here, place, tmp_path):
    model, table, picture = tmp_path / "m.csv", tmp_path / "list.csv", tmp_path / "picture.safetensors"
    shutil.copy(place / "model.safetensors", model)
    table.write_text(f"path\n{place / 'new' / '0000.png'}\n")
    Image.fromarray(drawings(1)[0].squeeze()).save(picture, "PNG")
    (tmp_path / "link.csv").symlink_to(table)
    before = {path: path.read_bytes() for path in (model, table, picture)}
    for words in (
        ("score", model, place / "new", "-o", model),
        ("score", model, place / "new", table, "-o", table),
        ("score", model, table, "-o", tmp_path / "link.csv"),
        ("calibrate", model, picture, place / "new", "-o", picture),
        ("fit", picture, place / "normal", "-o", picture),
    ):
        assert "would be lost; give -o another name" in here(*words, code=2)[1]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["victim.png", ".safetensors", "model"])
def test_a_model_is_only_written_to_a_file_with_a_models_name(here, place, tmp_path, name):
    (tmp_path / name).write_bytes(b"precious")
    for words in (("calibrate", place / "model.safetensors", place / "new"), ("fit", place / "normal")):
        _, err = here(*words, "-o", tmp_path / name, code=2)
        assert f"a model is a file such as model.safetensors, got {tmp_path / name}" in err
    assert (tmp_path / name).read_bytes() == b"precious"


def test_a_model_may_be_calibrated_whatever_it_is_called(here, place, tmp_path):
    shutil.copy(place / "model.safetensors", tmp_path / "model.old")
    _, err = here("calibrate", tmp_path / "model.old", write_images(tmp_path / "fresh", drawings(20, seed=20)))
    assert f"wrote {tmp_path / 'model.old'}" in err


def test_a_table_without_a_name_is_refused_with_an_example(here, place):
    _, err = here("score", place / "model.safetensors", place / "new", "-o", ".csv", code=2)
    assert "a file such as scores.csv or scores.jsonl, got .csv" in err


def test_places_are_named_in_printable_characters(here, place, tmp_path):
    model = tmp_path / "m\x1b[31m.safetensors"
    _, err = here("fit", place / "normal", "-o", model, "--views", "64", "--side", "16", "--resume")
    assert r"m\x1b[31m.checkpoint; starting anew" in err
    assert rf"wrote {tmp_path}/m\x1b[31m.safetensors" in err
    assert "\x1b" not in err
