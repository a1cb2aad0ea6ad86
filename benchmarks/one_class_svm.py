"""How much faster the shared grid of one-class SVMs is than ninety plain scikit-learn fits, and that both are equal.

    python benchmarks/one_class_svm.py DATA_FOLDER [--images 500] [--large 5000] [--repeats 7]

DATA_FOLDER is that of docs/datasets.md, with CIFAR-10 in it; the images are of one class. Both ways fit the paper's
grid and score as many test images as they were fitted on. Every score must agree to 1e-9 of the largest, every AUROC
to 1e-12. The large set is fitted by the shared grid alone, once.
"""

import argparse
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import sklearn
from sklearn.svm import OneClassSVM

from askew.datasets import open_dataset
from askew.detectors.one_class_svm import PAPER_GRID, Svm
from askew.detectors.raw_ocsvm import PIXEL
from askew.evaluation import auroc


def shared(train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    return Svm.fit(train, PIXEL, PAPER_GRID, side=32, seed=0).candidates(test)


def plain(train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    rows, judged = train * PIXEL - 1, test * PIXEL - 1
    return {
        f"nu {nu:g}, gamma {gamma:g}": OneClassSVM(nu=nu, gamma=gamma).fit(rows).decision_function(judged)
        for gamma in PAPER_GRID.gammas
        for nu in PAPER_GRID.nus
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", type=int, default=0)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--large", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=7)
    words = parser.parse_args()
    data = open_dataset("cifar10", words.folder)
    train = data.train.images[data.train.labels == words.label].reshape(-1, 3 * 32 * 32)
    test = data.test.images.reshape(-1, 3 * 32 * 32)[: words.images]
    is_normal = data.test.labels[: words.images] == words.label
    print(f"scikit-learn {sklearn.__version__}, numpy {np.__version__}, Python {platform.python_version()}")

    seconds: dict[str, list[float]] = {"shared": [], "plain": []}
    found: dict[str, dict[str, np.ndarray]] = {}
    for _ in range(words.repeats):
        for name, way in (("shared", shared), ("plain", plain)):
            began = time.perf_counter()
            found[name] = way(train[: words.images], test)
            seconds[name].append(time.perf_counter() - began)
    assert found["shared"].keys() == found["plain"].keys()
    for name, scores in found["plain"].items():
        off = np.abs(found["shared"][name] - scores).max() / np.abs(scores).max()
        assert off < 1e-9, f"{name} is off by {off:.3g}"
        assert abs(auroc(is_normal, found["shared"][name]) - auroc(is_normal, scores)) < 1e-12, name
    ratios = sorted(slow / fast for slow, fast in zip(seconds["plain"], seconds["shared"], strict=True))
    print(
        f"n = {words.images}: shared {statistics.median(seconds['shared']):.2f} s, "
        f"plain {statistics.median(seconds['plain']):.2f} s, ratio {statistics.median(ratios):.1f} "
        f"({ratios[0]:.1f} to {ratios[-1]:.1f}); all 90 score alike"
    )
    if words.large:
        began = time.perf_counter()
        Svm.fit(train[: words.large], PIXEL, PAPER_GRID, side=32, seed=0)
        print(f"n = {min(words.large, len(train))}: shared, fit alone, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
