"""Pixels from bytes that nobody vouches for.

Whatever the bytes are, the answer is a `Decoded` or an `UnreadableImage`, in bounded memory. Pillow's process-wide
settings are neither changed nor relied on.
"""

import contextlib
import io
import os
import stat
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from askew.errors import UnreadableImage
from askew.images.names import printable

MAX_BYTES = 256 * 2**20
# As RGB these fill the same 256 MiB. It is also where Pillow begins to warn of bombs, which what passes never causes.
MAX_PIXELS = MAX_BYTES // 3

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm", ".pnm", ".pbm")

# Chosen by their first bytes and opened by class: no other parser of Pillow's ever sees the file, and a size is checked
# against our bound before Pillow checks it against its own.
_FORMATS: tuple[tuple[tuple[bytes, ...], str, type[ImageFile.ImageFile]], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), "PNG", PngImagePlugin.PngImageFile),
    ((b"\xff\xd8\xff",), "JPEG", JpegImagePlugin.JpegImageFile),
    ((b"GIF87a", b"GIF89a"), "GIF", GifImagePlugin.GifImageFile),
    ((b"BM",), "BMP", BmpImagePlugin.BmpImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "TIFF", TiffImagePlugin.TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), "PNM", PpmImagePlugin.PpmImageFile),
)
FORMAT_NAMES = "PNG, JPEG, BMP, TIFF, WebP, GIF, PGM or PPM"

_ORIENTATION = 0x0112
_TURNED = range(2, 9)  # the orientations that are not upright


@dataclass(frozen=True, slots=True)
class Decoded:
    """One image: uint8 [height, width, 1 or 3], and what had to be done to get it."""

    pixels: NDArray[np.uint8]
    notes: tuple[str, ...] = ()


def read_image(path: str) -> Decoded:
    """The decoded image at `path`."""
    return decode(read_bytes(path))


def read_bytes(path: str) -> bytes:
    """The content of a regular file of at most 256 MiB; pipes, devices and folders are refused without waiting."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):  # each platform has some of these
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        raise UnreadableImage(f"the file cannot be opened: {_reason(problem)}") from problem
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImage("not a regular file")
        if status.st_size > MAX_BYTES:
            raise UnreadableImage(f"the file has {status.st_size:,} bytes, more than the {MAX_BYTES:,} allowed")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)  # no further: it may have grown since
    except OSError as problem:
        raise UnreadableImage(f"the file cannot be read: {_reason(problem)}") from problem
    finally:
        os.close(descriptor)


def decode(content: bytes) -> Decoded:
    """The image encoded in `content`, upright, grey as one channel and everything else as three."""
    if not content:
        raise UnreadableImage("the file is empty")
    name, opener = _format(content)
    try:
        with opener(io.BytesIO(content)) as picture:
            _check_size(picture)
            turned_in_loading = _turned_by_pillow(picture)
            picture.load()
            _check_size(picture)  # some formats learn their true size while loading
            pixels, notes = _eight_bit(picture)
            pixels, turned = _upright(pixels, picture)
            if turned or turned_in_loading:
                notes = (*notes, "turned as its EXIF says")
            return Decoded(pixels, (*notes, *_first_of_several(picture)))
    except UnreadableImage:
        raise
    # Pillow's parsers raise nearly every built-in exception on hostile bytes; all of them mean the same here.
    except Exception as problem:
        raise UnreadableImage(f"damaged {name}: {_reason(problem)}") from problem


def flatten(picture: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """An LA or RGBA picture composited on white as L or RGB, and a note if anything shone through."""
    mode = picture.mode.removesuffix("A")
    alpha = picture.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return picture.convert(mode), ()
    page = Image.new(mode, picture.size, "white")
    page.paste(picture.convert(mode), mask=alpha)
    return page, ("transparency flattened onto white",)


def _format(content: bytes) -> tuple[str, type[ImageFile.ImageFile]]:
    for prefixes, name, opener in _FORMATS:
        if content.startswith(prefixes):
            return name, opener
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WebP", WebPImagePlugin.WebPImageFile
    raise UnreadableImage(f"not a {FORMAT_NAMES} file")


def _check_size(picture: Image.Image) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise UnreadableImage(f"{width}x{height} pixels are more than the {MAX_PIXELS:,} allowed")
    if width < 1 or height < 1:
        raise UnreadableImage(f"{width}x{height} pixels are no image")


def _eight_bit(picture: Image.Image) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """The pixels as uint8 [height, width, 1 or 3], in the file's own orientation."""
    if picture.mode.startswith("I;16"):
        return _from_16_bit(np.asarray(picture)), ("16-bit scaled to 8",)
    if picture.mode == "I":
        return _from_32_bit(np.asarray(picture)), ("16-bit scaled to 8",)
    if picture.mode == "F":
        return _from_float(np.asarray(picture))

    has_palette = picture.mode in ("P", "PA")
    notes: tuple[str, ...] = ()
    if picture.has_transparency_data:
        picture, notes = flatten(picture.convert("LA" if picture.mode in ("1", "L", "LA", "La") else "RGBA"))
    elif picture.mode == "1":
        picture = picture.convert("L")
    elif picture.mode not in ("L", "RGB"):
        notes = () if has_palette else (f"{picture.mode} converted to RGB",)
        picture = picture.convert("RGB")

    pixels = np.asarray(picture)
    if pixels.ndim == 2:
        return pixels[:, :, None], notes
    return (pixels[:, :, :1].copy() if has_palette and is_grey(pixels) else pixels), notes


def is_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether all channels of [..., channels] are equal."""
    return bool((pixels[..., 1:] == pixels[..., :1]).all())


def _from_16_bit(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    # 65535 = 255 * 257, and adding half of 257 rounds to the nearest level.
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)[:, :, None]


def _from_32_bit(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    # Pillow opens some 16-bit files as 32-bit ones; real 32-bit data has no agreed white.
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise UnreadableImage(f"32-bit values from {low} to {high}; save the image with 8 or 16 bits")
    return _from_16_bit(values)


def _from_float(values: NDArray[np.generic]) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 255):  # written so that NaN is refused too
        raise UnreadableImage(
            f"float values from {low:g} to {high:g}; save the image with values in [0, 1] or [0, 255]"
        )
    scale, note = (255, "float in [0, 1] scaled to 8 bits") if high <= 1 else (1, "float in [0, 255] rounded to 8 bits")
    return np.rint(values.astype(np.float32) * scale).astype(np.uint8)[:, :, None], (note,)


def _upright(pixels: NDArray[np.uint8], picture: Image.Image) -> tuple[NDArray[np.uint8], bool]:
    """The pixels upright, and whether that took a turn."""
    orientation = 1
    # A healthy picture often carries damaged EXIF; viewers show it unturned, and so do we.
    with contextlib.suppress(Exception):
        orientation = int(picture.getexif().get(_ORIENTATION, 1))
    if orientation not in _TURNED:
        return pixels, False
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels), True


def _turned_by_pillow(picture: ImageFile.ImageFile) -> bool:
    """Whether loading will turn the picture, as it does with a TIFF, and leave no trace of it."""
    return isinstance(picture, TiffImagePlugin.TiffImageFile) and picture.tag_v2.get(_ORIENTATION) in _TURNED


def _first_of_several(picture: ImageFile.ImageFile) -> tuple[str, ...]:
    # Asking for the second frame, not for the count: counting reads the whole file, and a hostile one has millions.
    try:
        picture.seek(1)
    except Exception:  # noqa: BLE001  (whatever is wrong with a second frame, the first is here)
        return ()
    return ("first frame of several",)


def _reason(problem: Exception) -> str:
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return printable(text)[:120] or type(problem).__name__
