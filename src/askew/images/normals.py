"""The images to fit on, all in memory, and what was found among them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from askew.errors import InvalidInput, NoImages
from askew.images.decoding import Decoded, is_grey
from askew.images.names import printable
from askew.images.scan import Scan
from askew.images.sizing import Fit, SizePolicy, fitted, is_enlarged, with_channels
from askew.images.sources import ImageSource
from askew.images.streaming import Unread, read_ahead

_BLANK_SPREAD = 2.0  # levels: below it an image shows noise at most
_REASONS_KEPT = 5


@dataclass(frozen=True, slots=True)
class Normals:
    """Images prepared for fitting: uint8 [n, side, side, channels], in the source's order without the unreadable ones.

    Row r is image `indexes[r]` of the source. `fingerprints` are equal exactly where prepared images are.
    """

    images: NDArray[np.uint8]
    policy: SizePolicy
    indexes: list[int]
    groups: list[str] | None
    fingerprints: NDArray[np.uint64]
    scan: Scan

    def groups_for(self, given: Sequence[Any] | None) -> list[Any] | None:
        """The group of each row: as given, one for every image that was found, or else as the source knows it."""
        if given is None:
            return self.groups
        groups = list(given)
        if len(groups) != self.scan.found:
            raise InvalidInput(f"groups must name one group per image, got {len(groups):,} for {self.scan.found:,}")
        return [groups[index] for index in self.indexes]


@dataclass(frozen=True, slots=True)
class _Look:
    """One prepared image, grey where it can be, and what the scan counts."""

    pixels: NDArray[np.uint8]
    width: int
    height: int
    colour: bool
    blank: bool
    enlarged: bool
    notes: tuple[str, ...]


def load_normals(
    source: ImageSource,
    *,
    side: int,
    fit: Fit,
    channels: Literal[1, 3] | None = None,
    workers: int = 2,
    watch: Callable[[int, int], None] | None = None,
) -> Normals:
    """The prepared images, their policy and a scan, each image decoded once.

    `channels=None` means one if every image is grey and three otherwise. `watch(done, total)` is told of each image.
    """
    try:
        policy = SizePolicy(side=side, fit=fit, channels=channels or 1)
    except ValidationError as problem:
        wrong = problem.errors()[0]
        raise InvalidInput(f"{wrong['loc'][0]} {wrong['input']!r} cannot be used: {wrong['msg']}") from problem
    if workers < 0:
        raise InvalidInput(f"workers must be 0 or more, got {workers}")

    def look(decoded: Decoded) -> _Look:
        return _look(decoded, side, fit, channels)

    gathered = _Gathered(len(source), side, policy.channels)
    with closing(read_ahead(source, look, workers=workers, image_bytes=3 * side * side)) as outcomes:
        for done, (index, outcome) in enumerate(outcomes, 1):
            gathered.add(index, source.names[index], outcome)
            if watch is not None:
                watch(done, len(source))

    marks = fingerprints(gathered.images)
    scan = gathered.scan(source.notes, marks)
    if scan.readable == 0:
        first = f"{scan.reasons[0][0]}: {scan.reasons[0][1]}" if scan.reasons else "the source is empty"
        raise NoImages(f"none of the {scan.found:,} images can be read; {first}")
    return Normals(
        images=gathered.images,
        policy=SizePolicy(side=side, fit=fit, channels=3 if gathered.images.shape[3] == 3 else 1),
        indexes=gathered.indexes,
        groups=None if source.groups is None else [source.groups[index] for index in gathered.indexes],
        fingerprints=marks,
        scan=scan,
    )


def fingerprints(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """One number per prepared image [n, side, side, channels], equal where shape and pixels are."""
    return np.array([_fingerprint(image) for image in images], np.uint64)


def _fingerprint(image: NDArray[np.uint8]) -> int:
    digest = hashlib.blake2b(repr(image.shape).encode())
    digest.update(np.ascontiguousarray(image).data)
    return int.from_bytes(digest.digest()[:8], "little")


class _Gathered:
    """The images of one pass, kept grey until the first in colour."""

    def __init__(self, found: int, side: int, channels: Literal[1, 3]) -> None:
        self.found = found
        self.indexes: list[int] = []
        self._room = _room(found, side, channels)
        self._unread = 0
        self._reasons: list[tuple[str, str]] = []
        self._sizes: Counter[tuple[int, int]] = Counter()
        self._notes: Counter[str] = Counter()
        self._colour = self._blank = self._enlarged = 0

    @property
    def images(self) -> NDArray[np.uint8]:
        """The prepared images so far."""
        return self._room[: len(self.indexes)]

    def add(self, index: int, name: str, outcome: _Look | Unread) -> None:
        """Keep one image, or the reason why not."""
        if isinstance(outcome, Unread):
            self._unread += 1
            if len(self._reasons) < _REASONS_KEPT:
                self._reasons.append((printable(name), outcome.reason))
            return
        if outcome.pixels.shape[2] > self._room.shape[3]:
            grey = self.images
            self._room = _room(self.found, grey.shape[1], 3)
            self._room[: len(grey)] = grey
        self._room[len(self.indexes)] = outcome.pixels  # a grey image is repeated into three channels
        self.indexes.append(index)
        self._sizes[outcome.width, outcome.height] += 1
        self._notes.update(outcome.notes)
        self._colour += outcome.colour
        self._blank += outcome.blank
        self._enlarged += outcome.enlarged

    def scan(self, remarks: tuple[str, ...], marks: NDArray[np.uint64]) -> Scan:
        """What was found; `marks` are the fingerprints of the images kept."""
        return Scan(
            found=self.found,
            readable=len(self.indexes),
            unreadable=self._unread,
            reasons=tuple(self._reasons),
            sizes=dict(self._sizes),
            grey=len(self.indexes) - self._colour,
            colour=self._colour,
            notes=dict(self._notes),
            duplicates=len(marks) - len(np.unique(marks)),
            blank=self._blank,
            enlarged=self._enlarged,
            remarks=remarks,
        )


def _room(count: int, side: int, channels: int) -> NDArray[np.uint8]:
    # Untouched pages cost nothing, so room for images that turn out unreadable is free.
    try:
        return np.empty((count, side, side, channels), np.uint8)
    except (MemoryError, ValueError) as problem:
        size = count * side * side * channels / 2**30
        raise InvalidInput(
            f"{count:,} images at {side}x{side} take {size:,.1f} GiB, more than there is; pass a smaller side"
        ) from problem


def _look(decoded: Decoded, side: int, fit: Fit, channels: Literal[1, 3] | None) -> _Look:
    pixels = fitted(decoded.pixels, side, fit)
    # Many grey images are stored with three equal channels.
    colour = pixels.shape[2] == 3 and not is_grey(pixels)
    height, width = decoded.pixels.shape[:2]
    down, across = max(1, height // 128), max(1, width // 128)
    return _Look(
        pixels=with_channels(pixels, channels or (3 if colour else 1)),
        width=width,
        height=height,
        colour=colour,
        # Of the image itself, thinned out: a white one padded with black is blank too.
        blank=bool(decoded.pixels[::down, ::across].std(axis=(0, 1)).max() < _BLANK_SPREAD),
        enlarged=is_enlarged(height, width, side, fit),
        notes=decoded.notes,
    )
