"""A table as cells, and as text, Markdown, LaTeX or CSV. Notes and names may hold anything; it stays words."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from askew.errors import InvalidInput

GAP: Final = "-"


@dataclass(frozen=True)
class Cell:
    """Words, or a figure with its standard error; a gap where there is nothing to show."""

    text: str = GAP
    sem: str = ""
    better: bool = False  # than the printed figure

    def __str__(self) -> str:
        return f"{self.text} ± {self.sem}" if self.sem else self.text


@dataclass(frozen=True)
class Column:
    """What stands above cells; neighbours of one group stand under its title."""

    name: str
    group: str = ""
    words: bool = False
    has_sem: bool = False


@dataclass(frozen=True)
class Table:
    """Cells in rows under columns, the summary that ends them, and what must be said below; no text has line breaks."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    summary: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def render(self, format: Literal["text", "markdown", "latex", "csv"]) -> str:
        """The table in that format. CSV has the cells alone, standard errors in columns of their own, and no notes."""
        if format not in _RENDERERS:
            raise InvalidInput(f"there is no table format {format!r}; choose one of {', '.join(_RENDERERS)}")
        return _RENDERERS[format](self)

    @property
    def heads(self) -> tuple[str, ...]:
        """What stands above each column on one line: the first of a group carries its title."""
        before = ("", *(column.group for column in self.columns))
        return tuple(
            column.name if column.group == group else f"{column.group}: {column.name}"
            for column, group in zip(self.columns, before, strict=False)
        )

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups from left to right, and how many columns each has."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            count = spans.pop()[1] if spans and spans[-1][0] == column.group else 0
            spans.append((column.group, count + 1))
        return spans


def _text(table: Table) -> str:
    lined_up = [_lined_up(column, cells) for column, cells in _by_column(table)]
    titles, start = [], 0
    for title, count in table.groups:
        own = slice(start, start + count)
        room = sum(len(lines[0]) + 2 for lines in lined_up[own]) - 2
        # A title that is wider than its columns pushes the first of them to the right.
        lined_up[start] = [" " * max(len(title) - room, 0) + line for line in lined_up[start]]
        titles.append(title.ljust(room))
        start += count
    lines = ["  ".join(parts).rstrip() for parts in zip(*lined_up, strict=True)]
    rule = "-" * max(map(len, lines))
    body = [lines[0], rule, *lines[1 : len(table.rows) + 1]]
    if table.summary:
        body += [rule, *lines[len(table.rows) + 1 :]]
    heads = ["  ".join(titles).rstrip()] if any(title for title, _ in table.groups) else []
    return (
        "\n".join([table.title, "", *heads, *body, "", *_with_mark(table, "*: better than printed.")]).rstrip() + "\n"
    )


def _lined_up(column: Column, cells: Sequence[Cell]) -> list[str]:
    """The name and the cells in one width, figures under figures and errors under errors."""
    figures = [f"*{cell.text}" if cell.better else cell.text for cell in cells]
    errors = [f" ± {cell.sem}" if cell.sem else "" for cell in cells]
    if column.words:
        width = max(map(len, [column.name, *figures]))
        return [words.ljust(width) for words in [column.name, *figures]]
    room = [max(map(len, texts), default=0) for texts in (figures, errors)]
    lines = [figure.rjust(room[0]) + error.ljust(room[1]) for figure, error in zip(figures, errors, strict=True)]
    width = max(len(column.name), sum(room))
    return [line.rjust(width) for line in [column.name, *lines]]


def _by_column(table: Table) -> list[tuple[Column, list[Cell]]]:
    every = [*table.rows, *table.summary]
    return [(column, [row[place] for row in every]) for place, column in enumerate(table.columns)]


def _markdown(table: Table) -> str:
    lines = [[head.translate(_MARKDOWN) for head in table.heads], [":--" if c.words else "--:" for c in table.columns]]
    for row in (*table.rows, *table.summary):
        texts = [str(cell).translate(_MARKDOWN) for cell in row]
        lines.append([f"**{text}**" if cell.better else text for text, cell in zip(texts, row, strict=True)])
    notes = [f"- {note.translate(_MARKDOWN)}" for note in _with_mark(table, "bold: better than printed.")]
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"**{table.title.translate(_MARKDOWN)}**", "", *body, "", *notes]).rstrip() + "\n"


def _latex(table: Table) -> str:
    def cell(cell: Cell, column: Column) -> str:
        figure = not column.words and cell.text[:1] in ("+", "-") and cell.text != GAP
        text = f"${cell.text}$" if figure else cell.text.translate(_LATEX)
        text += rf" $\pm$ {cell.sem}" if cell.sem else ""
        return rf"\textbf{{{text}}}" if cell.better else text

    def line(parts: Iterable[str]) -> str:
        return f"{' & '.join(parts)} \\\\"

    def lines(rows: Iterable[Sequence[Cell]]) -> list[str]:
        return [line(map(cell, row, table.columns)) for row in rows]

    titles = [rf"\multicolumn{{{count}}}{{c}}{{{title.translate(_LATEX)}}}" for title, count in table.groups]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{table.title.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in table.columns)}}}",
            r"\hline",
            *([line(titles)] if any(title for title, _ in table.groups) else []),
            line(column.name.translate(_LATEX) for column in table.columns),
            r"\hline",
            *lines(table.rows),
            r"\hline",
            *([*lines(table.summary), r"\hline"] if table.summary else []),
            r"\end{tabular}",
            *(rf"\par {note.translate(_LATEX)}" for note in _with_mark(table, "bold: better than printed.")),
            r"\end{table}",
            "",
        ]
    )


def _csv(table: Table) -> str:
    rows: list[list[str]] = [[] for _ in range(1 + len(table.rows) + len(table.summary))]
    for column, cells in _by_column(table):
        name = f"{column.group}: {column.name}" if column.group else column.name
        texts = [_harmless(name), *(_harmless(cell.text) if column.words else cell.text for cell in cells)]
        errors = [f"{name} SEM", *(cell.sem or GAP for cell in cells)]
        for place, row in enumerate(rows):
            row += [texts[place], errors[place]] if column.has_sem else [texts[place]]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _harmless(words: str) -> str:
    """Words that a spreadsheet shows instead of running them."""
    return f"'{words}" if words.startswith(("=", "+", "-", "@")) and words != GAP else words


def _with_mark(table: Table, mark: str) -> list[str]:
    return [mark] * any(cell.better for row in (*table.rows, *table.summary) for cell in row) + [*table.notes]


_MARKDOWN = {ord(character): f"\\{character}" for character in "\\`*_[]<>|~#&"}
_LATEX = {ord(character): f"\\{character}" for character in "&%$#_{}"} | {
    ord("\\"): r"\textbackslash{}",
    ord("~"): r"\textasciitilde{}",
    ord("^"): r"\textasciicircum{}",
    ord("["): "{[}",  # after the end of a row, [ and * would belong to that
    ord("*"): "{*}",
    ord("<"): "$<$",
    ord(">"): "$>$",
    ord("±"): r"$\pm$",
}


_RENDERERS: dict[str, Callable[[Table], str]] = {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv}
