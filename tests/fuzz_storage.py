"""Reads damaged and forged files for a while: `python tests/fuzz_storage.py SECONDS [SEED]`.

Whatever the bytes, `storage.read` must raise a one-line `BadFile` that names the file, or return what was written. A
forged file carries a fresh checksum, as somebody who means harm would make it: then what comes back must be sound.
"""

import copy
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from askew import storage
from askew.errors import BadFile

NASTY = [
    None,
    True,
    0,
    -1,
    1,
    7,
    2**31,
    2**63,
    2**64,
    10**4000,
    1e308,
    -0.5,
    "",
    "model",
    "1",
    "2",
    "0",
    "F32",
    "BOOL",
    "BF16",
]
NASTY += [
    "{}",
    "[]",
    "null",
    '{"a":NaN}',
    '{"a":1e999}',
    "[" * 5000,
    '{"a":' * 5000,
    '{"a":1,"a":2}',
    '"\\ud800"',
    "\x1b[31m\n",
]
NASTY += [[], {}, [0], [0, 0], [-1, 3], [2**62, 2**62], [0, 2**63], [1] * 40, {"a": {}}, [[0]]]


def contents() -> list[tuple[dict[str, np.ndarray], dict[str, object]]]:
    generator = np.random.default_rng(0)
    every = {dtype.name: generator.integers(0, 2, (2, 3)).astype(dtype) for dtype in storage._CODES}
    return [
        ({}, {}),
        (
            {"w": generator.normal(size=(4, 5)).astype(np.float32), "b": np.float64(2.0)},
            {"a": [1, {"b": "ü"}], "r": 0.01},
        ),
        (every | {"empty": np.zeros((0, 3))}, {"name": "x" * 300, "nested": [[[[]]]]}),
    ]


def same(read, written) -> bool:
    tensors, document = read
    return (
        document == written[1]
        and tensors.keys() == written[0].keys()
        and all(
            tensors[name].dtype == np.asarray(value).dtype
            and tensors[name].shape == np.shape(value)
            and tensors[name].tobytes() == np.asarray(value).tobytes()
            for name, value in written[0].items()
        )
    )


def sound(read) -> bool:
    tensors, document = read
    json.dumps(document, allow_nan=False)
    for array in tensors.values():
        assert array.nbytes == len(array.tobytes())
        assert array.dtype != np.bool_ or set(array.view(np.uint8).ravel().tolist()) <= {0, 1}
    return isinstance(document, dict) and not math.isnan(len(tensors))


def damaged(blob: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them flipped, lost, doubled, moved or overwritten."""
    changed = bytearray(blob)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        # The start of the file decides most: aim there half of the time.
        at = rng.randrange(min(len(changed), 64) if rng.random() < 0.3 else len(changed)) if changed else 0
        match rng.randrange(8):
            case 0 | 1 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 2 if changed:
                changed[at] = rng.choice((0, 1, 0x22, 0x5C, 0x7B, 0x7D, 0xFF, rng.randrange(256)))
            case 3:
                del changed[at:]
            case 4:
                del changed[at : at + rng.randrange(1, 20)]
            case 5:
                changed[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 6:
                changed[at:at] = changed[at : at + rng.randrange(1, 60)]
            case 7:
                changed[:8] = rng.choice((rng.randrange(len(changed) + 20), 2**24, 2**40, 2**63)).to_bytes(8, "little")
    return bytes(changed)


def forged(blob: bytes, rng: random.Random) -> bytes:
    """A header with some of its values replaced, and mostly with a checksum that fits again."""
    length = int.from_bytes(blob[:8], "little")
    header, body = json.loads(blob[8 : 8 + length]), bytearray(blob[8 + length :])
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = header
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
                place = place[key]
                continue
            if rng.random() < 0.15:
                del place[key]
            else:
                place[key] = copy.deepcopy(rng.choice(NASTY))
            break
        if not header:
            break
    if rng.random() < 0.5 and body:
        body[rng.randrange(len(body))] = rng.randrange(256)
    if rng.random() < 0.9:
        try:
            metadata = header["__metadata__"]
            described = {
                name: np.frombuffer(body[slice(*entry["data_offsets"])], storage._DTYPES[entry["dtype"]]).reshape(
                    entry["shape"]
                )
                for name, entry in header.items()
                if name != "__metadata__"
            }
            metadata["sha256"] = storage._digest("model", metadata["document"], described)
        except (KeyError, ValueError, TypeError, IndexError, OverflowError):
            pass
    sys.set_int_max_str_digits(10**5)
    head = json.dumps(header).encode()
    sys.set_int_max_str_digits(4300)
    return len(head).to_bytes(8, "little") + head + body


def fuzz(seconds: float, seed: int) -> Counter[str]:
    """How each attempt ended; raises on the first one that ended badly, after keeping its bytes."""
    rng, outcomes = random.Random(seed), Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.safetensors"
        originals = []
        for tensors, document in contents():
            storage.write(path, kind="model", tensors=tensors, document=document)
            originals.append((path.read_bytes(), (tensors, document)))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            blob, written = rng.choice(originals)
            how = rng.choice(("damaged", "damaged", "forged", "random"))
            data = {"damaged": damaged, "forged": forged, "random": lambda b, r: r.randbytes(r.randrange(200))}[how](
                blob, rng
            )
            path.write_bytes(data)
            try:
                read = storage.read(path, kind="model")
                assert sound(read) if how == "forged" else same(read, written)
                outcomes[f"{how}, read"] += 1
            except BadFile as error:
                message = str(error)
                assert message.startswith(f"{path}: "), message
                assert message.isprintable(), ascii(message)
                assert len(message) < len(str(path)) + 300, message
                outcomes[f"{how}, refused"] += 1
            except BaseException:
                kept = Path(tempfile.gettempdir()) / "fuzz_storage_failure.safetensors"
                kept.write_bytes(data)
                print(f"seed {seed}, after {outcomes.total():,} files; the bytes are in {kept}", file=sys.stderr)
                raise
    return outcomes


if __name__ == "__main__":
    found = fuzz(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns())
    print(f"{found.total():,} files:", ", ".join(f"{count:,} {how}" for how, count in sorted(found.items())))
