import io
import os
import socket
import struct
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from askew.errors import UnreadableImage
from askew.images import decode, open_images
from askew.images.decoding import MAX_BYTES, read_bytes, read_image

NOISE = np.random.default_rng(0).integers(0, 256, (12, 9, 4), np.uint8)
COLOUR, GREY, ALPHA = NOISE[..., :3], NOISE[..., :1], NOISE[..., 3]


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def colour():
    return Image.fromarray(COLOUR)


def grey():
    return Image.fromarray(GREY[..., 0])


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("PPM", {}), ("WEBP", {"lossless": True})]
)
def test_lossless_colour_comes_back_bit_for_bit(kind, options):
    decoded = decode(saved(colour(), kind, **options))
    assert (decoded.pixels == COLOUR).all()
    assert decoded.notes == ()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "BMP"])
def test_grey_stays_one_channel(kind):
    decoded = decode(saved(grey(), kind))
    assert (decoded.pixels == GREY).all()
    assert decoded.notes == ()


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_compressed_tiff_comes_back_bit_for_bit(compression):
    assert (decode(saved(colour(), "TIFF", compression=compression)).pixels == COLOUR).all()


def test_jpeg_is_what_pillow_decodes():
    content = saved(colour(), "JPEG")
    with Image.open(io.BytesIO(content)) as picture:
        assert (decode(content).pixels == np.asarray(picture)).all()
    assert decode(saved(grey(), "JPEG")).pixels.shape == (12, 9, 1)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_black_and_white_becomes_grey(kind):
    bits = GREY[..., 0] > 127
    assert (decode(saved(Image.fromarray(bits), kind)).pixels[..., 0] == bits * 255).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_by_257(kind):
    deep = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    decoded = decode(saved(Image.fromarray(deep), kind))
    assert decoded.pixels[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]
    assert decoded.notes == ("16-bit scaled to 8",)


def test_32_bit_beyond_16_bits_is_refused():
    with pytest.raises(UnreadableImage, match="32-bit values from 0 to 70000"):
        decode(saved(Image.fromarray(np.array([[0, 70000]], np.int32)), "TIFF"))
    assert decode(saved(Image.fromarray(np.array([[0, 65535]], np.int32)), "TIFF")).pixels.ravel().tolist() == [0, 255]


@pytest.mark.parametrize(
    ("values", "levels"), [([0, 0.5, 1], [0, 128, 255]), ([0, 99.6, 255], [0, 100, 255])], ids=["unit", "levels"]
)
def test_float_in_a_known_range_is_scaled(values, levels):
    decoded = decode(saved(Image.fromarray(np.array([values], np.float32)), "TIFF"))
    assert decoded.pixels.ravel().tolist() == levels
    assert "float" in decoded.notes[0]


@pytest.mark.parametrize("worst", [-0.1, 255.5, np.nan, np.inf])
def test_float_in_no_known_range_is_refused(worst):
    with pytest.raises(UnreadableImage, match="float values"):
        decode(saved(Image.fromarray(np.array([[0, worst]], np.float32)), "TIFF"))


def test_palette_becomes_colour_and_a_grey_palette_grey():
    palette = colour().convert("P", palette=Image.Palette.ADAPTIVE)
    decoded = decode(saved(palette, "PNG"))
    assert (decoded.pixels == np.asarray(palette.convert("RGB"))).all()
    assert decoded.notes == ()

    shades = grey().convert("P")
    decoded = decode(saved(shades, "PNG"))
    assert decoded.pixels.shape == (12, 9, 1)
    assert (decoded.pixels == np.asarray(shades.convert("RGB"))[..., :1]).all()


def test_transparency_is_flattened_onto_white():
    decoded = decode(saved(Image.fromarray(NOISE), "PNG"))
    weight = ALPHA[..., None] / 255
    assert np.abs(decoded.pixels - (COLOUR * weight + 255 * (1 - weight))).max() <= 1
    assert decoded.notes == ("transparency flattened onto white",)

    two = Image.merge("LA", (grey(), Image.fromarray(ALPHA)))
    decoded = decode(saved(two, "PNG"))
    assert decoded.pixels.shape == (12, 9, 1)
    assert decoded.notes == ("transparency flattened onto white",)


def test_an_opaque_alpha_channel_changes_nothing():
    opaque = NOISE.copy()
    opaque[..., 3] = 255
    decoded = decode(saved(Image.fromarray(opaque), "PNG"))
    assert (decoded.pixels == COLOUR).all()
    assert decoded.notes == ()


@pytest.mark.parametrize(("picture", "key"), [(colour(), (1, 2, 3)), (grey(), 7), (grey().convert("1"), 255)])
def test_a_transparent_colour_is_flattened_too(picture, key):
    decoded = decode(saved(picture, "PNG", transparency=key))
    assert decoded.pixels.shape[2] == (3 if picture.mode == "RGB" else 1)


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF"), ("LAB", "TIFF")])
def test_other_colour_spaces_become_rgb_with_a_note(mode, kind):
    picture = colour().convert(mode) if mode != "LAB" else Image.merge("LAB", colour().split())
    decoded = decode(saved(picture, kind))
    assert decoded.pixels.shape == (12, 9, 3)
    assert decoded.notes == (f"{mode} converted to RGB",)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_of_several_frames_counts(kind):
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    options = {"lossless": True} if kind == "WEBP" else {}
    decoded = decode(saved(red, kind, save_all=True, append_images=[blue, red], **options))
    assert (decoded.pixels == [255, 0, 0]).all()
    assert decoded.notes == ("first frame of several",)
    assert decode(saved(red, kind, **options)).notes == ()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_as_pillow_does(orientation, kind):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(colour(), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(content)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    decoded = decode(content)
    assert (decoded.pixels == expected).all()
    assert decoded.notes == (("turned as its EXIF says",) if orientation > 1 else ())


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_exif_does_not_spoil_a_good_image():
    content = saved(colour(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff junk")
    assert decode(content).pixels.shape == (12, 9, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM"])
def test_a_truncated_file_is_refused(kind):
    big = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8))
    content = saved(big, kind)
    for length in (len(content) // 2, len(content) // 4, 16):
        with pytest.raises(UnreadableImage):
            decode(content[:length])


@pytest.mark.parametrize("content", [b"", b"P", b"not an image at all", b"%!PS-Adobe", b"<svg/>", b"\0" * 1000])
def test_what_is_no_image_is_refused(content):
    with pytest.raises(UnreadableImage, match=r"empty|not a PNG"):
        decode(content)


def declared_png(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [50_000, 10_000, 9_460])
def test_a_bomb_is_refused_before_it_is_decoded(side, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(UnreadableImage, match=f"{side}x{side} pixels"):
        decode(declared_png(side, side))


def test_pillow_s_own_settings_are_left_alone():
    def now():
        return Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES

    before = now()
    with pytest.raises(UnreadableImage):
        decode(declared_png(50_000, 50_000))
    assert now() == before


def test_a_file_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # sparse: takes no room
    with pytest.raises(UnreadableImage, match="more than"):
        read_bytes(str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path):
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    began = time.monotonic()
    with pytest.raises(UnreadableImage, match="not a regular file"):
        read_image(str(path))
    assert time.monotonic() - began < 1


def test_folders_devices_and_sockets_are_refused(tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UnreadableImage):
        read_image(str(tmp_path / "folder.png"))
    if Path("/dev/zero").exists():
        with pytest.raises(UnreadableImage, match="not a regular file"):
            read_image("/dev/zero")
    if hasattr(socket, "AF_UNIX"):
        path = tmp_path / "s.png"
        with socket.socket(socket.AF_UNIX) as server:
            try:
                server.bind(str(path))
            except OSError:
                pytest.skip("the folder's path is too long for a socket")
            with pytest.raises(UnreadableImage):
                read_image(str(path))


@pytest.mark.parametrize("path", ["missing.png", "nul\0.png", ""])
def test_a_missing_file_is_an_unreadable_image(path):
    with pytest.raises(UnreadableImage, match="cannot be opened"):
        read_image(path)


def test_threads_decode_alike(tmp_path):
    (tmp_path / "a.png").write_bytes(saved(colour(), "PNG"))
    source = open_images([tmp_path / "a.png"] * 50)
    wrong = []

    def read():
        wrong.extend(index for index in range(50) if (source.read(index).pixels != COLOUR).any())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
