import io
import math
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.errors import InvalidInput, NoImages, UnreadableImage
from askew.images import open_images
from askew.images.arrays import MAX_ARRAY_BYTES

GREY = np.random.default_rng(0).integers(0, 256, (5, 6, 7), np.uint8)
COLOUR = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), np.uint8)


def read_all(source):
    return np.stack([source.read(index).pixels for index in range(len(source))])


@pytest.mark.parametrize("images", [GREY, GREY[..., None], COLOUR], ids=["nhw", "nhw1", "nhw3"])
def test_uint8_arrays_are_taken_as_they_are(images):
    source = open_images(images)
    assert (read_all(source) == images.reshape(5, 6, 7, -1)).all()
    assert source.names[3] == "image 3"
    assert source.read(0).notes == ()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_scaled_and_rounded(kind):
    assert (read_all(open_images((COLOUR / 255).astype(kind))) == COLOUR).all()


def test_bool_and_uint16_are_scaled():
    assert set(np.unique(read_all(open_images(GREY > 9)))) == {0, 255}
    source = open_images(GREY.astype(np.uint16) * 257)
    assert (read_all(source)[..., 0] == GREY).all()
    assert source.read(0).notes == ("16-bit scaled to 8",)


def test_alpha_is_flattened_onto_white():
    images = np.concatenate([COLOUR, np.zeros((5, 6, 7, 1), np.uint8)], axis=3)
    decoded = open_images(images).read(0)
    assert (decoded.pixels == 255).all()
    assert decoded.notes == ("transparency flattened onto white",)
    images[..., 3] = 255
    assert (read_all(open_images(images)) == COLOUR).all()


def test_reading_never_hands_out_the_caller_s_memory():
    images = COLOUR.copy()
    open_images(images).read(0).pixels[:] = 0
    assert (images == COLOUR).all()


def spoiled(value):
    images = np.zeros((3000, 4, 4))
    images[2500, 1, 2] = value
    return images


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01, 255.0])
def test_floats_outside_the_unit_range_are_refused_by_number(value):
    with pytest.raises(InvalidInput, match=r"in \[0, 1\], image 2500"):
        open_images(spoiled(value))


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((5, 42), np.uint8), "image_shape="),
        (np.zeros((5, 3, 32, 32), np.uint8), "transpose"),
        (np.zeros((32, 32, 3), np.uint8), r"X\[None\]"),
        (np.zeros((5, 6, 7, 2), np.uint8), "1, 3 or 4"),
        (np.zeros((2, 2, 6, 7, 3), np.uint8), "1, 3 or 4"),
        (np.zeros((5, 6, 7), np.int64), "astype"),
        (np.zeros((5, 6, 7), np.complex64), "complex64"),
        (np.array([[["a"]]]), "must be uint8"),
        (np.zeros((5, 0, 7), np.uint8), "no pixels"),
        (np.uint8(3), "a single value"),
        (None, "a single value|None"),
        ([np.zeros((2, 2)), np.zeros((3, 3))], "different sizes"),
        ([np.zeros((2, 2)), "a.png"], "item 0 is ndarray"),
        ({"a": 1}, "dict|object|a single value"),
    ],
)
def test_unusable_arrays_are_refused_with_advice(images, says):
    with pytest.raises(InvalidInput, match=says):
        open_images(images)


@pytest.mark.parametrize("images", [np.zeros((0, 4, 4), np.uint8), [], ()])
def test_no_images_is_said(images):
    with pytest.raises(NoImages):
        open_images(images)


def test_flattened_images_need_their_shape():
    flat = COLOUR.reshape(5, -1)
    assert (read_all(open_images(flat, image_shape=(6, 7, 3))) == COLOUR).all()
    with pytest.raises(InvalidInput, match="does not hold the 126 values"):
        open_images(flat, image_shape=(6, 7))


def test_lists_of_arrays_and_of_paths(tmp_path):
    assert (read_all(open_images(list(COLOUR))) == COLOUR).all()
    Image.fromarray(COLOUR[0]).save(tmp_path / "a.png")
    source = open_images([tmp_path / "a.png", str(tmp_path / "missing.png")])
    assert (source.read(0).pixels == COLOUR[0]).all()
    with pytest.raises(UnreadableImage, match="No such file"):
        source.read(1)
    assert len(open_images(tmp_path / "a.png")) == 1


def outcome(X, role):
    """The names and notes of what is opened, or the error."""
    try:
        source = open_images(X, role=role)
    except InvalidInput as error:
        return type(error), str(error)
    return list(source.names), source.notes, source.labels


@pytest.fixture
def stock(tmp_path):
    """A folder with `good/`, `bad/`, an array, a table and a file."""
    for name in ("good/1.png", "good/2.png", "bad/3.png", "a[1].png", "plain"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(COLOUR[0]).save(tmp_path / name, "PNG")
    np.savez(tmp_path / "a.npz", images=COLOUR, labels=["good"] * 4 + ["bad"], groups=list("vwxyz"))
    (tmp_path / "list.csv").write_text("path,label,group\ngood/1.png,good,g\nbad/3.png,bad,h\n")
    return tmp_path


@pytest.mark.parametrize("role", ["normal", "all"])
@pytest.mark.parametrize(
    "name",
    ["", "good", "good/1.png", "good/*.png", "x*", "a[1].png", "a.npz", "list.csv", "plain", "none.png", "none", "a\0"],
)
def test_a_list_of_one_path_is_that_path(stock, name, role):
    path = f"{stock}/{name}"
    alone = outcome(path, role)
    assert outcome([path], role) == alone
    assert outcome((path.encode(),), role) == alone


def test_patterns_work_in_lists_of_several(stock):
    source = open_images([f"{stock}/good/*.png", f"{stock}/a[1].png", f"{stock}/b*/*"])
    assert [name[len(str(stock)) + 1 :] for name in source.names] == [
        "good/1.png",
        "good/2.png",
        "a[1].png",
        "bad/3.png",
    ]
    with pytest.raises(NoImages, match=r"no image file matches .*x\*\.png"):
        open_images([f"{stock}/a[1].png", f"{stock}/x*.png"])


@pytest.mark.parametrize("other", ["good", "a.npz", "list.csv", "good/*.png"])
def test_a_missing_path_among_folders_arrays_and_patterns_is_refused(stock, other):
    with pytest.raises(NoImages, match=r"there is no file or folder .*none\.png"):
        open_images([stock / other, stock / "none.png"])


def test_a_missing_path_that_is_no_image_s_is_refused_among_image_files(stock):
    assert len(open_images([stock / "plain", stock / "none.png"])) == 2
    for name in ("none", "none.npz"):
        with pytest.raises(NoImages, match=f"there is no file or folder .*{name}"):
            open_images([stock / "plain", stock / name])


def test_a_list_is_read_across_its_seams(stock):
    parts = [stock / "good", stock / "a.npz", stock / "plain"]
    source = open_images(parts)
    assert len(source) == 2 + 5 + 1
    apart = [part.read(index).pixels for part in map(open_images, parts) for index in range(len(part))]
    for index, pixels in enumerate(apart):
        assert (source.read(index).pixels == pixels).all()
    assert source.names[2].endswith("a.npz[0]")
    backwards = source.take([7, 6, 2, 1])
    assert (backwards.read(1).pixels == COLOUR[4]).all()
    assert (backwards.read(2).pixels == COLOUR[0]).all()


def test_labels_and_groups_of_a_list_are_known_only_where_all_know_them(stock):
    both = open_images([stock / "a.npz", stock / "list.csv"])
    assert both.labels == ["good"] * 4 + ["bad", "good", "bad"]
    assert both.groups == [*"vwxyz", "g", "h"]
    assert both.splits is None
    with_a_file = open_images([stock / "a.npz", stock / "list.csv", stock / "plain"])
    assert (with_a_file.labels, with_a_file.groups) == (None, None)
    normal = open_images([stock / "a.npz", stock / "list.csv"], role="normal")
    assert normal.groups == [*"vwxy", "g"]
    assert normal.notes == ("left out 1 of 5 by label: bad", "left out 1 of 2 by label: bad")


def test_torch_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    assert (read_all(open_images(torch.from_numpy(COLOUR))) == COLOUR).all()
    with pytest.raises(InvalidInput, match="CPU"):
        open_images(torch.zeros((1, 2, 2), requires_grad=True))


def test_npy_is_mapped_and_its_images_are_named(tmp_path):
    np.save(tmp_path / "a{b}.npy", GREY)
    source = open_images(tmp_path / "a{b}.npy")
    assert (read_all(source)[..., 0] == GREY).all()
    assert source.names[2].endswith("a{b}.npy[2]")


@pytest.mark.parametrize("key", ["images", "x_train", "x", "arr_0"])
def test_npz_finds_its_images_labels_and_groups(tmp_path, key):
    np.savez(tmp_path / "a.npz", **{key: GREY}, labels=[0, 1, 0, 1, 1], groups=np.array(["a", "b", "a", "b", "c"]))
    source = open_images(tmp_path / "a.npz")
    assert (read_all(source)[..., 0] == GREY).all()
    assert source.labels == ["0", "1", "0", "1", "1"]
    assert source.groups == ["a", "b", "a", "b", "c"]
    normal = open_images(tmp_path / "a.npz", role="normal")
    assert [name[-3:] for name in normal.names] == ["[0]", "[2]"]
    assert normal.groups == ["a", "a"]
    assert normal.notes == ("left out 3 of 5 by label: 1",)


def test_unusable_npz_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=GREY, b=GREY)
    with pytest.raises(InvalidInput, match="one array named images; it holds a, b"):
        open_images(path)
    np.savez(path, images=GREY, labels=[1, 2])
    with pytest.raises(InvalidInput, match=r"labels .* one per image"):
        open_images(path)
    path.write_bytes(b"PK\3\4 and no more")
    with pytest.raises(InvalidInput, match=r"not a readable \.npz"):
        open_images(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(NoImages):
        open_images(path)


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_pickles_are_never_loaded(tmp_path):
    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "a.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "a.npz", images=trap)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InvalidInput, match="Python objects"):
            open_images(tmp_path / name)


def giant_header():
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|u1", "fortran_order": False, "shape": (MAX_ARRAY_BYTES // 1024 + 1, 32, 32)}
    )
    return file.getvalue()


def test_declared_giants_are_refused_before_memory_is_taken(tmp_path):
    (tmp_path / "a.npy").write_bytes(giant_header())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", giant_header())
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InvalidInput, match="more than the"):
            open_images(tmp_path / name)


def sparse(path, shape):
    """A .npy file of that shape which takes no room."""
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + math.prod(shape))
    return path


def test_a_small_file_cannot_declare_more_images_than_there_is_memory_for(tmp_path):
    with pytest.raises(InvalidInput, match=r"declares 8,000,000,000 images, more than the 10,000,000"):
        open_images(sparse(tmp_path / "a.npy", (8_000_000_000, 1, 1)))
    with pytest.raises(InvalidInput, match="images may have 89,478,485 pixels"):
        open_images(sparse(tmp_path / "b.npy", (1, 80_000, 80_000)))


def test_names_of_images_in_arrays_take_no_memory(tmp_path):
    many = sparse(tmp_path / "a.npy", (10_000_000, 1, 1))
    tracemalloc.start()
    both = open_images([many, sparse(tmp_path / "b.npy", (7, 1, 1))])
    some = both.take(range(9_999_998, 10_000_003))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert len(both.names) == 10_000_007
    assert [Path(name).name for name in some.names] == [
        "a.npy[9999998]",
        "a.npy[9999999]",
        *(f"b.npy[{n}]" for n in range(3)),
    ]
    assert both.names[-1] == both.names[-1:][0] == str(tmp_path / "b.npy[6]")
    with pytest.raises(IndexError):
        both.names[10_000_007]


def test_an_entry_shorter_than_it_declares_is_refused(tmp_path):
    file = io.BytesIO()
    np.save(file, np.zeros((100, 32, 32), np.uint8))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", file.getvalue()[:500])
    with pytest.raises(InvalidInput, match="cut short"):
        open_images(tmp_path / "a.npz")


@pytest.fixture
def manifest(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "sub/b, c.png", "d.png"):
        Image.new("L", (4, 4)).save(tmp_path / name)

    def write(text, encoding="utf-8"):
        path = tmp_path / "list.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_a_manifest_lists_images_with_what_is_known_of_them(manifest):
    path = manifest('Path,LABEL,split,group,weight\na.png,good,train,x,1\n"sub/b, c.png",bad,test,y,2\n\n', "utf-8-sig")
    source = open_images(path)
    assert (source.labels, source.splits, source.groups) == (["good", "bad"], ["train", "test"], ["x", "y"])
    assert source.read(1).pixels.shape == (4, 4, 1)


def test_an_image_without_a_group_is_a_group_of_its_own(manifest, tmp_path):
    path = manifest("path,group\na.png,x\nd.png,\nb.png, \nc.png,x\n")
    groups = open_images(path).groups
    assert groups[0] == groups[3] == "x"
    assert len(set(groups)) == 3
    assert open_images(manifest("path,group\na.png,\nd.png,\n")).groups is None
    np.savez(tmp_path / "a.npz", images=GREY, groups=np.array(["x", "", "", "x", "y"]))
    assert len(set(open_images(tmp_path / "a.npz").groups)) == 4


def test_a_manifest_fits_on_its_normal_training_rows(manifest):
    path = manifest("path,label,split\na.png,Good,Train\nd.png,scratch,train\nb.png,good,test\n")
    normal = open_images(path, role="normal")
    assert len(normal) == 1
    assert normal.notes == (
        "left out 1 of 3 by split: test",
        "left out 1 of 2 by label: scratch",
    )
    with pytest.raises(NoImages, match="the labels are scratch"):
        open_images(manifest("path,label\na.png,scratch\n"), role="normal")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must name the columns"),
        ("file,label\na.png,1\n", "must name the columns"),
        ("path,path\na,b\n", "each once"),
        ("path,label\na.png,good\nb.png\n", "line 3 .* has 1 cells, the header has 2"),
        ("path,label\n,good\n", "line 2 .* has no path"),
        ('path\n"a.png\n', "is not CSV"),
        ("path\n", "lists no images"),
    ],
)
def test_a_bad_manifest_is_refused_by_line(manifest, text, says):
    with pytest.raises(InvalidInput, match=says):
        open_images(manifest(text))


def test_a_manifest_must_be_utf8(manifest):
    with pytest.raises(InvalidInput, match=r"line 3 .* is not UTF-8"):
        open_images(manifest("path\na.png\ncafé.png\n", "latin-1"))
