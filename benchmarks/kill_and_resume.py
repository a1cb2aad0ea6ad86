"""Kills a fit of the command with SIGKILL at random moments, resumes it, and compares the model to an undisturbed one.

    python benchmarks/kill_and_resume.py [--kills 3] [--views 40000] [--seed 0]

Fits on the sample in the package. Prints the moments, and fails unless every tensor is equal to the last byte.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from askew import storage
from askew.datasets.bundled import write_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--views", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    draw = random.Random(words.seed)
    with tempfile.TemporaryDirectory() as scratch:
        normal = write_folder(Path(scratch)) / "normal"
        whole, broken = Path(scratch, "whole.safetensors"), Path(scratch, "broken.safetensors")

        def command(model: Path, *more: str) -> list[str]:
            fit = [sys.executable, "-m", "askew", "fit", str(normal), "-o", str(model)]
            return [*fit, "--views", str(words.views), "--quiet", *more]

        began = time.monotonic()
        subprocess.run(command(whole), check=True)
        seconds = time.monotonic() - began
        print(f"undisturbed: {seconds:.1f} s")
        for number in range(words.kills):
            process = subprocess.Popen(command(broken, *(["--resume"] if number else [])))
            moment = draw.uniform(0.2, 0.9) * seconds
            try:
                process.wait(moment)
                print(f"fit {number + 1} was done before {moment:.1f} s")
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kept = broken.with_suffix(".checkpoint").exists()
                print(f"killed after {moment:.1f} s, {'with' if kept else 'without'} a checkpoint", flush=True)
        subprocess.run(command(broken, "--resume"), check=True)
        (one, _), (other, _) = storage.read(whole, kind="model"), storage.read(broken, kind="model")
        assert one.keys() == other.keys()
        different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
        assert not different, f"these differ: {different}"
        print(f"all {len(one)} tensors are equal to the last byte")


if __name__ == "__main__":
    main()
