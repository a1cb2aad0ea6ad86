"""Images read and prepared ahead of whoever consumes them, in order and in bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from askew.errors import InvalidInput, UnreadableImage
from askew.images.decoding import Decoded
from askew.images.sizing import SizePolicy, prepare
from askew.images.sources import ImageSource

Result = TypeVar("Result")

_SPAN_BYTES = 4 * 2**20  # of prepared images, which is what waits in memory


@dataclass(frozen=True, slots=True)
class Unread:
    """Why an image could not be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive images: `images` is uint8 [b, side, side, channels], and row r is image `indexes[r]` of the source.

    `errors` and `notes` are pairs of an index into the source and a line about it.
    """

    indexes: list[int]
    images: NDArray[np.uint8]
    errors: list[tuple[int, str]]
    notes: list[tuple[int, str]]


def stream(
    source: ImageSource,
    policy: SizePolicy,
    *,
    batch: int = 64,
    workers: int = 2,
    indexes: Sequence[int] | None = None,
) -> Generator[Batch, None, None]:
    """Batches of prepared images in the source's order, `workers` threads reading ahead.

    However long the source, what waits is one batch and some 8 MiB of prepared images per worker. Closing the iterator
    stops the threads. An image that cannot be read becomes one of the batch's errors.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if workers < 0:
        raise InvalidInput(f"workers must be 0 or more, got {workers}")
    return _batches(source, policy, batch, workers, indexes)


def _batches(
    source: ImageSource, policy: SizePolicy, batch: int, workers: int, indexes: Sequence[int] | None
) -> Generator[Batch, None, None]:
    def prepared(decoded: Decoded) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        return prepare(decoded.pixels, policy), decoded.notes

    size = policy.side**2 * policy.channels
    with closing(read_ahead(source, prepared, workers=workers, indexes=indexes, image_bytes=size)) as outcomes:
        while taken := list(islice(outcomes, batch)):
            yield _batch(taken, policy)


def read_ahead(
    source: ImageSource,
    work: Callable[[Decoded], Result],
    *,
    workers: int,
    image_bytes: int,
    indexes: Sequence[int] | None = None,
) -> Generator[tuple[int, Result | Unread], None, None]:
    """Pairs of an index and what `work` makes of that image, in order.

    `work` may raise `UnreadableImage` too; its results take about `image_bytes` each.
    """
    order = range(len(source)) if indexes is None else [int(index) for index in indexes]

    def attempt(index: int) -> tuple[int, Result | Unread]:
        try:
            return index, work(source.read(index))
        except UnreadableImage as problem:
            return index, Unread(str(problem))  # the line alone: a kept traceback would keep the file's bytes

    if workers == 0 or source.in_memory:
        yield from map(attempt, order)
        return

    stopped = Event()

    def run(span: Sequence[int]) -> list[tuple[int, Result | Unread]]:
        return [attempt(index) for index in span if not stopped.is_set()]

    step = _span(len(order), workers, image_bytes)
    spans = (order[start : start + step] for start in range(0, len(order), step))
    pool = ThreadPoolExecutor(workers, thread_name_prefix="askew-images")
    try:
        pending: deque[Future[list[tuple[int, Result | Unread]]]] = deque(
            pool.submit(run, span) for span in islice(spans, 2 * workers)
        )
        while pending:
            outcomes = pending.popleft().result()
            pending.extend(pool.submit(run, span) for span in islice(spans, 1))
            yield from outcomes
    finally:
        # Also on a closed generator and on Ctrl-C: each thread finishes at most the image in its hands.
        stopped.set()
        pool.shutdown(cancel_futures=True)


def _span(count: int, workers: int, image_bytes: int) -> int:
    """How many images a thread takes at a time.

    Handing over costs as much as decoding a small image, so as many as the memory allows, while each thread still gets
    several turns.
    """
    return max(1, min(64, _SPAN_BYTES // image_bytes, count // (4 * workers)))


def _batch(outcomes: list[tuple[int, tuple[NDArray[np.uint8], tuple[str, ...]] | Unread]], policy: SizePolicy) -> Batch:
    good = [(index, *outcome) for index, outcome in outcomes if not isinstance(outcome, Unread)]
    images = np.empty((len(good), policy.side, policy.side, policy.channels), np.uint8)
    for row, (_, image, _) in enumerate(good):
        images[row] = image
    return Batch(
        indexes=[index for index, _, _ in good],
        images=images,
        errors=[(index, outcome.reason) for index, outcome in outcomes if isinstance(outcome, Unread)],
        notes=[(index, note) for index, _, notes in good for note in notes],
    )
