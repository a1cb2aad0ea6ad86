"""What was found among the images to fit on, said before any training."""

from dataclasses import dataclass

_FEW = 50  # fewer leave a handful to hold out, and a threshold from a handful is a guess


@dataclass(frozen=True, slots=True)
class Scan:
    """Counts over one pass; `sizes` counts (width, height), `reasons` pairs a name and why it cannot be read."""

    found: int
    readable: int
    unreadable: int
    reasons: tuple[tuple[str, str], ...]
    sizes: dict[tuple[int, int], int]
    grey: int
    colour: int
    notes: dict[str, int]
    duplicates: int
    blank: int
    enlarged: int
    remarks: tuple[str, ...] = ()

    @property
    def size_range(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The smallest, the median and the largest (width, height), by area."""
        ordered = sorted(self.sizes, key=lambda size: (size[0] * size[1], size))
        before = 0
        for median in ordered:
            before += self.sizes[median]
            if 2 * before >= self.readable:
                break
        return ordered[0], median, ordered[-1]

    def lines(self) -> list[str]:
        """The findings as a person reads them, warnings last."""
        return [*self.remarks, *self._findings(), *(f"warning: {line}" for line in self.warnings())]

    def warnings(self) -> list[str]:
        """What may spoil the fit."""
        lines = []
        if self.unreadable:
            lines.append(f"{self.unreadable:,} of {_images(self.found)} cannot be read")
            lines += [f"{name}: {reason}" for name, reason in self.reasons]
        if self.readable < _FEW:
            lines.append(
                f"only {_images(self.readable)}; below {_FEW} neither the fit nor its threshold can be relied on"
            )
        if self.duplicates:
            lines.append(f"{_images(self.duplicates)} repeat another one exactly")
        if self.blank:
            lines.append(f"{_images(self.blank)} nearly without content")
        if self.enlarged:
            lines.append(f"{_images(self.enlarged)} smaller than the model's input, enlarged")
        return lines

    def _findings(self) -> list[str]:
        lines = [f"{_images(self.readable)} to fit on, {self._modes()}, {self._sizes()}"]
        return lines + [f"{_images(count)}: {note}" for note, count in sorted(self.notes.items())]

    def _modes(self) -> str:
        if not self.colour:
            return "grey"
        return "in colour" if not self.grey else f"{self.colour:,} in colour and {self.grey:,} grey"

    def _sizes(self) -> str:
        smallest, median, largest = (f"{width}x{height}" for width, height in self.size_range)
        if len(self.sizes) == 1:
            return f"all {median}"
        return f"{len(self.sizes):,} sizes from {smallest} to {largest}, median {median}"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"
