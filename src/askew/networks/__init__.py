"""What is trained. Each network has frozen settings that build it, so a model file can name it without running code."""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from askew.errors import extra_for

if TYPE_CHECKING:
    from torch import nn

    from askew.networks.coder import Decoder, Encoder
    from askew.networks.compact import CompactResNet
    from askew.networks.cost import TRAINING_FACTOR, multiply_accumulates
    from askew.networks.weights import set_weights, weights_of
    from askew.networks.wide_resnet import WideResNet

__all__ = [
    "TRAINING_FACTOR",
    "CompactResNet",
    "CompactSettings",
    "Decoder",
    "Encoder",
    "NetworkSettings",
    "WideResNet",
    "WideResNetSettings",
    "multiply_accumulates",
    "set_weights",
    "weights_of",
]

_HOMES = {
    "TRAINING_FACTOR": "cost",
    "CompactResNet": "compact",
    "Decoder": "coder",
    "Encoder": "coder",
    "WideResNet": "wide_resnet",
    "multiply_accumulates": "cost",
    "set_weights": "weights",
    "weights_of": "weights",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: settings can be read, and what is missing be named, without torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra_for("networks"):
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


# Bounds keep a hostile model file from asking for a network that does not fit in memory.
Width = Annotated[int, Field(ge=1, le=2048)]


class WideResNetSettings(BaseModel):
    """The paper's network, of depth 6n+4."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["wide-resnet"] = "wide-resnet"
    depth: int = Field(ge=10, le=100)
    width: int = Field(ge=1, le=32)

    def build(self, *, channels: int, classes: int, side: int) -> "nn.Module":
        """A freshly initialised network."""
        from askew.networks.wide_resnet import WideResNet

        return WideResNet(channels=channels, classes=classes, depth=self.depth, width=self.width, side=side)


class CompactSettings(BaseModel):
    """The light network of the `fast` preset: channels and residual blocks of each stage, each half the last's size."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["compact"] = "compact"
    widths: tuple[Width, ...] = Field(min_length=1, max_length=6)
    blocks: tuple[Annotated[int, Field(ge=1, le=16)], ...] = Field(min_length=1, max_length=6)

    @model_validator(mode="after")
    def _stages_agree(self) -> Self:
        if len(self.widths) != len(self.blocks):
            raise ValueError(f"every stage needs a width and a count of blocks, got {self.widths} and {self.blocks}")
        return self

    def build(self, *, channels: int, classes: int, side: int) -> "nn.Module":
        """A freshly initialised network."""
        from askew.networks.compact import CompactResNet

        return CompactResNet(channels=channels, classes=classes, side=side, widths=self.widths, blocks=self.blocks)


NetworkSettings = Annotated[WideResNetSettings | CompactSettings, Field(discriminator="kind")]
