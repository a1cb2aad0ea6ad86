"""Everything askew raises on purpose.

    AskewError
    ├── InvalidInput        an argument or a set of images that cannot be used     (also a ValueError)
    │   ├── NoImages        nothing to work on, or nothing readable
    │   └── UnreachableRate a false-alarm rate the held-out images cannot support
    ├── UnreadableImage     one image; in a batch it becomes a row with the reason
    ├── BadFile             a model or checkpoint that is truncated, tampered with, foreign or from the future
    ├── NoThreshold         a verdict was asked of a detector that has none yet
    ├── Diverged            training produced numbers that are not finite
    ├── Collapsed           training produced a detector that takes all images for the same
    └── MissingExtra        a package that this step needs is not installed        (also an ImportError)

The first sentence of a message says what is wrong and what was given, the rest what to do. The command line prints the
message on one line and exits with 2; anything that is not an `AskewError` is a bug and shows its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class AskewError(Exception):
    """The root of what is raised on purpose."""


class InvalidInput(AskewError, ValueError):
    """An argument or a set of images that cannot be used."""


class NoImages(InvalidInput):
    """Nothing to work on, or nothing readable."""


class UnreachableRate(InvalidInput):
    """A false-alarm rate that the held-out images cannot support."""


class UnreadableImage(AskewError):
    """One image that cannot be used; its message is the reason."""


class BadFile(AskewError):
    """A model or checkpoint file that cannot be trusted or understood."""


class NoThreshold(AskewError):
    """A verdict was asked of a detector that has no threshold."""


class Diverged(AskewError):
    """Training produced numbers that are not finite."""


class Collapsed(AskewError):
    """Training produced a detector that takes all images for the same, in one of the ways its method is known for."""


class MissingExtra(AskewError, ImportError):
    """A package that this step needs is not installed."""


@contextmanager
def extra_for(steps: str) -> Iterator[None]:
    """A block that imports what only the extra `fit` brings; without it, one line says which steps need it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "scipy", "sklearn"):
            raise
        raise MissingExtra(f"{steps} need {package}: pip install 'askew[fit]'") from error
