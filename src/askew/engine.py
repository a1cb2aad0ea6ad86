"""Where numbers are computed and in which precision, chosen from what the machine gains from."""

import logging
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from askew.errors import InvalidInput

log = logging.getLogger("askew")

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Engine:
    """A device, a precision and whether training is compiled. All but the device is recorded with a fit and kept."""

    device: torch.device
    precision: Precision
    compiled: bool = False  # the last digits differ from those of eager training

    @classmethod
    def choose(cls, device: str = "auto", precision: str = "auto", compiled: bool = False) -> "Engine":
        """An engine for this machine, `auto` meaning what it is fastest with; compiled only where that works."""
        place = _device(device)
        if precision not in ("auto", "fp32", "bf16"):
            raise InvalidInput(f'precision must be "auto", "fp32" or "bf16", got {precision!r}')
        fast, _ = fast_precision(place.type)
        chosen: Any = fast if precision == "auto" else precision
        return cls(place, chosen, compiled and _can_compile())

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """A context for forward passes, in which convolutions run in the engine's precision."""
        with self.exact(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    @contextmanager
    def exact(self) -> Iterator[None]:
        """A context in which float32 is float32 on a GPU too, where torch rounds convolutions to TF32 unless told.

        The switches are the process's and are put back at the end. Backward passes need it around them as well.
        """
        if self.device.type != "cuda":
            yield
            return
        before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before[0]
            torch.set_float32_matmul_precision(before[1])

    def place(self, network: nn.Module) -> nn.Module:
        """The network on the device, laid out as its convolutions like it."""
        return network.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload, no-any-return]

    def accelerated(self, network: nn.Module) -> nn.Module:
        """The network itself, or its compiled form, which shares its weights."""
        # A static graph per batch shape: a graph for any shape would make results depend on the order of shapes met.
        return torch.compile(network, dynamic=False) if self.compiled else network  # type: ignore[return-value]

    @property
    def images_per_pass(self) -> int:
        """How many images' views go through the network at once: one fills a CPU, a GPU wants more."""
        return 1 if self.device.type == "cpu" else 16

    def pieces(self, views: Tensor) -> Iterator[Tensor]:
        """The views uint8 [n, h, w, c], scaled: those of usual sides all at once, large ones as memory allows."""
        step = max(1, 72 * self.images_per_pass * 128**2 // (views.shape[1] * views.shape[2]))
        for start in range(0, len(views), step):
            yield self.scaled(views[start : start + step])

    def scaled(self, views: Tensor) -> Tensor:
        """uint8 [n, h, w, c] to float32 [n, c, h, w] in [-1, 1]."""
        x = views.permute(0, 3, 1, 2).to(torch.float32, memory_format=self.layout)
        return x.div_(255).mul_(2).sub_(1)

    @property
    def layout(self) -> torch.memory_format:
        """Channels last where it pays: in bf16, and not in fp32 on a CPU."""
        return torch.channels_last if self.precision == "bf16" else torch.contiguous_format


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError, AttributeError) as error:
            reason = str(error).splitlines()[0].partition(". ")[0][:120]
            raise InvalidInput(f"device {name!r} cannot be used here ({reason}); choose auto or cpu") from error
        if device.type == "meta":
            raise InvalidInput("device 'meta' computes nothing; choose auto or cpu")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@cache
def fast_precision(device_type: str) -> tuple[Precision, str]:
    """The precision a kind of device is fastest in, and why."""
    if device_type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "the GPU computes in bf16") if native else ("fp32", "the GPU has no bf16 units")
    if device_type == "cpu":
        found = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in _cpu_flags()]
        return (
            ("bf16", f"the CPU has {found[0]}") if found else ("fp32", "the CPU has neither amx_bf16 nor avx512_bf16")
        )
    return "fp32", f"bf16 has not been measured on {device_type}"


def compiler() -> tuple[bool, str]:
    """Whether torch.compile can work here, and why or why not."""
    if platform.system() == "Windows":
        found = shutil.which("cl")
    else:
        found = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    return (True, found) if found else (False, "no C++ compiler on the path")


def _can_compile() -> bool:
    """Whether torch.compile works here; a line in the log says why not."""
    works, reason = compiler()
    if works:
        works, reason = _compiles()
    if not works:
        log.warning("training without torch.compile: %s", reason)
    return works


@cache
def _compiles() -> tuple[bool, str]:
    """Whether torch.compile gets a little graph through the compiler, and why not."""
    try:
        torch.compile(lambda x: (x * 2).relu(), dynamic=False)(torch.ones(8))
    except Exception as error:  # noqa: BLE001  # inductor wraps whatever a broken compiler does in classes of its own
        return False, str(error).strip().splitlines()[0][:200]
    return True, ""


def _cpu_flags() -> frozenset[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    for line in cpuinfo.read_text(errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.split())
    return frozenset()
