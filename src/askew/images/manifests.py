"""A table of image paths with their labels, splits and groups."""

import csv
import io
from pathlib import Path

from askew.errors import InvalidInput, NoImages, UnreadableImage
from askew.images.decoding import read_bytes
from askew.images.names import printable
from askew.images.sources import ImageSource, each_its_own, source_of_files

_COLUMNS = ("path", "label", "split", "group")


def source_of_manifest(manifest: str) -> ImageSource:
    """The images a CSV file lists, in its order.

    Its header names the column `path`, relative to the manifest, and may name `label`, `split` and `group`.
    """
    rows = csv.reader(io.StringIO(_text(manifest), newline=""), strict=True)
    table: dict[str, list[str]] = {}
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        if "path" not in header or len(set(header)) != len(header):
            raise InvalidInput(
                f"the first line of {printable(manifest)} must name the columns, one of them path, each once; "
                f"it reads {printable(','.join(header))[:80]!r}"
            )
        table = {name: [] for name in _COLUMNS if name in header}
        for row in rows:
            if not row:
                continue
            cells = dict(zip(header, row, strict=False))
            if len(row) != len(header) or not cells["path"]:
                raise InvalidInput(
                    f"line {rows.line_num} of {printable(manifest)} has {len(row)} cells, the header has {len(header)}"
                    if len(row) != len(header)
                    else f"line {rows.line_num} of {printable(manifest)} has no path"
                )
            for name, column in table.items():
                column.append(cells[name])
    except csv.Error as problem:
        raise InvalidInput(f"line {rows.line_num} of {printable(manifest)} is not CSV: {problem}") from problem
    if not table["path"]:
        raise NoImages(f"{printable(manifest)} lists no images")
    folder = Path(manifest).parent
    paths = [str(folder / path) for path in table["path"]]
    return source_of_files(
        paths,
        labels=table.get("label"),
        groups=each_its_own(table.get("group"), paths),
        splits=table.get("split"),
    )


def _text(manifest: str) -> str:
    try:
        content = read_bytes(manifest)
    except UnreadableImage as problem:
        raise InvalidInput(f"the manifest {printable(manifest)} cannot be read: {problem}") from problem
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        raise InvalidInput(f"line {line} of {printable(manifest)} is not UTF-8; save it as UTF-8") from problem
