"""What bf16, channels-last and torch.compile gain on this machine, as ratios to plain fp32 torch within one run.

    python benchmarks/engine.py [--repeats 7] [--networks paper fast]

Every way first shows that it computes what fp32 computes (the same logits within bf16's precision), then is timed:
training steps of 128 views, and scoring all views of one image. Median and range over the repeats, interleaved so that
a slow moment of the machine meets every way alike. Nothing else should run meanwhile.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

import askew
from askew.detectors.presets import PRESETS, GeometricSettings
from askew.engine import Engine, compiler, fast_precision

SIDE, CHANNELS, BATCH = 32, 3, 128


class Way:
    """A network on an engine, with one step of training and one image's scoring."""

    def __init__(self, settings: GeometricSettings, engine: Engine) -> None:
        torch.manual_seed(0)
        transforms = settings.transforms.at(SIDE)
        classes = len(transforms) if settings.question == "transform" else 10
        self.engine = engine
        self.network = engine.place(settings.network_for(SIDE).build(channels=CHANNELS, classes=classes, side=SIDE))
        torch.nn.init.normal_(self.network.dense.weight, std=0.05)
        self.forward = engine.accelerated(self.network)
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        draw = torch.Generator().manual_seed(1)
        shape = (BATCH, SIDE, SIDE, CHANNELS)
        self.batch = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
        self.labels = torch.randint(0, classes, (BATCH,), generator=draw)
        self.views = self.batch[: len(transforms)]

    def train(self) -> None:
        """One step."""
        self.network.train()
        with self.engine.autocast():
            loss = functional.cross_entropy(self.forward(self.engine.scaled(self.batch)).float(), self.labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def score(self) -> torch.Tensor:
        """The logits of one image's views."""
        self.network.eval()
        with torch.inference_mode(), self.engine.autocast():
            return self.forward(self.engine.scaled(self.views))


def seconds(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def measure(name: str, repeats: int) -> None:
    cpu = torch.device("cpu")
    engines = {"fp32": Engine(cpu, "fp32"), "bf16": Engine(cpu, "bf16")}
    if compiler()[0]:
        engines["bf16 compiled"] = Engine(cpu, "bf16", compiled=True)
    ways = {label: Way(PRESETS[name], engine) for label, engine in engines.items()}
    reference = ways["fp32"].score()
    for label, way in ways.items():
        off = float((way.score() - reference).abs().max() / reference.abs().max())
        assert off < (1e-6 if label == "fp32" else 0.05), f"{label} is off by {off:.3g} of the largest logit"
        way.train()
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        for label, way in ways.items():
            times.setdefault((label, "training"), []).append(seconds(way.train, 3))
        for label, way in ways.items():
            times.setdefault((label, "scoring"), []).append(seconds(way.score, 10))
    for verb, count in (("training", BATCH), ("scoring", len(ways["fp32"].views))):
        for label in ways:
            mine, plain = times[label, verb], times["fp32", verb]
            ratios = sorted(slow / fast for slow, fast in zip(plain, mine, strict=True))
            rate = count / statistics.median(mine)
            print(
                f"| {name} | {verb} | {label} | {rate:,.0f} | "
                f"{statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--networks", nargs="+", default=["paper", "fast"])
    words = parser.parse_args()
    print(
        f"askew {askew.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads; {fast_precision('cpu')[1]}\n"
    )
    print("| preset | work | way | views a second | times fp32 | range |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in words.networks:
        measure(name, words.repeats)


if __name__ == "__main__":
    main()
