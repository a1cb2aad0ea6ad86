"""One picture of how a detector judges a set of images: the most normal ones, the most anomalous ones, and all scores.

Pillow draws it, at twice the resolution it is laid out in. Its two colours (Okabe and Ito's blue and vermilion) differ
for every kind of sight, in lightness too.
"""

import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from askew.errors import InvalidInput, NoImages
from askew.report.axis import Bins, number, round_ticks, tick_words

SCALE: Final = 2
WIDTH: Final = 960
MARGIN: Final = 40
RIGHT: Final = WIDTH - MARGIN
IN_A_ROW: Final = 8
THUMBNAIL: Final = 92
FRAME: Final = 3  # around a thumbnail
ROW_HEIGHT: Final = 196
PLOT_LEFT: Final = MARGIN + 44  # the percentages stand before it
PLOT_HEIGHT: Final = 200

Colour = tuple[int, int, int]
INK: Final = (33, 37, 41)
QUIET: Final = (102, 110, 118)
LINE: Final = (226, 230, 234)
PAPER: Final = (255, 255, 255)
NORMAL: Final = (0, 114, 178)
OTHER: Final = (213, 94, 0)
UNKNOWN: Final = (92, 108, 124)


@dataclass(frozen=True, eq=False)
class Example:
    """One image to show: uint8 [h, w], [h, w, 1] or [h, w, 3], its anomaly score, and the truth where it is known."""

    pixels: NDArray[np.uint8]
    anomaly_score: float
    name: str = ""
    is_normal: bool | None = None


class _Group(NamedTuple):
    """Scores drawn in one colour."""

    name: str
    colour: Colour
    scores: NDArray[np.float64]


def verdict_picture(
    title: str,
    most_normal: Sequence[Example],
    most_anomalous: Sequence[Example],
    anomaly_scores: ArrayLike,
    *,
    is_normal: ArrayLike | None = None,
    threshold: float | None = None,
    false_alarm_rate: float | None = None,
    subtitle: str = "",
    groups: tuple[str, str] = ("normal", "other"),
) -> bytes:
    """A PNG: two rows of up to eight examples, and a histogram of the scores [n], split by the truth [n] if given."""
    drawn = _groups(anomaly_scores, is_normal, groups)
    if threshold is not None and not math.isfinite(threshold):
        raise InvalidInput(f"a threshold to draw must be finite, got {threshold}")
    rows = [("Most normal", most_normal), ("Most anomalous", most_anomalous)]
    rows = [(heading, examples[:IN_A_ROW]) for heading, examples in rows if len(examples)]

    top = MARGIN + (76 if subtitle else 52)
    page = _Page(top + ROW_HEIGHT * len(rows) + 60 + PLOT_HEIGHT + 96)
    page.text(MARGIN, MARGIN, title, 26, INK, room=RIGHT - MARGIN)
    page.text(MARGIN, MARGIN + 38, subtitle, 14, QUIET, room=RIGHT - MARGIN)
    known = any(example.is_normal is not None for _, examples in rows for example in examples)
    for index, (heading, examples) in enumerate(rows):
        page.text(MARGIN, top, heading, 16, INK)
        if known and not index:
            page.legend(top, [(groups[0], NORMAL), (groups[1], OTHER)], frames_of="in truth:")
        for place, example in enumerate(examples):
            stride = (RIGHT - MARGIN - THUMBNAIL - 2 * FRAME) / (IN_A_ROW - 1)
            page.example(MARGIN + round(place * stride), top + 32, example)
        top += ROW_HEIGHT
    page.text(MARGIN, top, "Anomaly scores of all images", 16, INK)
    page.legend(top, [(f"{group.name} ({len(group.scores):,})", group.colour) for group in drawn])
    page.histogram(top + 62, drawn, threshold, _threshold_words(threshold, false_alarm_rate))
    return page.png()


def _groups(anomaly_scores: ArrayLike, is_normal: ArrayLike | None, names: tuple[str, str]) -> list[_Group]:
    scores = np.asarray(anomaly_scores, dtype=np.float64)
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise InvalidInput("a picture needs a flat list of finite anomaly scores; leave unreadable images out")
    if not len(scores):
        raise NoImages("there is no anomaly score to draw")
    scores = np.clip(scores, -1e150, 1e150)  # differences stay finite
    if is_normal is None:
        return [_Group("images", UNKNOWN, scores)]
    truth = np.asarray(is_normal, dtype=np.bool_)
    if truth.shape != scores.shape:
        raise InvalidInput(f"is_normal must tell the truth of every score, got {truth.shape} for {scores.shape}")
    both = [_Group(names[0], NORMAL, scores[truth]), _Group(names[1], OTHER, scores[~truth])]
    return [group for group in both if len(group.scores)]


def _threshold_words(threshold: float | None, false_alarm_rate: float | None) -> str:
    if threshold is None:
        return ""
    wanted = "" if false_alarm_rate is None else f": {100 * false_alarm_rate:.3g} % false alarms wanted"
    return f"threshold {number(threshold)}{wanted}"


@cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size * SCALE)


class _Page:
    """A white sheet in layout units, of which each is `SCALE` pixels."""

    def __init__(self, height: int) -> None:
        self.image = Image.new("RGB", (WIDTH * SCALE, height * SCALE), PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def png(self) -> bytes:
        stream = io.BytesIO()
        self.image.save(stream, "PNG", optimize=True)
        return stream.getvalue()

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float,
        colour: Colour,
        *,
        anchor: str = "la",
        room: float = WIDTH,
        tail: float = 0.0,
    ) -> None:
        """One line of words, cut to the room there is."""
        words = self.cut(words, size, room, tail)
        self.draw.text((x * SCALE, y * SCALE), words, colour, _font(size), anchor)

    def cut(self, words: str, size: float, room: float, tail: float = 0.0) -> str:
        """As much of the words as fits, a share of it from their end: that is what tells files apart."""
        # Pillow's own font has no other letters.
        plain = unicodedata.normalize("NFKD", words[:500])
        plain = "".join(c if " " <= c <= "~" else "?" for c in plain if not unicodedata.combining(c))
        fits = plain
        for kept in range(len(plain) - 1, -1, -1):
            if self.length(fits, size) <= room:
                break
            end = int(tail * kept)
            fits = f"{plain[: kept - end].rstrip()}…{plain[len(plain) - end :]}"
        return fits

    def length(self, words: str, size: float) -> float:
        return self.draw.textlength(words, _font(size)) / SCALE

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A filled rectangle, its right and bottom edges left out."""
        x0, y0, x1, y1 = (round(v * SCALE) for v in (left, top, right, bottom))
        if x1 > x0 and y1 > y0:
            self.draw.rectangle((x0, y0, x1 - 1, y1 - 1), colour)

    def legend(self, top: float, entries: list[tuple[str, Colour]], *, frames_of: str = "") -> None:
        """Coloured squares, or frames of something, with words: flush right on the line of a heading."""
        right = float(RIGHT)
        for words, colour in reversed(entries):
            words = self.cut(words, 13, 240)
            left = right - self.length(words, 13)
            self.text(left, top + 9, words, 13, QUIET, anchor="lm")
            self.box(left - 19, top + 2.5, left - 6, top + 15.5, colour)
            if frames_of:
                self.box(left - 16.5, top + 5, left - 8.5, top + 13, PAPER)
            right = left - 38
        self.text(right + 10, top + 9, frames_of, 13, QUIET, anchor="rm")

    def example(self, left: int, top: int, example: Example) -> None:
        """A thumbnail with its score and name below, framed in the colour of the truth."""
        thumbnail = _thumbnail(example.pixels)
        width, height = thumbnail.size
        line, colour = (0.5, LINE) if example.is_normal is None else (FRAME, NORMAL if example.is_normal else OTHER)
        outer = THUMBNAIL + 2 * FRAME
        self.box(left, top, left + outer, top + outer, colour)
        self.box(left + line, top + line, left + outer - line, top + outer - line, PAPER)
        self.image.paste(
            thumbnail, (left * SCALE + (outer * SCALE - width) // 2, top * SCALE + (outer * SCALE - height) // 2)
        )
        middle, bottom = left + outer / 2, top + outer
        self.text(middle, bottom + 18, number(example.anomaly_score), 15, INK, anchor="mm")
        self.text(middle, bottom + 37, example.name, 12, QUIET, anchor="mm", room=outer + 8, tail=0.5)

    def histogram(self, top: float, groups: list[_Group], threshold: float | None, words: str) -> None:
        """Bars of the groups' shares over their scores, axes, and the threshold as a line through them."""
        bins = Bins([group.scores for group in groups], threshold)
        bottom = top + PLOT_HEIGHT
        peak = float(bins.shares.max()) * 1.06

        def x_of(score: float) -> float:
            return PLOT_LEFT + (score - bins.low) / (bins.high - bins.low) * (RIGHT - PLOT_LEFT)

        for tick in round_ticks(0, 100 * peak, 4):
            y = bottom - PLOT_HEIGHT * tick / (100 * peak)
            self.box(PLOT_LEFT, y - 0.5, RIGHT, y + 0.5, LINE)
            self.text(PLOT_LEFT - 8, y, f"{tick:.3g} %", 12, QUIET, anchor="rm")
        edges = [round(x_of(bins.low + place * bins.width) * SCALE) / SCALE for place in range(bins.count + 1)]
        for group, shares in zip(groups, bins.shares, strict=True):
            tops = bottom - PLOT_HEIGHT * shares / peak
            self._bars(edges, tops, bottom, group.colour)
        for group, shares in zip(groups, bins.shares, strict=True):
            self._outline(edges, bottom - PLOT_HEIGHT * shares / peak, bottom, group.colour)
        self.box(PLOT_LEFT, bottom - 0.5, RIGHT, bottom + 0.5, QUIET)
        ticks = round_ticks(bins.low, bins.high, 8)
        for tick, label in zip(ticks, tick_words(ticks), strict=True):
            self.box(x_of(tick) - 0.5, bottom, x_of(tick) + 0.5, bottom + 5, QUIET)
            self.text(x_of(tick), bottom + 16, label, 12, QUIET, anchor="mm")
        self.text((PLOT_LEFT + RIGHT) / 2, bottom + 42, "anomaly score: further right is worse", 13, QUIET, anchor="mm")
        left_out, right_out = bins.beyond
        if left_out:
            self.text(PLOT_LEFT, bottom + 42, f"first bar: {left_out:,} from beyond", 12, QUIET, anchor="lm")
        if right_out:
            self.text(RIGHT, bottom + 42, f"last bar: {right_out:,} from beyond", 12, QUIET, anchor="rm")
        if threshold is not None:
            self._threshold(x_of(threshold), top, bottom, words)

    def _bars(self, edges: list[float], tops: NDArray[np.float64], bottom: float, colour: Colour) -> None:
        sheet = Image.new("L", self.image.size, 0)
        draw = ImageDraw.Draw(sheet)
        for left, right, y in zip(edges[:-1], edges[1:], tops.tolist(), strict=True):
            if y < bottom and right > left:
                corners = left * SCALE, round(y * SCALE), right * SCALE - 1, bottom * SCALE
                draw.rectangle(corners, 115)
        self.image.paste(colour, mask=sheet)

    def _outline(self, edges: list[float], tops: NDArray[np.float64], bottom: float, colour: Colour) -> None:
        """The stairs over the bars; groups stay readable where they overlap."""
        heights = [bottom, *tops.tolist(), bottom]
        for place, (left, right) in enumerate(pairwise(edges)):
            before, here, after = heights[place : place + 3]
            if here < bottom:
                self.box(left, here, right, here + 1.5, colour)
            self.box(left, min(before, here), left + 1, max(before, here), colour)
            if place == len(edges) - 2:
                self.box(right - 1, min(here, after), right, max(here, after), colour)

    def _threshold(self, x: float, top: float, bottom: float, words: str) -> None:
        self.box(x - 1, top - 12, x + 1, bottom + 5, INK)
        length = self.length(words, 13)
        left = x - 1 if x + length < RIGHT else max(x + 1 - length, MARGIN)
        self.text(left, top - 22, words, 13, INK, anchor="lm")


def _thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """The picture as large as fits, its pixels kept square and sharp where it is enlarged."""
    pixels = np.asarray(pixels)
    if (
        pixels.dtype != np.uint8
        or pixels.ndim not in (2, 3)
        or pixels.shape[2:] not in ((), (1,), (3,))
        or not pixels.size
    ):
        raise InvalidInput(
            f"a picture to show is uint8 [h, w], [h, w, 1] or [h, w, 3], got {pixels.dtype} {pixels.shape}"
        )
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels).convert("RGB")
    size = THUMBNAIL * SCALE
    factor = size / max(image.size)
    width, height = (max(round(side * factor), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS)
