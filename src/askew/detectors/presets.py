"""The method's settings, and the named values of them. A preset is data: no code asks for its name."""

import logging
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from askew.detectors.settings import FROZEN, DetectorSettings
from askew.errors import InvalidInput
from askew.geometry.transforms import TransformSet
from askew.networks import CompactSettings, NetworkSettings, WideResNetSettings
from askew.training import TrainingSettings

log = logging.getLogger("askew")

Turn = Annotated[int, Field(ge=0, le=3)]
Shift = Annotated[float, Field(ge=-1, le=1)]


class TransformChoice(BaseModel):
    """A transform set for any side: shifts are fractions of it."""

    model_config = FROZEN
    flips: tuple[bool, ...] = Field(default=(False, True), min_length=1, max_length=2)
    shifts: tuple[Shift, ...] = Field(default=(0, -0.25, 0.25), min_length=1, max_length=9)
    turns: tuple[Turn, ...] = Field(default=(0, 1, 2, 3), min_length=1, max_length=4)

    def at(self, side: int) -> TransformSet:
        """The set for images of that side, shifts rounded towards zero to whole pixels."""
        shifts = tuple(int(Fraction(shift) * side) for shift in self.shifts)
        return TransformSet(side, self.flips, shifts, shifts, self.turns)


class GeometricSettings(DetectorSettings):
    """All that decides what `GeometricDetector` computes, but for the data, the seed and the precision."""

    transforms: TransformChoice = TransformChoice()
    question: Literal["transform", "factors"]  # one softmax over all transforms, or one per factor
    networks: dict[int, NetworkSettings]  # by the smallest side each is for
    training: TrainingSettings
    jitter_flip: bool = False  # variety in training that the classifier is not asked about
    jitter_shift: int = Field(default=0, ge=0, le=64)  # in pixels
    alpha_images: int | None = Field(default=None, ge=1)  # how many training images the Dirichlets are fitted on
    published_sides: tuple[int, ...] = ()  # the sides that the settings are published for, where they are

    def network_for(self, side: int) -> NetworkSettings:
        """The network for images of that side."""
        fitting = [smallest for smallest in self.networks if smallest <= side]
        if not fitting:
            raise InvalidInput(f"this preset starts at images of {min(self.networks)} pixels a side, got {side}")
        return self.networks[max(fitting)]

    def check_side(self, side: int) -> None:
        """Say so where the settings are used beyond what they are published for."""
        if self.published_sides and side not in self.published_sides:
            log.warning(
                "these settings are published for sides of %s pixels; %d is beyond them",
                " and ".join(map(str, self.published_sides)),
                side,
            )


PRESETS: dict[str, GeometricSettings] = {
    # Paper: section 5 and the authors' program. 3 epochs = ceil(200 / 72); no hold-out, so no threshold unless asked.
    # Differs from the reference: convolutions run in bf16 where the machine gains from it; precision="fp32" is theirs.
    "paper": GeometricSettings(
        question="transform",
        networks={32: WideResNetSettings(depth=10, width=4), 64: WideResNetSettings(depth=16, width=8)},
        training=TrainingSettings(
            optimiser="adam", learning_rate=1e-3, schedule="constant", weight_decay=5e-4, batch=128, epochs=3
        ),
        holdout=0.0,
        published_sides=(32, 64),
    ),
    # A coffee instead of a night: flips as variety instead of a question, one question per factor, half the resolution.
    "fast": GeometricSettings(
        transforms=TransformChoice(flips=(False,)),
        question="factors",
        networks={8: CompactSettings(widths=(48, 96, 192), blocks=(1, 1, 1))},
        training=TrainingSettings(
            optimiser="sgd", learning_rate=0.03, schedule="cosine", weight_decay=5e-4, batch=128, examples=200_000
        ),
        jitter_flip=True,
        jitter_shift=4,
        alpha_images=2000,
        holdout=0.2,
    ),
}
