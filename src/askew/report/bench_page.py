"""One HTML page of benchmark results: tables, each class beside the printed figure, curves, scores, images, cost.

The page is one file: it loads nothing, runs nothing, and its Content-Security-Policy says so. This module sorts plain
values into what `bench_page.html` draws; Jinja escapes every word of them.
"""

import base64
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any, Final, TypeVar

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from PIL import Image

from askew.errors import InvalidInput
from askew.report import charts
from askew.report.axis import number
from askew.report.picture import Example
from askew.report.views import RunView, TableView

__all__ = ["RunView", "TableView", "bench_page"]

STYLES: Final = 8
"""How many groups differ in colour, dash and mark; `bench_page.css` has as many."""
THUMBNAIL: Final = 96
"""The longer side of an image in the page; smaller images stay as they are."""
SHORT: Final = 16
"""Words of up to so many letters stay on one line of a table: none is broken at its hyphen."""
LONG: Final = 32
"""Words of more letters get a wider column."""
_GAPS: Final = frozenset({"-", "\N{EN DASH}", "\N{EM DASH}"})
_NUMBER: Final = re.compile(r"[+\-\N{MINUS SIGN}]?[\d,]*\d(\.\d+)?")

Item = TypeVar("Item")
Key = TypeVar("Key")
Built = TypeVar("Built")
Drawn = dict[str, Any]  # what the template draws: words, places and paths


def bench_page(
    title: str,
    tables: Sequence[TableView] = (),
    runs: Sequence[RunView] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    """A page of HTML: the facts at its head, then a section for each kind of evidence there is."""
    styles = {group: index % STYLES for index, group in enumerate(dict.fromkeys(run.group for run in runs))}
    done = [run for run in runs if run.auroc is not None]
    scored = [run for run in done if run.anomaly_scores is not None]
    css = _source("bench_page.css")
    return _template().render(
        title=title,
        facts=facts or {},
        css=css,
        css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
        datasets=list(dict.fromkeys(run.dataset for run in runs)),
        done=len(done),
        failed=sum(bool(run.reason) for run in runs),
        curved={group: style for group, style in styles.items() if any(run.group == group for run in scored)},
        tables=[_table(view) for view in tables],
        bars=_by_dataset(runs, lambda some: _bars(some, styles)),
        whiskers=any(len(same) > 1 for same in _by(done, lambda run: (run.dataset, run.group, run.name))),
        rocs=_by_dataset(runs, lambda some: _rocs(some, styles)),
        histograms=_by_dataset(scored, lambda some: _by_group(some, _histogram)),
        costs=_by_dataset(runs, lambda some: _cost(some, styles)),
        galleries=_by_dataset([run for run in runs if run.most_normal or run.least_normal], _galleries),
    )


def _source(name: str) -> str:
    return resources.files("askew.report").joinpath(name).read_text("utf-8")


@cache
def _template() -> Template:
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"percent": _percent, "points": _points, "count": _count}
    return jinja.from_string(_source("bench_page.html"))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _points(difference: float) -> str:
    """A difference of shares as people write it, with a sign unless it rounds to nothing."""
    words = f"{100 * difference:+.1f}"
    return "0.0" if words[1:] == "0.0" else charts.minus(words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def _by(items: Iterable[Item], key: Callable[[Item], Key]) -> list[list[Item]]:
    """The items in lists of one key each, in the order in which the keys come first."""
    lists: dict[Key, list[Item]] = {}
    for item in items:
        lists.setdefault(key(item), []).append(item)
    return list(lists.values())


def _by_dataset(runs: Iterable[RunView], built: Callable[[list[RunView]], Built]) -> list[tuple[str, Built]]:
    """What is built of each data set's runs; a data set of which nothing is built is left out."""
    built_of_each = [(some[0].dataset, built(some)) for some in _by(runs, lambda run: run.dataset)]
    return [(dataset, drawn) for dataset, drawn in built_of_each if drawn]


def _by_group(runs: Iterable[RunView], drawn: Callable[[RunView, str], Drawn]) -> list[tuple[str, list[Drawn]]]:
    """What is drawn of each run, group by group; a class with several seeds is named with its seed."""
    groups = []
    for some in _by(runs, lambda run: run.group):
        of_a_class = {same[0].name: len(same) for same in _by(some, lambda run: run.name)}
        names = [f"{run.name}, seed {run.seed}" if of_a_class[run.name] > 1 else run.name for run in some]
        groups.append((some[0].group, [drawn(run, name) for run, name in zip(some, names, strict=True)]))
    return groups


def _table(view: TableView) -> Drawn:
    """The table's cells; in a column of numbers each is split after its number, so that the numbers stand in line."""
    columns = [[row[place].strip() for row in view.rows] for place in range(len(view.header))]
    numeric = [
        place > 0 and all(not cell or cell in _GAPS or _NUMBER.match(cell) for cell in column)
        for place, column in enumerate(columns)
    ]
    drawn = []
    for place, column in enumerate(columns):
        split = [_split(cell) if numeric[place] else (cell, "") for cell in column]
        longest = max((tail for _, tail in split), key=len, default="")
        drawn.append(
            [
                {
                    "number": number,
                    "tail": tail,
                    "room": longest[len(tail) :],
                    "gap": place > 0 and number in _GAPS,
                    "bold": (index, place) in view.bold,
                    "numeric": numeric[place],
                    "length": "short" if len(number) <= SHORT else "long" if len(number) > LONG else "",
                }
                for index, (number, tail) in enumerate(split)
            ]
        )
    return {
        "title": view.title,
        "groups": view.groups,
        "header": list(zip(view.header, numeric, strict=True)),
        "rows": [(index in view.averages, cells) for index, cells in enumerate(zip(*drawn, strict=True))],
        "notes": view.notes,
        "bold": bool(view.bold),
        "gaps": any(cell["gap"] for column in drawn for cell in column),
    }


def _split(cell: str) -> tuple[str, str]:
    """The number a cell begins with, and what follows it: 88.1 and ` ± 0.3`."""
    number = _NUMBER.match(cell)
    return (charts.minus(cell[: number.end()]), cell[number.end() :]) if number else (cell, "")


def _bars(runs: list[RunView], styles: Mapping[str, int]) -> Drawn:
    """A panel for each group: a bar and the printed figure for each class, and the means of the classes with both."""
    figures = [figure for run in runs for figure in (run.auroc, run.printed) if figure is not None]
    scale = charts.Scale.over([0.5, *figures])
    panels = []
    for some in _by(runs, lambda run: run.group):
        rows = [_bar(same, scale) for same in _by(some, lambda run: run.name)]
        both = [(row["ours"], row["printed"]) for row in rows if row["difference"] is not None]
        mean = _compared(*map(fmean, zip(*both, strict=True))) if both else None
        panels.append(
            {
                "group": some[0].group,
                "style": styles[some[0].group],
                "rows": rows,
                "mean": mean,
                "averaged": len(both),
                "hindsight": any(run.printed_with_hindsight for run in some),
                "failed": [run for run in some if run.reason],
            }
        )
    return {"ticks": scale.ticks(5), "guess": scale.place(0.5), "panels": panels}


def _mean(runs: Iterable[RunView]) -> float | None:
    """The mean AUROC of those that were run."""
    found = [run.auroc for run in runs if run.auroc is not None]
    return fmean(found) if found else None


def _compared(ours: float | None, printed: float | None) -> Drawn:
    """Both figures, and their difference as a reader works it out from the tenths of a percent that are shown."""
    difference = None if ours is None or printed is None else round(round(ours, 3) - round(printed, 3), 3)
    return {"ours": ours, "printed": printed, "difference": difference}


def _bar(same: list[RunView], scale: charts.Scale) -> Drawn:
    """One class in one group: the mean of its seeds, from where guessing lies, and what was printed."""
    found = [run.auroc for run in same if run.auroc is not None]
    printed = next((run.printed for run in same if run.printed is not None), None)
    ours = _mean(same)
    start, end = sorted((scale.place(0.5), scale.place(0.5 if ours is None else ours)))
    return {
        "name": same[0].name,
        "failed": any(run.reason for run in same),
        **_compared(ours, printed),
        "left": start,
        "width": round(end - start, 2),
        "printed_at": None if printed is None else scale.place(printed),
        "whisker": [scale.place(min(found)), scale.place(max(found))] if len(found) > 1 else None,
    }


def _rocs(runs: list[RunView], styles: Mapping[str, int]) -> list[Drawn]:
    """A panel for each class with scores: its curves, and the mean AUROC of each group that has a curve somewhere."""
    scored = [run for run in runs if run.auroc is not None and run.anomaly_scores is not None]
    groups = list(dict.fromkeys(run.group for run in scored))
    panels = []
    for name in dict.fromkeys(run.name for run in runs):
        same = [run for run in scored if run.name == name]
        aurocs = [
            {"group": group, "style": styles[group], "auroc": _mean([run for run in same if run.group == group])}
            for group in groups
        ]
        if same:
            curves = [_curve(run, styles[run.group]) for run in same]
            panels.append({"name": name, "curves": curves, "aurocs": aurocs})
    return panels


def _curve(run: RunView, style: int) -> Drawn:
    curve = charts.thinned(charts.roc_curve(*run.groups()))
    mark = None if run.threshold is None else charts.place(*_realised(run, run.threshold))
    return {"style": style, "path": charts.line(curve), "threshold": mark}


def _realised(run: RunView, threshold: float) -> tuple[float, float]:
    """The share of false alarms and of anomalies found at the threshold."""
    normal, other = run.groups()
    return float((normal > threshold).mean()), float((other > threshold).mean())


def _histogram(run: RunView, name: str) -> Drawn:
    return {
        "name": name,
        "auroc": run.auroc,
        "chart": charts.histogram(run.groups(), run.threshold),
        "realised": None if run.threshold is None else _realised(run, run.threshold),
    }


def _cost(runs: list[RunView], styles: Mapping[str, int]) -> Drawn | None:
    """Every run's place by cost and AUROC, and the means of its group as a table; None where no cost is known."""
    known = [(run, run.macs, run.auroc) for run in runs if run.macs and run.auroc is not None]
    if not known:
        return None
    axes = charts.cost_axes([macs for _, macs, _ in known], [auroc for _, _, auroc in known])
    marks = [
        {"at": at, "style": styles[run.group], "words": f"{run.name}, {run.group}, seed {run.seed}", "auroc": auroc}
        for (run, _, auroc), at in zip(known, axes.points, strict=True)
    ]
    groups = [
        {
            "group": some[0][0].group,
            "style": styles[some[0][0].group],
            "runs": len(some),
            "auroc": fmean(auroc for _, _, auroc in some),
            "macs": charts.powers_of_ten(fmean(macs for _, macs, _ in some)),
        }
        for some in _by(known, lambda each: each[0].group)
    ]
    return {"axes": axes, "marks": marks, "groups": groups}


def _galleries(runs: list[RunView]) -> list[tuple[str, list[Drawn]]]:
    return _by_group(
        runs,
        lambda run, name: {
            "name": name,
            "strips": [
                (heading, [_shown(example) for example in examples])
                for heading, examples in (("Most normal", run.most_normal), ("Least normal", run.least_normal))
                if examples
            ],
        },
    )


def _shown(example: Example) -> Drawn:
    """An image as it stands in the page, with its label and what is true of it."""
    pixels = np.asarray(example.pixels)
    if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (1,), (3,)) or pixels.ndim < 2 or not pixels.size:
        raise InvalidInput(
            f"an image to show is uint8 [h, w], [h, w, 1] or [h, w, 3], got {pixels.dtype} {pixels.shape}"
        )
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return {
        "png": base64.b64encode(stream.getvalue()).decode(),
        "width": image.width,
        "height": image.height,
        "name": example.name,
        "score": number(example.anomaly_score),
        "is_normal": example.is_normal,
    }
