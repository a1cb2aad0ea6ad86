"""The cache of prepared sets: what took a while to read the first time is memory-mapped from then on.

One folder for each set holds three files: the images, the labels, and `about.json`, which says of which state of the
source files they are. Nothing in it is trusted: headers, sizes and the fingerprint over all of the content are checked
each time, and whatever does not fit is made anew. Deleting the cache is always safe.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from askew import __version__
from askew.datasets.dataset import DataSet, Split
from askew.errors import BadFile
from askew.storage import atomic_file, atomic_write

_IMAGES, _LABELS, _ABOUT = "images.npy", "labels.npy", "about.json"
_LARGEST_ABOUT = 16 * 2**20


class _About(BaseModel):
    """What `about.json` says; `state` stands for the source files as they were, and for who prepared them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    state: str
    title: str
    class_names: list[str]
    train: Annotated[int, Field(ge=0)]
    test: Annotated[int, Field(ge=0)]
    side: Annotated[int, Field(ge=1, le=4096)]
    channels: Literal[1, 3]
    fingerprint: str


def cached(name: str, home: Path, build: Callable[[], DataSet], *, sources: Sequence[Path]) -> DataSet:
    """The set that `build` makes out of the source files, from the cache where it has it.

    `home` is the folder the sources are in. A changed size or time of any of them, or another version of askew, and it
    is built again. Where no cache can be written, the set stays in memory.
    """
    folder = _folder(name, home)
    state = _state(home, sources)
    if folder is not None and (found := _opened(name, folder, state)) is not None:
        return found
    made = build()
    if folder is not None:
        # A full disk, or a home that may not be written: what was built serves all the same.
        with suppress(OSError, BadFile):
            _store(folder, state, made)
            return _opened(name, folder, state) or made
    return made


def cache_folder() -> Path | None:
    """$ASKEW_CACHE, or `askew` in the user's cache folder; None where there is no home."""
    if place := os.environ.get("ASKEW_CACHE"):
        return Path(place)
    if place := os.environ.get("XDG_CACHE_HOME"):
        return Path(place, "askew")
    try:
        return Path.home() / ".cache" / "askew"
    except RuntimeError:
        return None


def _folder(name: str, home: Path) -> Path | None:
    """Where the set is cached: one place for each folder of sources, so that a changed set replaces what it was."""
    cache = cache_folder()
    if cache is None:
        return None
    place = hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:16]
    return cache / "datasets" / f"{name.partition(':')[0]}-{place}"


def _state(home: Path, sources: Sequence[Path]) -> str:
    digest = hashlib.sha256(json.dumps([__version__, len(sources)]).encode())
    for path in sources:
        try:
            status = path.stat()
            size, time = status.st_size, status.st_mtime_ns
        except OSError:
            size = time = -1  # a link that leads nowhere: reading it will tell
        digest.update(json.dumps([os.path.relpath(path, home), size, time]).encode())
    return digest.hexdigest()


def _opened(name: str, folder: Path, state: str) -> DataSet | None:
    """The set as it is cached, or None if it is not, is of another state, or is damaged in any way."""
    try:
        if (folder / _ABOUT).stat().st_size > _LARGEST_ABOUT:
            return None
        about = _About.model_validate_json((folder / _ABOUT).read_bytes())
        if about.state != state:
            return None
        count = about.train + about.test
        images = _mapped(folder / _IMAGES, (count, about.side, about.side, about.channels), np.dtype(np.uint8))
        labels = np.array(_mapped(folder / _LABELS, (count,), np.dtype("<i8")), np.int64)
    except (OSError, ValueError, ValidationError):
        return None
    train, test = (Split(images[part], labels[part]) for part in (slice(about.train), slice(about.train, None)))
    found = DataSet.of(name, about.title, about.class_names, train, test)
    return found if found.fingerprint == about.fingerprint else None


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array of a .npy file, mapped, when the file is exactly one that `_write` makes of this shape and dtype."""
    header = _header(shape, dtype)
    with path.open("rb") as stream:
        # Compared and not parsed: numpy's parser raises nearly anything on a damaged header.
        if stream.read(len(header)) != header:
            raise ValueError("another array than expected")
        if os.fstat(stream.fileno()).st_size != len(header) + math.prod(shape) * dtype.itemsize:
            raise ValueError("another size than expected")
        return np.asarray(np.memmap(stream, dtype, "r", len(header), shape))


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What stands before the array in its .npy file."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _store(folder: Path, state: str, made: DataSet) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    splits = (made.train, made.test)
    _write(folder / _IMAGES, [split.images for split in splits], np.dtype(np.uint8))
    _write(folder / _LABELS, [split.labels for split in splits], np.dtype("<i8"))
    about = _About(
        state=state,
        title=made.title,
        class_names=list(made.class_names),
        train=len(made.train.labels),
        test=len(made.test.labels),
        side=made.train.images.shape[1],
        channels=made.train.images.shape[3],
        fingerprint=made.fingerprint,
    )
    # Last: until it is there the arrays are of no state.
    atomic_write(folder / _ABOUT, about.model_dump_json())


def _write(path: Path, parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
    """Put the parts, one after the other, into one .npy file."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    with atomic_file(path) as stream:
        stream.write(_header(shape, dtype))
        for part in parts:
            stream.write(np.ascontiguousarray(part, dtype).data)
