"""Mutates valid files for as long as it is told to: `python tests/images/fuzz_images.py SECONDS [SEED]`.

Exits with 1 at the first answer that is neither a valid image nor a documented error, and writes the input that did it.
"""

import io
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from askew.errors import AskewError, UnreadableImage
from askew.images import decode, open_images
from askew.images.decoding import MAX_PIXELS

_EXTREMES = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\1",
    b"\1\0\0\0",
    b"\x80",
)


def image_seeds() -> dict[str, bytes]:
    """Small valid files, by format and mode."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 9, 4), np.uint8)
    colour, grey = Image.fromarray(noise[..., :3]), Image.fromarray(noise[..., 0])
    deep = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    pages = {"save_all": True, "append_images": [colour.rotate(180)]}
    return {
        "colour.png": _saved(colour, "PNG"),
        "alpha.png": _saved(Image.fromarray(noise), "PNG"),
        "deep.png": _saved(deep, "PNG"),
        "palette.png": _saved(colour.convert("P"), "PNG", transparency=3),
        "animated.png": _saved(colour, "PNG", **pages),
        "turned.jpg": _saved(colour, "JPEG", exif=exif),
        "progressive.jpg": _saved(grey, "JPEG", progressive=True),
        "cmyk.jpg": _saved(colour.convert("CMYK"), "JPEG"),
        "animated.gif": _saved(colour, "GIF", **pages),
        "plain.tif": _saved(colour, "TIFF"),
        "deflate.tif": _saved(colour, "TIFF", compression="tiff_adobe_deflate"),
        "lzw.tif": _saved(grey, "TIFF", compression="tiff_lzw"),
        "jpeg.tif": _saved(colour, "TIFF", compression="jpeg"),
        "group4.tif": _saved(grey.convert("1"), "TIFF", compression="group4"),
        "float.tif": _saved(grey.convert("F"), "TIFF"),
        "pages.tif": _saved(colour, "TIFF", **pages),
        "plain.bmp": _saved(colour, "BMP"),
        "palette.bmp": _saved(colour.convert("P"), "BMP"),
        "lossy.webp": _saved(colour, "WEBP"),
        "animated.webp": _saved(Image.fromarray(noise), "WEBP", lossless=True, **pages),
        "plain.ppm": _saved(colour, "PPM"),
        "plain.pgm": _saved(grey, "PPM"),
        "deep.pgm": _saved(deep, "PPM"),
        "text.ppm": b"P3 2 2 255 1 2 3 4 5 6 7 8 9 10 11 12",
    }


def table_seeds() -> dict[str, bytes]:
    """Small valid arrays and a manifest."""
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
    seeds = {"manifest.csv": b'path,label,split\na.png,good,train\n"b, c.png",bad,test\n'}
    for name, save, arguments in (
        ("array.npy", np.save, {}),
        ("array.npz", np.savez, {"labels": ["a", "b", "c"]}),
        ("packed.npz", np.savez_compressed, {"labels": [0, 1, 0]}),
    ):
        file = io.BytesIO()
        save(file, images, **arguments) if name.endswith("npy") else save(file, images=images, **arguments)
        seeds[name] = file.getvalue()
    file = io.BytesIO()
    np.save(file, images / 255)
    return {**seeds, "float.npy": file.getvalue()}


def mutated(content: bytes, chance: random.Random) -> bytes:
    """`content` with one to six small injuries."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1) if chance.random() < 0.5 else chance.randrange(min(len(data), 64) + 1)
        span = chance.randint(1, 8)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                extreme = chance.choice(_EXTREMES)
                data[at : at + len(extreme)] = extreme
            case 2:
                del data[at : at + span]
            case 3:
                data[at:at] = chance.randbytes(span)
            case 4:
                other = chance.randrange(len(data) + 1)
                data[at : at + span] = data[other : other + span]
            case 5:
                del data[max(at, 1) :]
        if not data:
            break
    return bytes(data)


def check_image(content: bytes) -> str:
    """What came of it: `image` or `refused`; raises on anything else."""
    try:
        decoded = decode(content)
    except UnreadableImage as problem:
        check_line(problem)
        return "refused"
    pixels = decoded.pixels
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] in (1, 3)
    assert 0 < pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS
    assert all(isinstance(note, str) for note in decoded.notes)
    return "image"


def check_table(path: Path) -> str:
    """What came of opening the file and reading its first image; raises on anything but a documented error."""
    try:
        source = open_images(path, role="normal")
        source.read(0)
    except AskewError as problem:
        check_line(problem)
        return "refused"
    return "image"


def check_line(problem: AskewError) -> None:
    """Raise unless the message is one short printable line."""
    message = str(problem)
    assert message, "an error says nothing"
    assert message.isprintable(), message
    assert len(message) < 500, message


def main(seconds: float, seed: int) -> int:
    """The exit code after fuzzing for so long."""
    chance = random.Random(seed)
    images, tables = image_seeds(), table_seeds()
    counts: Counter[str] = Counter()
    slowest = (0.0, "")
    warnings.simplefilter("ignore")  # of Pillow's about metadata; its bomb warning must never come
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff reports on every damaged file there
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - began < seconds:
            is_table = chance.random() < 0.2
            name = chance.choice(list(tables if is_table else images))
            content = mutated((tables if is_table else images)[name], chance)
            start = time.monotonic()
            try:
                if is_table:
                    path = Path(folder, name)
                    path.write_bytes(content)
                    answer = check_table(path)
                else:
                    answer = check_image(content)
            except Exception as problem:  # noqa: BLE001  (finding these is what it is for)
                kept = Path(tempfile.gettempdir(), f"fuzz-{name}")
                kept.write_bytes(content)
                print(f"{name}: {type(problem).__name__}: {problem}; the input is {kept}, the seed {seed}")
                return 1
            slowest = max(slowest, (time.monotonic() - start, name))
            counts[answer] += 1
    total = counts.total()
    print(
        f"{total:,} inputs in {seconds:g} s, {total / seconds:,.0f}/s; {counts['image']:,} decoded, "
        f"{counts['refused']:,} refused, no undocumented error; slowest {slowest[0]:.2f} s ({slowest[1]}); seed {seed}"
    )
    return 0


def _saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
