"""AUROC and realised false-alarm rate of the `fast` preset on Fashion-MNIST, one class normal at a time.

    python benchmarks/false_alarms.py FOLDER [--classes 3 7 9] [--seeds 0 1 2]

FOLDER holds the four published idx files. Fits on the 6,000 training images of a class, a fifth of them held out, and
scores all 10,000 test images; nothing is chosen on them. Each run is a line of results/false_alarms.jsonl as soon as it
is done, and runs that are there are skipped, so an interrupted sweep goes on where it was.
"""

import argparse
import gzip
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

import askew
from askew.evaluation import aupr_in, aupr_out, auroc

LEDGER = Path(__file__).parent / "results" / "false_alarms.jsonl"
NAMES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def idx(path: Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    sides = [int.from_bytes(content[4 * (i + 1) : 4 * (i + 2)], "big") for i in range(content[3])]
    return np.frombuffer(content, np.uint8, offset=4 * (len(sides) + 1)).reshape(sides)


def run(folder: Path, label: int, seed: int) -> dict[str, object]:
    images, labels = idx(folder / "train-images-idx3-ubyte.gz"), idx(folder / "train-labels-idx1-ubyte.gz")
    test, test_labels = idx(folder / "t10k-images-idx3-ubyte.gz"), idx(folder / "t10k-labels-idx1-ubyte.gz")
    is_normal = test_labels == label
    detector = askew.GeometricDetector(preset="fast", random_state=seed).fit(images[labels == label])
    began = time.perf_counter()
    normality = detector.score_samples(test)
    seconds = time.perf_counter() - began
    line = detector.fitted_threshold
    alarms = line.is_anomaly(-normality)
    low, high = line.realised_count_interval(int(is_normal.sum()))
    return {
        "data": "fashion-mnist",
        "label": label,
        "seed": seed,
        "auroc": auroc(is_normal, normality),
        "aupr_in": aupr_in(is_normal, normality),
        "aupr_out": aupr_out(is_normal, normality),
        "false_alarm_rate": line.false_alarm_rate,
        "held_out": line.n,
        "normals": int(is_normal.sum()),
        "false_alarms": int(alarms[is_normal].sum()),
        "interval": [low, high],
        "found": int(alarms[~is_normal].sum()),
        "fit_seconds": detector.training_.seconds,
        "score_seconds": round(seconds, 1),
        "settings": detector.settings_.model_dump(mode="json"),
        "precision": detector.engine_.precision,
        "threads": torch.get_num_threads(),
        "versions": {"askew": askew.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def key(row: dict[str, object]) -> str:
    return json.dumps([row["label"], row["seed"], row["settings"], row["precision"]], sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, nargs="+", default=[3, 7, 9])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words = parser.parse_args()
    rows = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    settings = askew.GeometricDetector(preset="fast")._resolved().model_dump(mode="json")
    precision = askew.GeometricDetector()._choose_engine().precision
    done = {key(row) for row in rows}
    for seed in words.seeds:
        for label in words.classes:
            if key({"label": label, "seed": seed, "settings": settings, "precision": precision}) in done:
                continue
            row = run(words.folder, label, seed)
            with LEDGER.open("a") as ledger:
                ledger.write(json.dumps(row) + "\n")
            rows.append(row)
            print(f"{NAMES[label]}, seed {seed}: AUROC {row['auroc']:.4f}", flush=True)
    print("| normal | seed | AUROC | AUPR-In | AUPR-Out | false alarms of 1,000 | 95 % interval | inside | found |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (row["label"], row["seed"])):
        low, high = row["interval"]
        inside = "yes" if low <= row["false_alarms"] <= high else "no"
        figures = " | ".join(f"{100 * row[name]:.2f}" for name in ("auroc", "aupr_in", "aupr_out"))
        print(
            f"| {NAMES[row['label']]} | {row['seed']} | {figures} | {row['false_alarms']} | {low} to {high} "
            f"| {inside} | {row['found']:,} |"
        )


if __name__ == "__main__":
    main()
