"""Peak memory of a paper-preset fit, and of scoring few and many images from a folder, each in a process of its own.

    python benchmarks/memory.py DATA_FOLDER [--label 5] [--views 6400] [--many 100000]

DATA_FOLDER is that of docs/datasets.md, with CIFAR-10 in it. The fit is on all 5,000 images of a class with the paper's
network and its 72 transforms; its budget of views is cut, since memory does not depend on how long it trains, and the
Dirichlets are fitted on all 360,000 views. Scoring reads PNG files; the many are hard links to the few, which the
program cannot tell from files of their own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from askew.datasets import open_dataset

FEW = 1000
# The peak of the process itself, as the kernel counted it.
PEAK = "import re; print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024)"


def peak_bytes(program: str) -> int:
    found = subprocess.run([sys.executable, "-c", f"{program}\n{PEAK}"], check=True, capture_output=True, text=True)
    return int(found.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", type=int, default=5)
    parser.add_argument("--views", type=int, default=6400)
    parser.add_argument("--many", type=int, default=100_000)
    words = parser.parse_args()
    train = open_dataset("cifar10", words.folder).train
    images = train.images[train.labels == words.label]
    with tempfile.TemporaryDirectory() as scratch:
        few, many, model = Path(scratch, "few"), Path(scratch, "many"), Path(scratch, "model.safetensors")
        few.mkdir()
        many.mkdir()
        np.save(Path(scratch, "normal.npy"), images)
        for index, image in enumerate(images[:FEW]):
            Image.fromarray(image).save(few / f"{index:04}.png")
        for index in range(words.many):
            os.link(few / f"{index % FEW:04}.png", many / f"{index:06}.png")

        imports = "import askew, torch\n"
        print(f"importing askew and torch: {peak_bytes(imports) / 2**20:,.0f} MiB", flush=True)
        fit = f"askew.GeometricDetector(preset='paper', views={words.views}).fit({scratch + '/normal.npy'!r})"
        print(f"fitting the paper preset on {len(images):,} images: {peak_bytes(imports + fit) / 2**20:,.0f} MiB")
        light = f"askew.GeometricDetector(views=2560).fit({scratch + '/normal.npy'!r}).save({str(model)!r})"
        peak_bytes(imports + light)
        peaks = []
        for folder, count in ((few, FEW), (many, words.many)):
            score = f"sum(1 for _ in askew.load({str(model)!r}).verdicts({str(folder)!r}))"
            peaks.append(peak_bytes(imports + score))
            print(f"scoring {count:,} images from a folder: {peaks[-1] / 2**20:,.0f} MiB", flush=True)
        print(f"ratio: {peaks[1] / peaks[0]:.3f}")


if __name__ == "__main__":
    main()
