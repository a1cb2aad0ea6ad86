import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.errors import InvalidInput, NoImages, UnreadableImage
from askew.images import open_images, printable
from askew.images.names import unmistakable


def plant(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 99).save(root / path, "PNG")


def found(root, role="all"):
    source = open_images(root, role=role)
    return [os.path.relpath(name, root) for name in source.names], source.notes


def test_nested_folders_are_sorted_by_bytes_and_suffixes_ignore_case(tmp_path):
    plant(tmp_path, "b.PNG", "a/z.JpEg", "a/B.tiff", "Z.bmp", "c/d/e.webp", "notes.txt", "a.pgm")
    assert found(tmp_path)[0] == ["Z.bmp", "a.pgm", "a/B.tiff", "a/z.JpEg", "b.PNG", "c/d/e.webp"]
    assert open_images(str(tmp_path)).read(0).pixels[0, 0, 0] == 99


def test_hidden_files_and_folders_are_skipped(tmp_path):
    plant(tmp_path, "a.png", ".b.png", "._a.png", ".hidden/c.png")
    assert found(tmp_path)[0] == ["a.png"]


def test_loops_of_links_end_and_nothing_counts_twice(tmp_path):
    plant(tmp_path, "real/a.png", "other/b.png")
    (tmp_path / "real" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "real" / "dead.png").symlink_to(tmp_path / "nowhere")
    names, _ = found(tmp_path)
    assert names == ["other/b.png", "real/a.png", "real/dead.png"]
    with pytest.raises(UnreadableImage):
        open_images(tmp_path).read(2)


def test_a_link_in_a_circle_costs_no_other_image(tmp_path):
    plant(tmp_path, "a.png", "good/b.png", "bad/c.png", "z.png")
    for name in ("b.png", "more"):
        (tmp_path / name).symlink_to(name)
    names, notes = found(tmp_path)
    assert names == ["a.png", "b.png", "bad/c.png", "good/b.png", "z.png"]
    assert [note for note in notes if "skipped the folder" in note and "/more: " in note]
    with pytest.raises(UnreadableImage, match="links"):
        open_images(tmp_path).read(1)
    names, notes = found(tmp_path, "normal")
    assert names == ["good/b.png"]
    assert notes == ("using good/ only", "left out the folders bad, more")


def test_linked_folders_are_followed(tmp_path):
    plant(tmp_path, "elsewhere/a.png")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert found(tmp_path / "here")[0] == ["link/a.png"]


MVTEC = ("train/good/0.png", "test/good/1.png", "test/crack/2.png", "ground_truth/crack/2_mask.png")


def test_mvtec_fits_on_train_good_and_scores_all_but_masks(tmp_path):
    plant(tmp_path, *MVTEC)
    names, notes = found(tmp_path, "normal")
    assert names == ["train/good/0.png"]
    assert notes == ("using train/ only", "using good/ only")
    assert found(tmp_path)[0] == ["test/crack/2.png", "test/good/1.png", "train/good/0.png"]


def test_several_mvtec_categories_are_refused(tmp_path):
    plant(tmp_path, *(f"{category}/{path}" for category in ("bottle", "cable") for path in MVTEC))
    with pytest.raises(InvalidInput, match=r"2 data sets.*for example .*bottle"):
        open_images(tmp_path, role="normal")
    assert len(open_images(tmp_path)) == 6


@pytest.mark.parametrize("normal", ["normal", "good", "Good", "OK"])
def test_a_folder_named_normal_is_the_one_to_fit_on(tmp_path, normal):
    plant(tmp_path, f"{normal}/a.png", "defect/b.png", "abnormal/c.png")
    names, notes = found(tmp_path, "normal")
    assert names == [f"{normal}/a.png"]
    assert "left out the folders abnormal, defect" in notes
    assert len(found(tmp_path)[0]) == 3


def test_two_folders_for_normal_images_are_not_silently_one(tmp_path):
    plant(tmp_path, "Good/a.png", "good/b.png")
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system takes upper and lower case for the same")
    assert found(tmp_path, "normal") == (["Good/a.png"], ("using Good/ only", "left out the folders good"))


def test_a_folder_named_defect_is_never_fitted_on(tmp_path):
    plant(tmp_path, "a.png", "defect/b.png")
    assert found(tmp_path, "normal") == (["a.png"], ("left out the folders defect",))


def test_classes_without_a_normal_one_all_count_with_a_note(tmp_path):
    plant(tmp_path, "cat/a.png", "dog/b.png")
    names, notes = found(tmp_path, "normal")
    assert names == ["cat/a.png", "dog/b.png"]
    assert notes == ("no folder is named normal or good, so all of these count as normal: cat, dog",)


def test_train_beside_test_is_used(tmp_path):
    plant(tmp_path, "train/a.png", "test/b.png")
    assert found(tmp_path, "normal")[0] == ["train/a.png"]


def test_a_class_called_train_is_a_class(tmp_path):
    plant(tmp_path, "train/a.png", "plane/b.png")
    assert len(found(tmp_path, "normal")[0]) == 2


def test_nothing_to_read_is_said_clearly(tmp_path):
    with pytest.raises(NoImages, match="no images in"):
        open_images(tmp_path)
    (tmp_path / "a.heic").write_bytes(b"x")
    with pytest.raises(NoImages, match=r"but 1 \.heic"):
        open_images(tmp_path)
    for path in (tmp_path / "nowhere", "", "nul\0"):
        with pytest.raises(NoImages):
            open_images(path)


def test_patterns_find_files_but_not_masks(tmp_path):
    plant(tmp_path, "a1.png", "a2.png", "b.png", "sub/a3.png", "ground_truth/a4.png", "a5.txt")
    assert len(open_images(f"{tmp_path}/a*")) == 2
    assert len(open_images(f"{tmp_path}/**/a?.png")) == 3
    assert len(open_images(f"{tmp_path}/ground_truth/*.png")) == 1
    with pytest.raises(NoImages, match="no image file matches"):
        open_images(f"{tmp_path}/x*")


def test_a_name_with_brackets_is_a_file_first(tmp_path):
    plant(tmp_path, "a[1].png")
    assert len(open_images(tmp_path / "a[1].png")) == 1


def test_an_unlistable_folder_is_noted(tmp_path):
    plant(tmp_path, "a.png", "locked/b.png")
    (tmp_path / "locked").chmod(0)
    try:
        if os.access(tmp_path / "locked", os.R_OK):
            pytest.skip("this user may list every folder")
        names, notes = found(tmp_path)
    finally:
        (tmp_path / "locked").chmod(0o755)
    assert names == ["a.png"]
    assert "skipped the folder" in notes[0]


def test_a_file_in_a_locked_folder_is_one_unreadable_image(tmp_path):
    plant(tmp_path, "a.png", "locked/b.png")
    (tmp_path / "link.png").symlink_to("locked/b.png")
    (tmp_path / "locked").chmod(0)
    try:
        if os.access(tmp_path / "locked", os.X_OK):
            pytest.skip("this user may enter every folder")
        assert found(tmp_path)[0] == ["a.png", "link.png"]
        source = open_images([tmp_path / "locked" / "b.png", tmp_path / "a.png"])
        with pytest.raises(UnreadableImage, match="Permission denied"):
            source.read(0)
    finally:
        (tmp_path / "locked").chmod(0o755)


def test_names_that_are_not_utf8_are_read(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        with Path(os.fsdecode(name)).open("wb") as file:
            Image.new("L", (4, 4), 5).save(file, "PNG")
    except OSError:
        pytest.skip(f"the file system of {sys.platform} refuses names that are not UTF-8")
    source = open_images(tmp_path)
    assert source.read(0).pixels.max() == 5
    assert printable(source.names[0]).endswith("caf\\xe9.png")
    assert len(open_images([name])) == 1


def test_names_with_line_breaks_are_read_and_shown_on_one_line(tmp_path):
    plant(tmp_path, "two\nlines\x1b[31m.png")
    source = open_images(tmp_path)
    assert source.read(0).pixels.max() == 99
    assert printable(source.names[0]).endswith(r"two\nlines\x1b[31m.png")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain é 字.png", "plain é 字.png"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
        ("\udcff", r"\xff"),
        ("\x85", r"\u0085"),
        ("C:\\new", r"C:\new"),
        ("a\\b\n", r"a\\b\n"),
    ],
)
def test_printable_names_encode_and_stay_on_one_line(name, shown):
    assert printable(name) == shown
    assert printable(shown) == shown
    printable(name).encode()


def test_no_two_names_are_written_alike(monkeypatch):
    names = ["a\nb", "a\\nb", "a\\\nb", "a\\\\nb", "\udc85", "\x85", "\\x85", "\\u0085", "plain é"]
    monkeypatch.setattr(os, "sep", "/")
    shown = [unmistakable(name) for name in names]
    assert len(set(shown)) == len(names)
    assert all(name.isprintable() for name in shown)
    assert shown[-1] == "plain é"
    monkeypatch.setattr(os, "sep", "\\")
    assert unmistakable(r"C:\new\1.png") == r"C:\new\1.png"


def test_a_source_can_be_narrowed_twice(tmp_path):
    for index in range(6):
        Image.fromarray(np.full((4, 4), index, np.uint8)).save(tmp_path / f"{index}.png")
    source = open_images(tmp_path).take([5, 3, 1]).take(np.array([2, 0]))
    assert [source.read(index).pixels[0, 0, 0] for index in range(len(source))] == [1, 5]
    assert [name[-5] for name in source.names] == ["1", "5"]
    assert open_images(source) is source


def test_a_role_must_be_known(tmp_path):
    with pytest.raises(InvalidInput, match="role"):
        open_images(tmp_path, role="odd")
