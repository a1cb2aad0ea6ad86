"""The sample in the package: real photographs of sneakers, so that everything can be tried without a download.

Part of Fashion-MNIST (MIT licence, Copyright 2017 Zalando SE; see `sample/LICENSE`), cut out by
`benchmarks/make_sample.py`.
"""

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from askew.errors import InvalidInput

# Fashion-MNIST's classes by label, as names that also serve for folders.
CLASS_NAMES: Final = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot",
)  # fmt: skip
NORMAL_CLASS: Final = CLASS_NAMES.index("sneaker")


@dataclass(frozen=True, eq=False)
class Sample:
    """1,000 normal images, and 398 to be judged, 200 of them normal too. Images are grey, uint8 [n, 28, 28]."""

    normal: NDArray[np.uint8]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]  # positions in `class_names`
    class_names: tuple[str, ...] = CLASS_NAMES

    @property
    def test_is_normal(self) -> NDArray[np.bool_]:
        """[n]: True for sneakers."""
        return np.equal(self.test_labels, NORMAL_CLASS)

    @property
    def test_names(self) -> list[str]:
        """[n]: each test image's path in the folder that `write_folder` makes, such as `test/bag/0003.png`."""
        seen = [0] * len(self.class_names)
        names = []
        for label in self.test_labels.tolist():
            names.append(f"test/{self.class_names[label]}/{seen[label]:04}.png")
            seen[label] += 1
        return names


def load_sample() -> Sample:
    """The sample, read from the package."""
    normal, test = _arrays("normal.npz"), _arrays("test.npz")
    return Sample(normal["images"], test["images"], test["labels"])


def write_folder(target: str | os.PathLike[str]) -> Path:
    """The folder `target`, now holding the sample as `normal/0000.png ...` and `test/<class>/0000.png ...`.

    What is there from an earlier time is written again, plainly and not atomically, since it can be made anew at any
    time; files of anybody else's below `normal` or `test` are refused.
    """
    folder, sample = Path(target), load_sample()
    names = [f"normal/{index:04}.png" for index in range(len(sample.normal))] + sample.test_names
    paths = [folder / name for name in names]
    below = {path for part in ("normal", "test") for path in (folder / part).rglob("*") if not path.is_dir()}
    if foreign := sorted(below - set(paths)):
        raise InvalidInput(
            f"{os.fspath(target)} holds other files already, such as {foreign[0].relative_to(folder)!s:.80}; "
            "name a new folder for the sample"
        )
    try:
        for parent in {path.parent for path in paths}:
            parent.mkdir(parents=True, exist_ok=True)
        for path, pixels in zip(paths, [*sample.normal, *sample.test], strict=True):
            Image.fromarray(pixels).save(path)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(f"the sample cannot be written to {os.fspath(target)}: {reason}") from error
    return folder


def _arrays(name: str) -> dict[str, NDArray[np.uint8]]:
    resource = resources.files("askew.datasets").joinpath("sample", name)
    with resource.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)
