import csv
import io
import re
import statistics
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.errors import InvalidInput
from askew.evaluation.ledger import Cost, Result, Row, RunSettings
from askew.evaluation.printed import printed_tables
from askew.evaluation.tables import METRICS, Cell, Table, false_alarm_table, paper_table

FORMATS = ("text", "markdown", "latex", "csv")
COST = {
    "training_seconds": 1.0,
    "scoring_seconds": 1.0,
    "peak_memory_bytes": 1,
    "training_views": 1,
    "scoring_views": 1,
    "training_macs": 1,
    "scoring_macs": 1,
}


def row(
    label, figure=0.9, *, failed="", name="", held_out=0, trained_on=4000, false_alarms=None, hindsight=False, **changes
):
    """A run of that class, all its figures alike."""
    of = RunSettings(
        **{
            "dataset": "cifar10",
            "data": "0123456789abcdef",
            "label": label,
            "detector": "geometric",
            "preset": "fast",
            "settings": {"holdout": 0.2},
            "precision": "bf16",
            "seed": 0,
            "protocol": "honest",
            **changes,
        }
    )
    judged = false_alarms is not None
    result = Result(
        **dict.fromkeys(("auroc", "aupr_in", "aupr_out", "average_precision", "fpr_at_95_tpr"), figure),
        false_alarm_rate=0.01 if judged else None,
        false_alarms=false_alarms,
        interval=(3, 22) if judged else None,
        normals=1000,
        anomalies=9000,
        found=1 if judged else None,
    )
    return Row(
        key=of.key,
        run=of,
        class_name=name or f"class {label}",
        status="failed" if failed else "done",
        reason=failed,
        hindsight=hindsight,
        result=None if failed else result,
        cost=None if failed else Cost(trained_on=trained_on, held_out=held_out, **COST),
        where={},
        finished="2026-11-19T08:00:00Z",
    )


def cells(table, group=""):
    """The texts below the columns of the only group, or the named one, by the name of the row and of the column."""
    places = {
        column.name: place
        for place, column in enumerate(table.columns)
        if place and (not group or column.group == group)
    }
    return {
        line[0].text: {name: str(line[place]) for name, place in places.items()}
        for line in (*table.rows, *table.summary)
    }


def titles(table):
    return [title for title, _ in table.groups if title]


def read_csv(table):
    return list(csv.reader(io.StringIO(table.render("csv"))))


# Beside the paper


@pytest.mark.parametrize(("metric", "dataset"), printed_tables())
def test_rows_names_and_averages_are_the_papers(metric, dataset):
    printed = printed_tables()[metric, dataset]
    table = paper_table(metric, dataset, [], printed=True)
    assert [line[0].text for line in table.rows] == [name for _, name in printed.classes]
    assert titles(table) == list(printed.figures)
    (average,) = table.summary
    assert [cell.text for cell in average] == ["average", *(f"{mean:.1f}" for mean in printed.averages.values())]
    for line, (label, _) in zip(table.rows, printed.classes, strict=True):
        for cell, figures in zip(line[1:], printed.figures.values(), strict=True):
            sem = figures[label].sem
            assert (cell.text, cell.sem) == (f"{figures[label].mean:.1f}", "" if sem is None else f"{sem:.1f}")


@pytest.mark.parametrize(("metric", "dataset"), printed_tables())
def test_our_rows_stand_beside_the_printed_ones_of_their_class(metric, dataset):
    printed = printed_tables()[metric, dataset]
    figures = printed.figures["geometric"]
    rows = [row(label, figure.mean / 100, dataset=dataset) for label, figure in reversed(figures.items())]
    table = paper_table(metric, dataset, rows)
    assert [line[0].text for line in table.rows] == [name for _, name in printed.classes]
    for line in table.rows:
        assert line[1].text == line[3].text
        assert (line[2].text, line[4].text) == ("1", "0.0")
        assert not line[1].better
    (average,) = table.summary
    ours = statistics.fmean(figure.mean for figure in figures.values())
    assert (average[0].text, average[3].text) == ("average", f"{printed.averages['geometric']:.1f}")
    assert average[1].text == f"{ours:.1f}"
    assert abs(Fraction(average[1].text) - Fraction(average[3].text)) <= Fraction("0.1")


def test_fashion_mnists_rows_are_alphabetical_and_not_in_the_order_of_labels():
    rows = [row(label, label / 10, dataset="fashion-mnist") for label in range(10)]
    ours = [line[1].text for line in paper_table("auroc", "fashion-mnist", rows).rows]
    assert ours == ["90.0", "80.0", "40.0", "30.0", "20.0", "50.0", "60.0", "70.0", "0.0", "10.0"]


def test_seeds_make_a_mean_with_its_standard_error():
    seeds = [0.90, 0.92, 0.97]
    rows = [row(5, figure, seed=seed) for seed, figure in enumerate(seeds)] + [row(0, 0.5)]
    found = cells(paper_table("auroc", "cifar10", rows))
    sem = statistics.stdev(seeds) / 3**0.5
    assert found["Dog"] == {
        "ours": f"93.0 ± {100 * sem:.1f}",
        "n": "3",
        "printed": "87.8 ± 0.1",
        "difference": "+5.2",
    }
    assert found["Airplane"]["ours"] == "50.0"
    assert found["Airplane"]["n"] == "1"
    assert found["Cat"] == {"ours": "-", "n": "-", "printed": "72.4 ± 0.5", "difference": "-"}


@pytest.mark.parametrize(("figure", "difference", "better"), [
    (0.8784, "0.0", False), (0.8786, "+0.1", True), (0.8774, "-0.1", False), (0.95, "+7.2", True), (0.8, "-7.8", False)
])  # fmt: skip
def test_better_is_better_at_the_printed_precision_as_the_difference_says(figure, difference, better):
    line = paper_table("auroc", "cifar10", [row(5, figure)]).rows[5]  # 87.8 is printed
    assert (line[4].text, line[1].better) == (difference, better)


def test_a_part_of_the_classes_is_compared_with_the_same_part():
    rows = [row(5, 0.9), row(0, 0.8), row(5, 0.7, preset="paper", settings={})]
    table = paper_table("auroc", "cifar10", rows)
    assert [line[0].text for line in table.summary] == ["mean of 2 classes", "mean of 1 class"]
    fast, paper = (cells(table, title) for title in titles(table))
    # (87.8 + 74.7) / 2 is printed for both.
    assert fast["mean of 2 classes"] == {"ours": "85.0", "n": "", "printed": "81.2", "difference": "+3.8"}
    assert paper["mean of 2 classes"]["ours"] == paper["mean of 2 classes"]["difference"] == "-"
    assert fast["mean of 1 class"]["ours"] == "90.0"
    assert paper["mean of 1 class"] == {"ours": "70.0", "n": "1", "printed": "87.8 ± 0.1", "difference": "-17.8"}


def test_one_class_that_was_not_run_is_enough_to_be_no_average():
    rows = [row(label, 0.9) for label in range(10)]
    assert paper_table("auroc", "cifar10", rows).summary[0][0].text == "average"
    (mean,) = paper_table("auroc", "cifar10", rows[1:]).summary
    assert mean[0].text == "mean of 9 classes"
    assert mean[3].text != "86.0"


def test_the_average_is_over_classes_whatever_the_number_of_seeds():
    rows = [row(label, 0.8) for label in range(10)] + [row(0, 0.6, seed=seed) for seed in range(1, 4)]
    (average,) = paper_table("auroc", "cifar10", rows).summary
    assert average[1].text == "78.5"  # (9 x 80 + 65) / 10, not the mean of 13 runs


def test_detectors_without_a_printed_figure_stand_alone():
    rows = [row(0, detector="deep-svdd"), row(0, detector="unheard-of")]
    by_title = {title: count for title, count in paper_table("auroc", "cifar10", rows).groups if title}
    assert by_title == {"deep-svdd, fast": 4, "unheard-of, fast": 2}
    assert {title: count for title, count in paper_table("aupr_in", "cifar10", rows).groups if title} == {
        "deep-svdd, fast": 2,
        "unheard-of, fast": 2,
    }


def test_detectors_stand_in_the_papers_order_whoever_finished_first():
    rows = [row(0, detector=name) for name in ("geometric", "zebra", "adgan", "raw-ocsvm", "aardvark", "dsebm")]
    expected = [f"{name}, fast" for name in ("raw-ocsvm", "dsebm", "adgan", "geometric", "aardvark", "zebra")]
    assert titles(paper_table("auroc", "cifar10", rows)) == expected
    assert paper_table("auroc", "cifar10", rows) == paper_table("auroc", "cifar10", rows[::-1])


def test_printed_columns_of_other_detectors_come_when_asked_for():
    table = paper_table("auroc", "cifar10", [row(0)], printed=True)
    assert titles(table) == ["geometric, fast", "raw-ocsvm", "cae-ocsvm", "deep-svdd", "dagmm", "dsebm", "adgan"]
    # One class was run, so one class is what all of them are averaged over.
    assert [cell.text for cell in table.summary[0]][5:] == ["70.6", "74.9", "61.7", "41.4", "56.0", "64.9"]


def test_a_data_set_without_printed_figures_has_ours_alone():
    names = ["t-shirt", "trouser", "sneaker"]
    table = paper_table("auroc", "sample", [row(2, dataset="sample", name="sneaker")], class_names=names, printed=True)
    assert table.title == "AUROC in percent, sample"
    assert [column.name for column in table.columns] == ["class", "ours", "n"]
    assert {name: texts["ours"] for name, texts in cells(table).items()} == {
        "t-shirt": "-",
        "trouser": "-",
        "sneaker": "90.0",
        "mean of 1 class": "90.0",
    }
    full = [row(label, dataset="sample") for label in range(3)]
    assert paper_table("auroc", "sample", full, class_names=names).summary[0][0].text == "average"
    # Who does not say how many classes there are gets no average.
    unnamed = paper_table("auroc", "sample", full)
    assert [line[0].text for line in (*unnamed.rows, *unnamed.summary)] == [
        "class 0",
        "class 1",
        "class 2",
        "mean of 3 classes",
    ]


def test_figures_the_paper_has_no_table_of_keep_its_order_of_classes():
    table = paper_table("average_precision", "fashion-mnist", [row(9, dataset="fashion-mnist")])
    assert table.rows[0][0].text == "Ankle-boot"
    assert [column.name for column in table.columns] == ["class", "ours", "n"]


def test_each_metric_shows_its_own_figure():
    base = row(0)
    figures = {metric: 0.1 * (1 + place) for place, metric in enumerate(METRICS)}
    one = base.model_copy(update={"result": base.result.model_copy(update=figures)})
    for metric, figure in figures.items():
        assert paper_table(metric, "cifar10", [one]).rows[0][1].text == f"{100 * figure:.1f}"


# What may share a column


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preset": "paper"}, ("fast", "paper")),
        ({"detector": "dagmm"}, ("dagmm", "geometric")),
        ({"protocol": "paper"}, ("honest protocol", "paper protocol")),
        ({"precision": "fp32"}, ("bf16", "fp32")),
        ({"data": "fedcba9876543210"}, ("data 01234567", "data fedcba98")),
        ({"test_images": 500}, ("whole test set", "500 of the test images")),
        ({"settings": {"holdout": 0.3}}, ("settings ", "settings ")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_runs_that_differ_in_more_than_class_and_seed_are_never_averaged(change, words):
    table = paper_table("auroc", "cifar10", [row(0, 0.8), row(0, 0.6, **change)])
    assert len(titles(table)) == len(set(titles(table))) == 2
    for title, word in zip(titles(table), words, strict=True):
        assert word in title
    assert {str(cell) for cell in table.rows[0]} >= {"80.0", "60.0"}


def test_titles_say_only_what_differs_and_a_note_the_rest():
    table = paper_table("auroc", "cifar10", [row(0), row(0, preset="paper", settings={}, precision="fp32")])
    assert titles(table) == ["geometric, fast, bf16", "geometric, paper, fp32"]
    assert table.notes[0] == "All runs: honest protocol, whole test set, data 01234567."


def test_runs_that_share_nothing_say_so():
    other = row(0, protocol="paper", precision="fp32", data="f" * 16, test_images=9)
    assert paper_table("auroc", "cifar10", [row(0), other]).notes[0] == "All runs: nothing but the data set."


def test_a_run_counts_once_however_often_it_was_written():
    rows = [row(0, failed="killed"), row(0, 0.6), row(0, 0.8), row(0, failed="killed")]
    table = paper_table("auroc", "cifar10", rows)
    assert cells(table)["Airplane"]["ours"] == "80.0"
    assert not any("failed" in note for note in table.notes)


def test_other_data_sets_rows_stay_out():
    table = paper_table("auroc", "cifar10", [row(0, 0.5, dataset="cifar100"), row(0, 0.7)])
    assert cells(table)["Airplane"]["ours"] == "70.0"


def test_hindsight_is_marked_in_ours_and_in_the_printed_columns():
    rows = [row(0), row(0, detector="raw-ocsvm", protocol="paper", hindsight=True), row(1, detector="cae-ocsvm")]
    table = paper_table("auroc", "cifar10", rows)
    heads = {(column.group, column.name) for column in table.columns}
    assert ("raw-ocsvm, fast, paper protocol, hindsight", "printed (hindsight)") in heads
    assert ("cae-ocsvm, fast, honest protocol", "printed (hindsight)") in heads
    assert ("geometric, fast, honest protocol", "printed") in heads
    assert "hindsight: test labels chose among a detector's candidates." in table.notes
    assert not any("hindsight" in note for note in paper_table("auroc", "cifar10", [row(0)]).notes)


def test_one_run_with_hindsight_marks_its_whole_column():
    rows = [row(0), row(1, hindsight=True)]
    assert titles(paper_table("auroc", "cifar10", rows)) == ["geometric, fast, hindsight"]


def test_what_was_held_out_stands_above_the_column():
    def title(*rows):
        return titles(paper_table("auroc", "cifar10", rows))[0]

    assert title(row(0, held_out=1000)) == "geometric, fast, 20 % held out"
    assert title(row(0, held_out=1000), row(1, held_out=1333)) == "geometric, fast, 20 to 25 % held out"
    assert title(row(0)) == "geometric, fast"
    notes = paper_table("auroc", "cifar10", [row(0, held_out=1000)]).notes
    assert any(note.startswith("held out: normal images kept for the threshold") for note in notes)


def test_failed_runs_are_no_numbers_but_notes():
    rows = [row(0, 0.8), row(0, seed=1, failed="diverged\nat step 3"), row(3, name="cat", failed="x" * 500)]
    table = paper_table("auroc", "cifar10", rows)
    found = cells(table)
    assert found["Airplane"]["ours"] == "80.0"
    assert found["Airplane"]["n"] == "1"
    assert found["Cat"]["ours"] == "-"
    assert table.notes[-2] == r"failed: geometric, fast, class 0, seed 1: diverged\nat step 3"
    assert table.notes[-1].startswith("failed: geometric, fast, cat, seed 0: xxx")
    assert len(table.notes[-1]) < 300


def test_nothing_run_is_a_table_of_names_that_says_so():
    table = paper_table("auroc", "cifar10", [row(0, failed="no memory")])
    assert table.notes == ("No run is finished yet.", "failed: geometric, fast, class 0, seed 0: no memory")
    assert [line[0].text for line in table.rows][:2] == ["Airplane", "Automobile"]
    assert not table.summary
    for name in FORMATS:
        assert "Airplane" in table.render(name)


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(InvalidInput, match="no metric 'accuracy'; choose one of auroc, aupr_in"):
        paper_table("accuracy", "cifar10", [])
    with pytest.raises(InvalidInput, match="label 12 is none of the 10 classes of cifar10"):
        paper_table("auroc", "cifar10", [row(12)])
    with pytest.raises(InvalidInput, match="no table format 'html'; choose one of text, markdown, latex, csv"):
        paper_table("auroc", "cifar10", []).render("html")


# Formats

ROWS = [
    *(row(0, 0.70 + 0.02 * seed, seed=seed, dataset="cats-vs-dogs", held_out=1000) for seed in range(3)),
    row(1, 0.95, dataset="cats-vs-dogs", held_out=1000),
    row(0, 0.5, dataset="cats-vs-dogs", detector="raw-ocsvm", hindsight=True),
]


def test_text_lines_figures_up():
    assert paper_table("auroc", "cats-vs-dogs", ROWS).render("text").splitlines() == [
        "AUROC in percent, CatsVsDogs",
        "",
        "                 raw-ocsvm, fast, hindsight                geometric, fast, 20 % held out",
        "class            ours  n  printed (hindsight)  difference         ours  n     printed  difference",
        "-------------------------------------------------------------------------------------------------",
        "Cat              50.0  1                 50.4        -0.4   72.0 ± 1.2  3  88.3 ± 0.3       -16.3",
        "Dog                 -  -                 53.0           -  *95.0        1  89.2 ± 0.3        +5.8",
        "-------------------------------------------------------------------------------------------------",
        "average             -  -                 51.7           -   83.5           88.8              -5.3",
        "mean of 1 class  50.0  1                 50.4        -0.4   72.0 ± 1.2  3  88.3 ± 0.3       -16.3",
        "",
        "*: better than printed.",
        "All runs: honest protocol, bf16, whole test set, data 01234567.",
        "n: seeds; ± is the standard error of the mean over them.",
        "held out: normal images kept for the threshold and not learned from; the paper kept none.",
        "hindsight: test labels chose among a detector's candidates.",
    ]


def test_markdown_has_as_many_cells_in_every_line():
    table = paper_table("auroc", "cats-vs-dogs", ROWS)
    lines = table.render("markdown").splitlines()
    assert lines[0] == "**AUROC in percent, CatsVsDogs**"
    assert lines[2].startswith("| class | raw-ocsvm, fast, hindsight: ours | n | printed (hindsight) | difference | ")
    assert lines[5].endswith("| **95.0** | 1 | 89.2 ± 0.3 | +5.8 |")
    assert {line.count("|") for line in lines if line.startswith("|")} == {len(table.columns) + 1}
    assert "- bold: better than printed." in lines


def test_latex_has_as_many_cells_in_every_line():
    table = paper_table("auroc", "cats-vs-dogs", ROWS)
    text = table.render("latex")
    assert r"\multicolumn{4}{c}{geometric, fast, 20 \% held out} \\" in text
    assert r"Dog & - & - & 53.0 & - & \textbf{95.0} & 1 & 89.2 $\pm$ 0.3 & $+5.8$ \\" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in body} == {len(table.columns) - 1}
    assert text.count("{") == text.count("}")
    assert re.findall(r"\\(?:begin|end)\{\w+\}", text) == [
        r"\begin{table}", r"\begin{tabular}", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip


def test_csv_gives_standard_errors_columns_of_their_own():
    head, *body = read_csv(paper_table("auroc", "cats-vs-dogs", ROWS))
    assert head[0] == "class"
    assert head[-6:] == [
        f"geometric, fast, 20 % held out: {name}"
        for name in ("ours", "ours SEM", "n", "printed", "printed SEM", "difference")
    ]
    assert body[0][-6:] == ["72.0", "1.2", "3", "88.3", "0.3", "-16.3"]
    assert body[1][-6:] == ["95.0", "-", "1", "89.2", "0.3", "+5.8"]
    assert {len(line) for line in body} == {len(head)}


def test_latex_never_takes_a_name_for_the_argument_of_the_row_before():
    rows = [row(label, dataset="sample") for label in range(2)]
    text = paper_table("auroc", "sample", rows, class_names=["*a", "[1ex] b"]).render("latex")
    assert "\n{*}a & " in text
    assert "\n{[}1ex] b & " in text


@given(st.text(min_size=1), st.text(), st.sampled_from(FORMATS))
@settings(max_examples=80, deadline=None)
def test_a_strangers_words_stay_in_their_cell(name, reason, format):
    rows = [row(0, dataset="folder:x"), row(1, dataset="folder:x", detector=f"d{name}", failed=f"r{reason}")]
    rows += [row(1, dataset="folder:x", preset=name)]
    plain = paper_table("auroc", "folder:x", [row.model_copy() for row in rows], class_names=["a", "b"])
    table = paper_table("auroc", "folder:x", rows, class_names=[name, "b"])
    text = table.render(format)
    assert all(line.isprintable() for line in text.split("\n"))
    if format != "csv":
        assert text.count("\n") == plain.render(format).count("\n")
    else:
        assert {len(line) for line in read_csv(table)} == {7}
        assert not any(cell.startswith(("=", "+", "@")) for line in read_csv(table) for cell in line)
    if format == "markdown":
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in text.split("\n") if line.startswith("|")}
        assert bars == {len(table.columns) + 1}
    if format == "latex":
        unescaped = re.sub(r"\\[&%$#_{}]", "", text)
        lines = [line for line in unescaped.split("\n") if line.endswith("\\\\") and "multicolumn" not in line]
        assert {line.count("&") for line in lines} == {len(table.columns) - 1}
        assert "%" not in unescaped
        assert unescaped.count("$") % 2 == 0


# False alarms


def test_false_alarms_stand_beside_what_was_to_be_expected():
    rows = [
        row(5, seed=1, false_alarms=22),
        row(5, seed=0, false_alarms=2),
        row(0, seed=0, false_alarms=3),
        row(0, seed=1, false_alarms=23),
        row(1, seed=0),
        row(2, seed=0, failed="diverged"),
    ]
    table = false_alarm_table(rows)
    assert [column.name for column in table.columns] == [
        "runs", "class", "seed", "wanted", "false alarms", "95 % interval", "inside",
    ]  # fmt: skip
    assert [[cell.text for cell in line] for line in table.rows] == [
        ["geometric, fast", "Airplane", "0", "1 %", "3 of 1,000", "3 to 22", "yes"],
        ["geometric, fast", "Airplane", "1", "1 %", "23 of 1,000", "3 to 22", "no"],
        ["geometric, fast", "Dog", "0", "1 %", "2 of 1,000", "3 to 22", "no"],
        ["geometric, fast", "Dog", "1", "1 %", "22 of 1,000", "3 to 22", "yes"],
    ]
    assert table.notes == (
        "Inside: 2 of 4; of many runs, 95 % are to be expected there.",
        "Finished runs without a threshold, since nothing was held out: 1.",
    )
    for name in FORMATS:
        assert "22 of 1,000" in table.render(name)


def test_false_alarms_of_several_data_sets_name_theirs():
    rows = [row(9, dataset="fashion-mnist", false_alarms=9), row(0, dataset="sample", name="bag", false_alarms=9)]
    assert [[cell.text for cell in line[:2]] for line in false_alarm_table(rows).rows] == [
        ["Fashion-MNIST, geometric, fast", "Ankle-boot"],
        ["sample, geometric, fast", "bag"],
    ]


def test_no_false_alarms_to_show_is_an_empty_table():
    table = false_alarm_table([])
    assert (table.rows, table.notes) == ((), ())
    for name in FORMATS:
        assert "wanted" in table.render(name)


def test_a_table_is_what_was_put_into_it():
    table = Table("t", (), ())
    assert table.groups == []
    assert str(Cell()) == "-"
    assert str(Cell("1.0", "0.1")) == "1.0 ± 0.1"


def test_a_table_bears_the_title_that_says_what_part_of_the_data_was_at_hand():
    part = row(0, dataset="cats-vs-dogs").model_copy(update={"title": "CatsVsDogs, 480 + 120 of 25,000 photographs"})
    assert "480 + 120 of 25,000" in paper_table("auroc", "cats-vs-dogs", [part]).title
    whole = row(0, dataset="cats-vs-dogs", seed=1).model_copy(update={"title": "CatsVsDogs"})
    assert paper_table("auroc", "cats-vs-dogs", [whole, part]).title.endswith("CatsVsDogs")
