"""Reader of the CIFAR batches, which are pickles, without Python's unpickler.

A pickle is a program, and Python's unpickler runs it. This one only builds data: numbers, byte strings, lists, tuples,
dicts and arrays of bytes. It looks no name up and calls nothing. Three names are understood, those with which numpy
under Python 2 wrote an array; any other ends the reading, and so does every instruction such a file has no need of.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from askew.errors import BadFile
from askew.images import printable

_MOST_STEPS = 1_000_000  # CIFAR-100's training file takes about 300,000
_LONGEST_NAME = 100
_MOST_DIMENSIONS = 4


class _Name(Enum):
    """The three names an array is written with."""

    RECONSTRUCT = b"numpy.core.multiarray _reconstruct"
    ARRAY = b"numpy ndarray"
    DTYPE = b"numpy dtype"


_NAMES: Final = {name.value: name for name in _Name}


class _Array:
    """An array between its two instructions: made empty, then filled."""

    content: NDArray[np.uint8] | None = None


_BYTES: Final = object()  # the dtype of unsigned bytes, the only one there is


def unpickle(content: bytes, name: str) -> dict[bytes, Any]:
    """The dict that a CIFAR batch holds; Python 2's `str` as bytes, arrays as read-only uint8.

    `name` is what the file is called if it is refused, which is `BadFile`.
    """
    try:
        return _Machine(content).run()
    except (ValueError, LookupError, TypeError) as problem:
        reason = printable(str(problem)) if isinstance(problem, ValueError) else "is damaged"
        raise BadFile(f"{printable(name)}: {reason}; get it again from its publisher") from problem


class _Machine:
    """The stack, the memo and the position in one pickle.

    Nothing here recurses, so depth costs no more than length; nothing is set aside before the bytes for it are there.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> dict[bytes, Any]:
        for _ in range(_MOST_STEPS):
            code = self.take(1)
            if code == b".":
                return self.result()
            if code not in _STEPS:
                raise ValueError(f"holds the instruction {code!r}, which no CIFAR batch needs")
            _STEPS[code](self)
        raise ValueError(f"takes more than {_MOST_STEPS:,} steps, more than any CIFAR batch")

    def result(self) -> dict[bytes, Any]:
        result = self.pop()
        if type(result) is not dict:
            raise ValueError("holds no dict, so it is no CIFAR batch")
        return {key: value.content if isinstance(value, _Array) else value for key, value in result.items()}

    def take(self, count: int) -> bytes:
        taken = self.content[self.position : self.position + count]
        if len(taken) != count:
            raise ValueError("is cut short")
        self.position += count
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> bytes:
        end = self.content.find(b"\n", self.position, self.position + _LONGEST_NAME)
        if end < 0:
            raise ValueError("is damaged: a name has no end")
        return self.take(end - self.position + 1)[:-1]

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise ValueError("is damaged: it takes more than it has")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push_tuple(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def push_name(self) -> None:
        name = self.line() + b" " + self.line()
        if name not in _NAMES:
            raise ValueError(f"asks for {name.decode('latin-1')!r}, which no CIFAR batch needs and nobody should run")
        self.stack.append(_NAMES[name])

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("is damaged: it adds to what is no list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values) or not all(type(key) is bytes for key in keys):
            raise ValueError("is damaged: it puts what is no text and value into what is no dict")
        target.update(zip(keys, values, strict=True))

    def call(self) -> None:
        # The two calls a pickled array is made of; both only put a placeholder down.
        arguments, function = self.pop(), self.pop()
        match function, arguments:
            case _Name.RECONSTRUCT, (_Name.ARRAY, (0,), b"b"):
                self.stack.append(_Array())
            case _Name.DTYPE, (b"u1", int(), int()):
                self.stack.append(_BYTES)
            case _:
                raise ValueError("makes something else than an array of bytes, which no CIFAR batch does")

    def fill(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if target is _BYTES and type(state) is tuple:
            return  # byte order and alignment, which single bytes do not have
        match target, state:
            case _Array(content=None), (int(), tuple(shape), dtype, bool(by_column), bytes(values)) if dtype is _BYTES:
                if len(shape) > _MOST_DIMENSIONS or not all(type(length) is int and length > 0 for length in shape):
                    raise ValueError("is damaged: an array has no shape")
                if math.prod(shape) != len(values):
                    raise ValueError("is damaged: an array's shape is not that of its bytes")
                target.content = np.frombuffer(values, np.uint8).reshape(shape, order="F" if by_column else "C")
            case _:
                raise ValueError("fills something else than an array of bytes, which no CIFAR batch does")


# Instructions of protocols 0 to 2 that build data, by their codes.
_STEPS: Final[dict[bytes, Callable[[_Machine], object]]] = {
    b"\x80": lambda machine: machine.take(1),  # the protocol's number
    b"(": lambda machine: machine.marks.append(len(machine.stack)),
    b"}": lambda machine: machine.stack.append({}),
    b"]": lambda machine: machine.stack.append([]),
    b")": lambda machine: machine.stack.append(()),
    b"N": lambda machine: machine.stack.append(None),
    b"\x88": lambda machine: machine.stack.append(True),
    b"\x89": lambda machine: machine.stack.append(False),
    b"K": lambda machine: machine.stack.append(machine.number(1)),
    b"M": lambda machine: machine.stack.append(machine.number(2)),
    b"J": lambda machine: machine.stack.append(machine.number(4, signed=True)),
    b"U": lambda machine: machine.stack.append(machine.take(machine.number(1))),
    b"T": lambda machine: machine.stack.append(machine.take(machine.number(4))),
    b"\x85": lambda machine: machine.push_tuple(1),
    b"\x86": lambda machine: machine.push_tuple(2),
    b"\x87": lambda machine: machine.push_tuple(3),
    b"t": lambda machine: machine.stack.append(tuple(machine.since_mark())),
    b"a": lambda machine: machine.extend([machine.pop()]),
    b"e": lambda machine: machine.extend(machine.since_mark()),
    b"s": lambda machine: machine.update([machine.pop(), machine.pop()][::-1]),
    b"u": lambda machine: machine.update(machine.since_mark()),
    b"q": lambda machine: machine.memo.update({machine.number(1): machine.stack[-1]}),
    b"r": lambda machine: machine.memo.update({machine.number(4): machine.stack[-1]}),
    b"h": lambda machine: machine.stack.append(machine.memo[machine.number(1)]),
    b"j": lambda machine: machine.stack.append(machine.memo[machine.number(4)]),
    b"c": _Machine.push_name,
    b"R": _Machine.call,
    b"b": _Machine.fill,
}
