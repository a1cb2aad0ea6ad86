"""What a detector's learning and scoring cost, whatever the machine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Views that went through a network, and multiply-accumulates; scoring per image."""

    training_views: int
    training_macs: int
    views_per_image: int
    macs_per_image: int
