"""What every detector's settings have, and how a preset's name becomes settings."""

from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from askew.errors import InvalidInput
from askew.training import TrainingSettings, added_later

FROZEN = ConfigDict(frozen=True, extra="forbid")


class DetectorSettings(BaseModel):
    """All that decides what a detector computes, but for the data, the seed and the precision."""

    model_config = FROZEN
    holdout: float = Field(ge=0, le=0.5)  # the share of normals kept for the threshold; 0: none
    may_collapse: bool = added_later(False)  # Paper: a collapsed detector is kept, and flagged, instead of refused

    def with_views(self, views: int) -> Self:
        """The same with another budget: each training sees that many views, however many images there are."""
        if views < 1:
            raise InvalidInput(f"views must be 1 or more, got {views}")
        return self._with_trainings(lambda old: old.model_copy(update={"epochs": None, "examples": int(views)}))

    def shortened(self, share: float) -> Self:
        """The same with a share of each training, one epoch or example at least."""
        if not 0 < share <= 1:
            raise InvalidInput(f"a share of the training lies above 0 and at most at 1, got {share}")
        return self._with_trainings(lambda old: old.shortened(share))

    def _with_trainings(self, change: Any) -> Self:
        trainings = {name: value for name, value in self if isinstance(value, TrainingSettings)}
        if not trainings:
            raise InvalidInput("this detector trains no network, so it has no training budget; leave it out")
        return self.model_copy(update={name: change(value) for name, value in trainings.items()})


Settings = TypeVar("Settings", bound=DetectorSettings)


def named(presets: Mapping[str, Settings], chosen: str | Settings) -> Settings:
    """The settings of that name, or those given as they are."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in presets:
        raise InvalidInput(f"there is no preset {chosen!r}; choose one of {', '.join(presets)}")
    return presets[chosen]
