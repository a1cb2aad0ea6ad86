"""Cats vs Dogs: photographs from animal shelters, brought to 64x64. Elson, Douceur, Howell and Saul (Asirra), 2007.

Paper: 10,000 images of each class to learn from and 2,500 to be judged, drawn at random and never published. Here the
draw is fixed by `split`: a permutation from numpy's RandomState(0), which numpy promises never to change. It is of all
the names there are, so that an image is learned from or judged whichever of the others can be read.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from askew.datasets.dataset import DataSet, Split, absence
from askew.datasets.prepared import cached
from askew.errors import NoImages
from askew.images import Decoded, printable, source_of_files
from askew.images.folders import is_image
from askew.images.sizing import with_channels
from askew.images.streaming import Unread, read_ahead

TITLE: Final = "CatsVsDogs"  # as the paper writes it
CLASS_NAMES: Final = ("cat", "dog")
SIDE: Final = 64
_FOLDERS = ("Cat", "Dog")
_MOST_TRAIN, _MOST_TEST = 10_000, 2_500
_FEWEST = 5  # of fewer, four fifths rounded up are all


def read_cats_vs_dogs(root: Path | None) -> DataSet:
    """10,000 and 2,500 photographs of each class, or four fifths and one of what there is, as [n, 64, 64, 3].

    With other counts than those the title says which part of the set it is.
    """
    folder = _folder(root)
    files = {name: _files(folder / name) for name in _FOLDERS}
    sources = [path for name in _FOLDERS for path in files[name]]
    return cached("cats-vs-dogs", folder, lambda: _read(files), sources=sources)


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names to learn from and those to be judged, of all of one class's files in the order of their bytes.

    The first four fifths of the permutation, rounded up, and at most 10,000; then up to 2,500 of the rest.
    """
    shuffled = [names[index] for index in np.random.RandomState(0).permutation(len(names))]
    count = min(_MOST_TRAIN, -(-4 * len(names) // 5))
    return shuffled[:count], shuffled[count : count + _MOST_TEST]


def shrunk(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The image [height, width, channels] with its shorter side brought to `side`, and of that the middle square.

    Every pixel is the mean of the area it covers, in which pixels at the edge count by the part that is covered.
    Pillow's box filter is not that: between whole factors it counts each pixel fully or not at all.
    """
    height, width = image.shape[:2]
    scaled_height, scaled_width = (max(side, round(side * length / min(height, width))) for length in (height, width))
    # Measured in units in which a pixel of the image and one of the result are both whole, so that sums of floats are
    # exact and the result is the same on every machine.
    down, across = _coverage(height, scaled_height, side), _coverage(width, scaled_width, side)
    left, right = across[0][0], across[-1][0] + len(across[-1][1])
    middle = image[:, left:right]
    rows = np.stack([np.tensordot(part, middle[top : top + len(part)].astype(np.float64), 1) for top, part in down])
    sums = [np.tensordot(rows[:, at - left : at - left + len(part)], part, ((1,), (0,))) for at, part in across]
    means = np.rint(np.stack(sums, 1) / (height * width))
    return np.asarray(means, np.uint8)


def _coverage(length: int, scaled: int, side: int) -> list[tuple[int, NDArray[np.float64]]]:
    """For each of the middle `side` of `scaled` pixels: the first of the `length` it covers, and how much of each."""
    start = (scaled - side) // 2
    covered = []
    for pixel in range(start, start + side):
        first, last = pixel * length // scaled, -(-(pixel + 1) * length // scaled)
        edges = np.arange(first, last + 1) * scaled
        edges[0], edges[-1] = pixel * length, (pixel + 1) * length
        covered.append((first, np.diff(edges).astype(np.float64)))
    return covered


def _folder(root: Path | None) -> Path:
    candidates = [] if root is None else [root / "PetImages", *sorted(root.glob("cats-vs-dogs*/PetImages")), root]
    for folder in candidates:
        if all((folder / name).is_dir() for name in _FOLDERS):
            return folder
    raise absence("PetImages/ with the folders Cat and Dog", root, name="cats-vs-dogs", title=TITLE)


def _files(folder: Path) -> list[Path]:
    # Whatever bears such a name: it counts in the permutation even if it cannot be read.
    files = [path for path in folder.iterdir() if is_image(path.name) and not path.name.startswith(".")]
    return sorted(files, key=lambda path: os.fsencode(path.name))


def _read(files: dict[str, list[Path]]) -> DataSet:
    train, test, whole = [], [], True
    for name in _FOLDERS:
        images = _readable(files[name])
        parts = split([path.name for path in files[name]])
        learned, judged = ([images[file] for file in part if file in images] for part in parts)
        if not learned or not judged:
            folder = printable(str(files[name][0].parent)) if files[name] else name
            raise NoImages(
                f"{folder} has {len(learned)} readable images to learn from and {len(judged)} to be judged, and needs "
                f"some of each; give it at least {_FEWEST} files that can be read"
            )
        # The published archive has a few files that cannot be read; it is whole all the same.
        whole &= (len(parts[0]), len(parts[1])) == (_MOST_TRAIN, _MOST_TEST)
        train.append(np.stack(learned))
        test.append(np.stack(judged))
    learned_from, judged_by, most = sum(map(len, train)), sum(map(len, test)), 2 * (_MOST_TRAIN + _MOST_TEST)
    title = TITLE if whole else f"{TITLE}, {learned_from:,} + {judged_by:,} of {most:,} photographs"
    return DataSet.of("cats-vs-dogs", title, CLASS_NAMES, _labelled(train), _labelled(test))


def _readable(files: Sequence[Path]) -> dict[str, NDArray[np.uint8]]:
    """The prepared images by file name, in order; a few of the published files are empty or damaged."""
    source = source_of_files([str(path) for path in files])

    def prepared(decoded: Decoded) -> NDArray[np.uint8]:
        return shrunk(with_channels(decoded.pixels, 3), SIDE)

    with closing(read_ahead(source, prepared, workers=2, image_bytes=3 * SIDE * SIDE)) as outcomes:
        return {files[index].name: image for index, image in outcomes if not isinstance(image, Unread)}


def _labelled(by_class: Sequence[NDArray[np.uint8]]) -> Split:
    labels = np.repeat(np.arange(len(by_class)), [len(images) for images in by_class])
    return Split(np.concatenate(by_class), labels)
