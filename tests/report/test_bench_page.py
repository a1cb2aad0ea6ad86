import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from askew.errors import InvalidInput
from askew.report import charts
from askew.report.bench_page import STYLES, RunView, TableView, _source, bench_page
from askew.report.picture import Example

HOSTILE = """</style></title><script>alert("&'1")</script><img src=x onerror=alert(1)>"""
DASH = "\N{EN DASH}"
ALONE = {"meta", "img", "br"}
TABLE = TableView(
    "Table 1",
    ("Class", "Ours", "Paper", "Difference"),
    (("dog", "88.1 ± 0.3", "87.8", "+0.3"), ("cat", "-", "72.4", "-0.2"), ("average", "88.1", "80.1", "-")),
    bold=frozenset({(0, 1)}),
    averages=frozenset({2}),
    notes=("One seed.",),
)


class Page(HTMLParser):
    """Every element of a page with its attributes, its text, and the elements that it lies in."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), f"twice the same attribute: {attributes}"
        self.elements.append((tag, dict(attributes)))
        if tag not in ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, words):
        if "style" not in self.open:
            self.words.append(words)

    def all(self, tag, **wanted):
        """The attributes of the elements of that kind; `class_` is one of their classes."""
        name = wanted.pop("class_", None)
        return [
            found
            for kind, found in self.elements
            if kind == tag
            and (name is None or name in (found.get("class") or "").split())
            and all(found.get(key) == value for key, value in wanted.items())
        ]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def scores(auroc_shift=1.5, normals=60, others=240, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(normals + others) < normals
    return rng.normal(size=len(truth)) + np.where(truth, 0, auroc_shift), truth


def example(is_normal=True, name="dog", side=32):
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Example(pixels, 1.5, name, is_normal)


def run(name="dog", group="geometric, fast", seed=0, auroc=0.85, **more):
    drawn, truth = scores(seed=seed)
    given = {"printed": 0.878, "macs": 2e13, "anomaly_scores": drawn, "is_normal": truth, "threshold": 2.2} | more
    return RunView(name, group, given.pop("dataset", "CIFAR-10"), seed, auroc, **given)


def gap(name, group, printed=0.7):
    return RunView(name, group, "CIFAR-10", 0, None, printed)


def full_page():
    pictures = {"most_normal": (example(),) * 3, "least_normal": (example(False, "cat"),) * 3}
    runs = [run("dog", **pictures), run("dog", seed=1), gap("cat", "geometric, fast"), run("cat", "ocsvm", **pictures)]
    runs.append(run("boot", dataset="Fashion-MNIST"))
    return bench_page("Results", [TABLE], runs, {"Commit": "1f2e3d4"})


def test_every_kind_of_evidence_has_its_section_and_a_link_to_it():
    page = Page(full_page())
    ids = [found["id"] for found in page.all("section")]
    assert ids == ["tables", "classes", "roc", "scores", "images", "cost"]
    assert [found["href"] for found in page.all("a")] == [f"#{name}" for name in ids]
    assert "Commit 1f2e3d4" in page.text
    assert "4 runs on CIFAR-10 and Fashion-MNIST. In each" in page.text


def test_the_page_needs_nothing_from_elsewhere_and_its_policy_says_so():
    html = full_page()
    page = Page(html)
    (policy,) = (found["content"] for found in page.all("meta") if "http-equiv" in found)
    sheet = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert policy.split("; ")[:3] == ["default-src 'none'", "img-src data:", f"style-src 'sha256-{digest}'"]
    outside = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", html)
    assert not re.search(r"https?:|//|url\(|@import|javascript:", outside)
    for tag, attributes in page.elements:
        assert tag not in {"script", "link", "iframe", "object", "form", "base"}
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        for name in {"src", "href", "xlink:href", "srcset", "action"} & set(attributes):
            assert attributes[name].startswith(("#", "data:image/png;base64,"))


def test_every_reference_inside_the_page_has_its_target():
    page = Page(full_page())
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    assert {found["href"][1:] for tag, found in page.elements if tag in ("a", "use")} <= set(ids)


def test_no_word_that_was_given_becomes_markup():
    table = TableView(HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE),), frozenset({(0, 1)}), notes=(HOSTILE,))
    shown = example(False, HOSTILE)
    hostile = run(HOSTILE, HOSTILE, dataset=HOSTILE, most_normal=(shown,), least_normal=(shown,))
    html = bench_page(HOSTILE, [table], [hostile, run()], {HOSTILE: HOSTILE})
    page = Page(html)
    assert not page.all("script")
    assert "alert(" in page.text
    assert not any("onerror" in found for _, found in page.elements)
    assert html.count("</style>") == 1


def test_a_table_has_a_caption_headers_with_scope_bold_and_gaps():
    html = bench_page("Results", [TABLE])
    page = Page(html)
    assert len(page.all("caption")) == 1
    assert [found["scope"] for found in page.all("th")] == ["col"] * 4 + ["row"] * 3
    assert html.count("<strong>88.1 ± 0.3</strong>") == 1
    assert html.count('class="hidden">not run</span>') == 2
    assert "\N{MINUS SIGN}0.2" in page.text
    assert len(page.all("tr", class_="average")) == 1
    assert "One seed." in page.text
    # Numbers stand in line: the ones without a spread leave as much room.
    assert html.count('<span class="same-width" aria-hidden="true"> ± 0.3</span>') == 2


def test_numbers_stand_in_line_whatever_the_length_of_their_spreads():
    table = TableView("t", ("Class", "Ours"), (("a", "88.1 ± 0.3"), ("b", "70.0 ± 14.2"), ("c", "90.0")))
    page = bench_page("Results", [table])
    tails = re.findall(
        r"<td class=\"number\">[\d.]+([^<]*)(?:<span class=\"same-width\" aria-hidden=\"true\">(.*?)</span>)?", page
    )
    assert {len(tail) + len(room) for tail, room in tails} == {len(" ± 14.2")}


def test_words_in_a_narrow_table_stay_whole():
    sheet = re.sub(r"/\*.*?\*/", "", _source("bench_page.css"), flags=re.DOTALL)
    # Where any letter may begin a line, a column of a wide table is as narrow as a letter.
    anywhere = " ".join(re.findall(r"([^{}]+)\{[^{}]*overflow-wrap: anywhere", sheet))
    assert anywhere
    assert not re.search(r"\b(td|th|table)\b|\.(data|bars)\b|\*", anywhere)
    assert re.search(r"th, td \{ overflow-wrap: break-word; \}", sheet)
    assert re.search(r"\.data th, \.data td \{[^}]*max-width", sheet)
    table = TableView("t", ("Runs", "Class"), (("geometric, fast, 20 % held out", "T-shirt"), ("a" * 33, "b" * 17)))
    page = Page(bench_page("Results", [table]))
    assert len(page.all("td", class_="short")) == 1
    assert len(page.all("th", class_="long")) == 1


def test_a_column_of_words_is_left_as_it_is():
    html = bench_page("Results", [TableView("t", ("Run", "Status"), (("a", "1 failed"), ("b", "running"), ("c", "-")))])
    page = Page(html)
    assert not page.all("td", class_="number")
    assert not page.all("span", class_="same-width")
    assert "1 failed" in page.text


def test_titles_stand_above_the_columns_they_span_and_blank_cells_stay_blank():
    table = TableView(
        "t", ("Class", "ours", "n"), (("dog", "88.1", "2"), ("mean", "88.1", "")), groups=(("", 1), ("a", 2))
    )
    page = Page(bench_page("Results", [table]))
    (title,) = page.all("th", class_="group")
    assert (title["scope"], title["colspan"]) == ("colgroup", "2")
    assert len(page.all("td", class_="number")) == 4
    assert not page.all("span", class_="gap")


def test_a_table_of_another_width_than_its_header_is_refused():
    with pytest.raises(InvalidInput, match="got 1 cells for 2"):
        TableView("t", ("a", "b"), (("x",),))
    with pytest.raises(InvalidInput, match="groups span all columns"):
        TableView("t", ("a", "b"), (), groups=(("g", 1),))


def test_each_class_stands_beside_the_printed_figure_and_gaps_show_as_dashes():
    runs = [run("dog", auroc=0.9, printed=0.878), gap("cat", "geometric, fast", 0.724)]
    page = Page(bench_page("Results", [], runs))
    assert "dog 90.0 87.8 +2.2" in page.text
    assert f"cat {DASH} not run 72.4 {DASH}" in page.text
    assert "Mean of 1 class with both 90.0 87.8 +2.2" in page.text
    assert len(page.all("rect", class_="bar")) == 1
    assert len(page.all("use", class_="printed")) == 2


def test_a_difference_is_that_of_the_figures_as_they_stand():
    runs = [run(name, auroc=0.9404, printed=printed) for name, printed in (("a", 0.935), ("b", 0.936), ("c", 0.936))]
    text = Page(bench_page("Results", [], runs)).text
    assert "a 94.0 93.5 +0.5 b 94.0 93.6 +0.4" in text
    assert "Mean of 3 classes with both 94.0 93.6 +0.4" in text


def test_a_run_that_failed_is_a_gap_and_its_reason_stands_below():
    failed = {"auroc": None, "anomaly_scores": None, "macs": None, "threshold": None}
    runs = [
        run("dog"),
        run("dog", seed=1, reason="Diverged: at step 9", **failed),
        run("cat", reason=f"{HOSTILE} " + "x " * 300, **failed),
        run("cat", "ocsvm", reason="none", **failed),
    ]
    html = bench_page("Results", [], runs)
    page = Page(html)
    assert "1 run on CIFAR-10; 3 more failed." in page.text
    assert f"dog 85.0 87.8 \N{MINUS SIGN}2.8 cat failed 87.8 {DASH}" in page.text
    assert "failed: dog, seed 1: Diverged: at step 9" in page.text
    assert "x x x..." in page.text
    assert not page.all("script")
    # Nothing of a group is drawn: the legend of the curves has no place for it.
    assert len(page.all("ul", class_="legend")) == 2
    assert "ocsvm" not in html[html.index('id="roc"') :]


def test_figures_that_were_printed_with_hindsight_say_so():
    page = Page(bench_page("Results", [], [run(), run(group="ocsvm", printed_with_hindsight=True)]))
    assert page.text.count("ours printed diff.") == 1
    assert page.text.count("ours printed (hindsight) diff.") == 1
    assert page.text.count("test labels chose") == 1


def test_bars_start_where_guessing_lies():
    bars = Page(bench_page("Results", [], [run("a", auroc=0.75), run("b", auroc=0.4)])).all("rect", class_="bar")
    starts_and_ends = [(float(bar["x"][:-1]), float(bar["x"][:-1]) + float(bar["width"][:-1])) for bar in bars]
    guess = 100 * (0.5 - 0.4) / 0.6
    assert starts_and_ends[0] == pytest.approx((guess, 100 * (0.75 - 0.4) / 0.6), abs=0.02)
    assert starts_and_ends[1] == pytest.approx((0, guess), abs=0.02)


def test_seeds_are_averaged_and_their_range_drawn():
    page = Page(bench_page("Results", [], [run(seed=0, auroc=0.8), run(seed=1, auroc=0.9)]))
    assert "dog 85.0 87.8 \N{MINUS SIGN}2.8" in page.text
    (whisker,) = page.all("line", class_="whisker")
    assert (whisker["x1"], whisker["x2"]) == ("60.0%", "80.0%")
    assert "dog, seed 1" in page.text


def test_classes_keep_their_order_where_the_first_group_has_a_gap():
    runs = [gap("frog", "a"), run("horse", "a"), run("frog", "b"), run("horse", "b")]
    labels = [found["aria-label"] for found in Page(bench_page("Results", [], runs)).all("svg", role="img")]
    assert [label.split(",")[0] for label in labels if label.startswith("ROC")] == [
        "ROC curves of frog",
        "ROC curves of horse",
    ]


def area(curve):
    return float(np.sum(np.diff(curve[:, 0]) * (curve[1:, 1] + curve[:-1, 1])) / 2)


def slow_area(normal, other):
    """The chance that an anomaly scores above a normal image, pair by pair."""
    difference = other[:, None] - normal[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


@given(
    seed=st.integers(0, 10_000),
    normals=st.integers(1, 600),
    others=st.integers(1, 900),
    shift=st.floats(-1, 4),
    decimals=st.integers(0, 6),
)
@settings(max_examples=40, deadline=None)
def test_a_thinned_curve_keeps_its_area_and_stays_a_curve(seed, normals, others, shift, decimals):
    rng = np.random.default_rng(seed)
    normal, other = rng.normal(size=normals).round(decimals), rng.normal(shift, size=others).round(decimals)
    curve = charts.roc_curve(normal, other)
    thin = charts.thinned(curve)
    assert area(curve) == pytest.approx(slow_area(normal, other), abs=1e-9)
    assert area(thin) == pytest.approx(area(curve), abs=1e-3)
    assert len(thin) == min(len(curve), charts.VERTICES)
    assert thin[0].tolist() == [0, 0]
    assert thin[-1].tolist() == [1, 1]
    assert (np.diff(thin, axis=0) >= 0).all()


@pytest.mark.parametrize("bend", [0.0, 0.001, 0.03])
@pytest.mark.parametrize("steps", [99, 101, 161, 400, 2000])
def test_stairs_keep_their_area_when_thinned(steps, bend):
    # The worst case: where corners stick out a little more than they lie in, dropping only the lesser ones would show.
    widths = np.exp(bend * np.arange(steps) / 2)
    treads = np.zeros((2 * steps, 2))
    treads[0::2, 1], treads[1::2, 0] = 1 / widths / (1 / widths).sum(), widths / widths.sum()
    curve = np.concatenate([np.zeros((1, 2)), np.cumsum(treads, axis=0)])
    thin = charts.thinned(curve)
    assert len(thin) == min(len(curve), charts.VERTICES)
    assert area(thin) == pytest.approx(area(curve), abs=1e-3)


def test_a_perfect_and_a_useless_detector_have_exact_curves():
    ones, zeros = np.ones(5), np.zeros(7)
    assert charts.roc_curve(zeros, ones).tolist() == [[0, 0], [0, 1], [1, 1]]
    assert charts.roc_curve(ones, ones).tolist() == [[0, 0], [1, 1]]


def test_the_drawn_curve_has_the_area_of_the_scores():
    drawn, truth = scores(normals=1000, others=9000)
    html = bench_page("Results", [], [run(anomaly_scores=drawn, is_normal=truth)])
    (path,) = (found["d"] for found in Page(html).all("path", class_="curve"))
    places = np.array([point.split() for point in path[1:].split("L")], dtype=float) / charts.SIDE
    assert len(places) <= charts.VERTICES
    drawn_area = area(np.stack([places[:, 0], 1 - places[:, 1]], axis=1))
    assert drawn_area == pytest.approx(slow_area(drawn[truth], drawn[~truth]), abs=1e-3)


def test_what_the_threshold_does_is_marked_on_the_curve_and_told():
    drawn = np.array([0.0, 1, 2, 3, 2, 3, 4, 5])
    page = Page(bench_page("Results", [], [run(anomaly_scores=drawn, is_normal=np.arange(8) < 4, threshold=2.5)]))
    assert "75.0 % found, 25.0 % false alarms" in page.text
    marks = [(found["x"], found["y"]) for found in page.all("use", class_="mark", href="#mark0")]
    assert ("25.0%", "25.0%") in marks


@pytest.mark.parametrize("threshold", [None, 0.0, 1e300, -7.0])
@pytest.mark.parametrize("drawn", [[0.0, 0.0], [5.0, 5.0 + 1e-12], [-1e300, 1e300], [0.0, 1e-300]])
def test_any_scores_can_be_drawn(drawn, threshold):
    page = Page(bench_page("Results", [], [run(anomaly_scores=drawn, is_normal=[True, False], threshold=threshold)]))
    for path in page.all("path"):
        numbers = [float(word) for word in re.findall(r"[^MLHV ]+", path["d"])]
        assert all(0 <= value <= charts.SIDE for value in numbers)


def test_images_keep_their_pixels_and_say_what_they_are():
    shown = example(False, "cat & dog")
    grey = Example(np.full((28, 28, 1), 77, np.uint8), -3.0, "boot", None)
    page = Page(bench_page("Results", [], [run(most_normal=(shown,), least_normal=(grey, example(side=500)))]))
    images = page.all("img")
    assert [found["alt"] for found in images] == ["cat & dog, an anomaly", "boot, unknown", "dog, normal"]
    assert len(page.all("li", class_="odd")) == 1
    opened = [Image.open(io.BytesIO(base64.b64decode(found["src"].partition(",")[2]))) for found in images]
    assert np.array_equal(opened[0], shown.pixels)
    assert np.array_equal(opened[1], grey.pixels[:, :, 0])
    assert [image.size for image in opened] == [(32, 32), (28, 28), (96, 96)]
    assert [(int(found["width"]), int(found["height"])) for found in images] == [image.size for image in opened]


def test_a_mark_of_cost_stands_where_its_figures_say():
    known = [("a", 0.9, 1e12), ("b", 0.7, 1e14), ("c", 0.8, 0), ("d", 0.8, None)]
    runs = [RunView(name, "geometric, fast", "MNIST", 0, auroc, macs=macs) for name, auroc, macs in known]
    page = Page(bench_page("Results", [], runs))
    marks = [(found["x"], found["y"]) for found in page.all("use", class_="s0")]
    assert marks == [("0.0%", "33.33%"), ("100.0%", "100.0%")]
    assert "geometric, fast 2 80.0 5.0 \N{MULTIPLICATION SIGN} 10¹³" in page.text


def test_charts_have_words_for_those_who_do_not_see_them():
    page = Page(full_page())
    drawn = page.all("svg", role="img")
    assert len(drawn) == 3 + 4 + 2
    assert all(len(found["aria-label"]) > 20 for found in drawn)
    assert page.all("html", lang="en")
    assert len(page.all("h1")) == 1


def test_an_empty_page_says_that_nothing_was_run():
    page = Page(bench_page("Results"))
    assert "Nothing has been run yet." in page.text
    assert not page.all("section")


def test_twenty_runs_of_ten_thousand_scores_stay_under_three_megabytes():
    drawn, truth = scores(normals=1000, others=9000)
    shown = (example(),) * 8
    runs = [
        run(f"class {index}", group, anomaly_scores=drawn, is_normal=truth, most_normal=shown, least_normal=shown)
        for group in ("fast", "paper")
        for index in range(10)
    ]
    assert len(bench_page("Results", [], runs)) < 3_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"auroc": 85.0},
        {"printed": -0.1},
        {"macs": -1.0},
        {"reason": "it failed"},
        {"macs": float("inf")},
        {"threshold": float("nan")},
        {"is_normal": None},
        {"is_normal": np.ones(300, bool)},
        {"anomaly_scores": np.full(300, np.inf)},
        {"anomaly_scores": np.zeros((300, 1))},
    ],
)
def test_a_run_that_cannot_be_drawn_is_refused_with_its_name(wrong):
    with pytest.raises(InvalidInput, match="dog of CIFAR-10, geometric, fast, seed 0"):
        run(**wrong)


@pytest.mark.parametrize("pixels", [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4), np.uint8)])
def test_what_is_no_image_is_refused(pixels):
    with pytest.raises(InvalidInput, match="an image to show is uint8"):
        bench_page("Results", [], [run(most_normal=(Example(pixels, 0.0),))])


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_marks_stand_out_from_the_ground(scheme):
    sheet = _source("bench_page.css")
    light, dark = (dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", part)) for part in sheet.split("@media screen", 1))
    palette = light if scheme == "light" else dark
    assert {f"g{style}" for style in range(STYLES)} | {"ink", "quiet", "normal", "other"} <= set(palette)
    ground = luminance(palette["ground"])
    for name in set(palette) - {"ground", "raised", "line", "faint"}:
        low, high = sorted((luminance(palette[name]), ground))
        wanted = 4.5 if name in ("ink", "quiet", "other") else 3
        assert (high + 0.05) / (low + 0.05) >= wanted, name


def test_every_group_style_is_in_the_sheet_and_in_the_page():
    runs = [run(group=f"detector {index}") for index in range(STYLES + 1)]
    html = bench_page("Results", [], runs)
    for style in range(STYLES):
        assert f".s{style} {{" in _source("bench_page.css")
        assert f'id="mark{style}"' in html
    assert f"mark{STYLES}" not in html
