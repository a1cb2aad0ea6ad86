"""Images that are arrays already, in memory or in NumPy's files."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from askew.errors import InvalidInput, NoImages
from askew.images.decoding import MAX_PIXELS, Decoded, flatten
from askew.images.names import printable
from askew.images.sources import ImageSource, Names, each_its_own

MAX_ARRAY_BYTES = 8 * 2**30
MAX_IMAGES = 10_000_000  # in a file, which may be sparse: each costs a little memory, however small it is
_IMAGE_KEYS = ("images", "x_train", "x")
_ROWS_AT_ONCE = 1024


def source_of_array(
    images: Any,
    *,
    image_shape: tuple[int, ...] | None = None,
    file: str | None = None,
    labels: list[str] | None = None,
    groups: list[str] | None = None,
) -> ImageSource:
    """The source of an array [n, height, width] or [n, height, width, 1, 3 or 4].

    uint8 is taken as it is, bool as black and white, uint16 and floats in [0, 1] are scaled to 0..255 as they are read.
    An image is called `file[17]`, or `image 17` where there is no file.
    """
    array = _laid_out(_as_array(images), image_shape)
    _check_values(array)

    def read_at(index: int) -> Decoded:
        return _decoded(array[index])

    names = Names(len(array), lambda index: f"image {index}" if file is None else f"{file}[{index}]")
    return ImageSource(names=names, read_at=read_at, labels=labels, groups=each_its_own(groups, names), in_memory=True)


def source_of_npy(path: str, *, image_shape: tuple[int, ...] | None = None) -> ImageSource:
    """The source of a .npy file, mapped and not loaded."""
    name = printable(path)
    try:
        with Path(path).open("rb") as file:
            _check_header(file, name)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except InvalidInput:
        raise
    # A hostile header makes NumPy's parser raise nearly anything.
    except Exception as problem:
        raise InvalidInput(f"{name} is not a readable .npy file: {_reason(problem)}") from problem
    return source_of_array(array, image_shape=image_shape, file=path)


def source_of_npz(path: str, *, image_shape: tuple[int, ...] | None = None) -> ImageSource:
    """The source of a .npz file: its array `images`, `x_train`, `x` or the only one, with `labels` and `groups`."""
    name = printable(path)
    try:
        with zipfile.ZipFile(path) as archive:
            keys = {entry.removesuffix(".npy"): entry for entry in archive.namelist()}
            others = [key for key in keys if key not in ("labels", "groups")]
            key = next((key for key in _IMAGE_KEYS if key in keys), others[0] if len(others) == 1 else None)
            if key is None:
                raise InvalidInput(
                    f"{name} must hold one array named images; it holds {printable(', '.join(keys))[:120]}"
                )
            images = _entry(archive, keys[key], name)
            columns = {
                column: _column(_entry(archive, keys[column], name), len(images) if images.ndim else 0, column, name)
                for column in ("labels", "groups")
                if column in keys
            }
    except InvalidInput:
        raise
    except Exception as problem:
        raise InvalidInput(f"{name} is not a readable .npz file: {_reason(problem)}") from problem
    return source_of_array(images, image_shape=image_shape, file=path, **columns)


def _as_array(images: Any) -> NDArray[Any]:
    try:
        return np.asarray(images)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InvalidInput(
            f"images must be one array, got {type(images).__name__} ({_reason(problem)}); "
            "bring tensors to the CPU, and images of different sizes into a folder"
        ) from problem


def _laid_out(array: NDArray[Any], image_shape: tuple[int, ...] | None) -> NDArray[Any]:
    """The array as [n, height, width, channels]."""
    shape = "x".join(map(str, array.shape)) or "a single value"
    if image_shape is not None and array.ndim == 2:
        if len(image_shape) not in (2, 3) or math.prod(image_shape) != array.shape[1]:
            raise InvalidInput(f"image_shape {image_shape} does not hold the {array.shape[1]} values of a row")
        array = array.reshape(len(array), *image_shape)
    if array.ndim == 2:
        raise InvalidInput(
            f"images must be [n, height, width] or [n, height, width, channels], got {shape}; "
            "pass image_shape=(height, width) for flattened images, or X[None] for a single one"
        )
    if array.ndim == 3 and array.shape[2] in (3, 4) and array.shape[1] > 4:
        raise InvalidInput(f"{shape} looks like one image in colour; pass X[None]")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[3] not in (1, 3, 4) and array.shape[1] in (1, 3, 4):
        raise InvalidInput(f"channels must come last, got {shape}; pass X.transpose(0, 2, 3, 1)")
    if array.ndim != 4 or array.shape[3] not in (1, 3, 4):
        raise InvalidInput(f"images must be [n, height, width] or [n, height, width, 1, 3 or 4], got {shape}")
    if len(array) == 0:
        raise NoImages(f"the array holds no images, its shape is {shape}")
    if 0 in array.shape:
        raise InvalidInput(f"the images have no pixels, the array's shape is {shape}")
    if array.shape[1] * array.shape[2] > MAX_PIXELS:
        raise InvalidInput(f"images may have {MAX_PIXELS:,} pixels, the array's shape is {shape}")
    return array


def _check_values(array: NDArray[Any]) -> None:
    if array.dtype in (np.uint8, np.uint16, np.bool_):
        return
    if array.dtype.kind != "f":
        raise InvalidInput(
            f"images must be uint8, bool, uint16 or float, got {array.dtype}; "
            "convert levels from 0 to 255 with X.astype(np.uint8)"
        )
    for start in range(0, len(array), _ROWS_AT_ONCE):
        rows = array[start : start + _ROWS_AT_ONCE]
        # A NaN fails both comparisons.
        good = ((rows >= 0) & (rows <= 1)).all(axis=(1, 2, 3))
        if not good.all():
            worst = int(good.argmin())
            low, high = float(rows[worst].min()), float(rows[worst].max())
            raise InvalidInput(
                f"float images must lie in [0, 1], image {start + worst} goes from {low:g} to {high:g}; "
                "scale them, or pass uint8 for levels from 0 to 255"
            )


def _decoded(image: NDArray[Any]) -> Decoded:
    notes: tuple[str, ...] = ()
    if image.dtype == np.uint8:
        pixels = np.array(image)
    elif image.dtype == np.uint16:
        pixels = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)
        notes = ("16-bit scaled to 8",)
    else:
        pixels = np.rint(image.astype(np.float64) * 255).astype(np.uint8)
    if pixels.shape[2] == 4:
        page, shone = flatten(Image.fromarray(pixels))
        return Decoded(np.array(page), notes + shone)
    return Decoded(pixels, notes)


def _entry(archive: zipfile.ZipFile, entry: str, name: str) -> NDArray[Any]:
    # The zip's directory and the array's header must agree before a byte is set aside for the pixels.
    declared = archive.getinfo(entry).file_size
    if declared > MAX_ARRAY_BYTES + 2**16:
        raise InvalidInput(
            f"{name} declares {declared:,} bytes for {printable(entry)}, {MAX_ARRAY_BYTES:,} are allowed"
        )
    with archive.open(entry) as file:
        wanted = _check_header(file, f"{name}[{printable(entry)}]")
    if wanted > declared:
        raise InvalidInput(f"{name} is damaged: {printable(entry)} is cut short")
    with archive.open(entry) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def _check_header(file: IO[bytes], name: str) -> int:
    """The bytes of the array whose header begins here; refuses objects, which only pickle can read, and giants."""
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise InvalidInput(f"{name} holds Python objects, which are never loaded; save the images as uint8")
    size = math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape) or size > MAX_ARRAY_BYTES:
        raise InvalidInput(
            f"{name} declares {size:,} bytes of shape {shape}, more than the {MAX_ARRAY_BYTES:,} allowed"
        )
    if shape and shape[0] > MAX_IMAGES:
        raise InvalidInput(f"{name} declares {shape[0]:,} images, more than the {MAX_IMAGES:,} allowed")
    return size


def _column(values: NDArray[Any], rows: int, column: str, name: str) -> list[str]:
    if values.shape != (rows,):
        raise InvalidInput(f"{column} in {name} must be one per image, [{rows}], got {list(values.shape)}")
    texts: Sequence[Any] = values.tolist()
    return [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in texts]


def _reason(problem: Exception) -> str:
    return printable(str(problem))[:120] or type(problem).__name__
