"""Kills the command with SIGKILL at random moments, calls it again, and compares the outcome to an undisturbed one's.

    python benchmarks/kill_and_resume.py fit   [--kills 3] [--views 200000] [--seed 0]
    python benchmarks/kill_and_resume.py bench [--kills 10] [--seeds 8] [--seed 0]

Both work on the sample in the package. `fit` fails unless every tensor of the model is equal to the last byte; `bench`
runs the recipe `smoke`, and fails unless the ledger has every run exactly once, with the same figures, and the table is
the same to the last character.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from askew import storage
from askew.datasets.bundled import write_folder
from askew.evaluation.ledger import Ledger

ASKEW = (sys.executable, "-m", "askew")


def killed(first: Sequence[str], again: Sequence[str], moments: Sequence[float]) -> int:
    """How often the command could be killed, at so many seconds after each start, before it was done."""
    for number, moment in enumerate(moments):
        process = subprocess.Popen([*ASKEW, *(again if number else first)], stderr=subprocess.DEVNULL)
        try:
            process.wait(moment)
            print(f"done before it could be killed after {moment:.1f} s", flush=True)
            return number
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"killed after {moment:.1f} s", flush=True)
    return len(moments)


def fit(words: argparse.Namespace, scratch: Path) -> None:
    normal = write_folder(scratch) / "normal"
    whole, broken = scratch / "whole.safetensors", scratch / "broken.safetensors"

    def command(model: Path, *more: str) -> list[str]:
        return ["fit", str(normal), "-o", str(model), "--views", str(words.views), "--quiet", *more]

    began = time.monotonic()
    subprocess.run([*ASKEW, *command(whole)], check=True)
    seconds = time.monotonic() - began
    draw, kills = random.Random(words.seed), words.kills or 3
    # Early enough that what is left after one kill lasts until the next.
    moments = [draw.uniform(0.3, 1.1) * seconds / kills for _ in range(kills)]
    count = killed(command(broken), command(broken, "--resume"), moments)
    subprocess.run([*ASKEW, *command(broken, "--resume")], check=True)
    (one, _), (other, _) = storage.read(whole, kind="model"), storage.read(broken, kind="model")
    assert one.keys() == other.keys()
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, f"these differ: {different}"
    print(f"{count} kills, undisturbed {seconds:.1f} s: all {len(one)} tensors are equal to the last byte")


def bench(words: argparse.Namespace, scratch: Path) -> None:
    def command(verb: str, name: str, *more: str) -> list[str]:
        return ["bench", verb, "smoke", "--folder", str(scratch / name), *more]

    run = ("--seeds", str(words.seeds), "--quiet")
    began = time.monotonic()
    subprocess.run([*ASKEW, *command("run", "whole", *run)], check=True)
    seconds = time.monotonic() - began
    draw, kills = random.Random(words.seed), words.kills or 10
    # Late enough to have begun, early enough not to be done before the last of them.
    moments = [draw.uniform(3, 1.5 * seconds / kills + 6) for _ in range(kills)]
    count = killed(command("run", "broken", *run), command("run", "broken", *run), moments)
    subprocess.run([*ASKEW, *command("run", "broken", *run)], check=True)
    lines = (scratch / "broken" / "ledger.jsonl").read_text().splitlines()
    one, other = (Ledger(scratch / name / "ledger.jsonl").rows() for name in ("whole", "broken"))
    assert len(lines) == len(other) == words.seeds, f"{len(lines)} lines for {words.seeds} runs"
    assert {row.key: row.result for row in one} == {row.key: row.result for row in other}
    tables = [
        subprocess.run([*ASKEW, *command("table", name)], check=True, capture_output=True, text=True).stdout
        for name in ("whole", "broken")
    ]
    assert tables[0] == tables[1], "the tables differ"
    left = [path.name for path in (scratch / "broken" / "runs").iterdir() if path.suffix == ".checkpoint"]
    assert not left, f"left behind: {left}"
    print(f"{count} kills, undisturbed {seconds:.1f} s: {len(lines)} runs, each once, and the same table")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("fit", "bench"))
    parser.add_argument("--kills", type=int)
    parser.add_argument("--views", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        {"fit": fit, "bench": bench}[words.verb](words, Path(scratch))


if __name__ == "__main__":
    main()
