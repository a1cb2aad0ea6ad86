"""Writes the tables of docs/results.md anew, from the committed ledger; the words around them stay as they are.

A table stands between `<!-- tables: RECIPE -->` and `<!-- end of tables -->`. With --check nothing is written.
"""

import re
import sys
from pathlib import Path

from askew.cli.bench.table import rows_of, tables
from askew.evaluation.recipes import recipe

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "results.md"
LEDGER = DOCS.parent / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- tables: (\S+) -->\n).*?(<!-- end of tables -->\n)", re.DOTALL)


def made(place: re.Match[str]) -> str:
    """The marks and, between them, the tables of the recipe they name."""
    begin, name, end = place.groups()
    chosen = recipe(name)
    shown = "\n".join(table.render("markdown") for table in tables(chosen, rows_of(chosen, LEDGER)))
    return f"{begin}\n{shown}\n{end}"


if __name__ == "__main__":
    page = PAGE.read_text()
    text = PLACE.sub(made, page)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif text != page:
        sys.exit(f"{PAGE.name} is not what the ledger says: run `make docs`")
