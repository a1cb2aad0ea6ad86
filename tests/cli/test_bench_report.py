"""`askew bench report` shows what the tables do: the same groups, every class, and why something is not there."""

import html
import re
from importlib import import_module

import numpy as np
import pytest

from askew import storage
from askew.datasets.dataset import DataSet, Split
from askew.evaluation.ledger import Cost, Result, Row, RunSettings
from askew.evaluation.sweep import Benchmark
from askew.evaluation.tables import groups, paper_table

CLASSES = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
report = import_module("askew.cli.bench.report")  # the verb has the same name
DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def data():
    """A Fashion-MNIST of three test images a class."""
    images = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 1)).astype(np.uint8)
    split = Split(images, np.repeat(np.arange(10), 3))
    return DataSet.of("fashion-mnist", "Fashion-MNIST", CLASSES, split, split)


@pytest.fixture
def benchmark(tmp_path, data, monkeypatch):
    monkeypatch.setattr(report, "open_dataset", lambda name, root: data)
    made = Benchmark(tmp_path / "bench")
    made.make()
    return made


@pytest.fixture
def add(benchmark, data):
    """Puts a run into the ledger, its scores beside it, and returns its row."""

    def add(label, auroc=0.9, *, failed="", hindsight=False, scores=30, cost=True, title="", **changes):
        settings = {"detector": "geometric", "preset": "fast", "settings": {"holdout": 0.2}, "precision": "bf16"}
        settings |= {"data": data.fingerprint, "seed": 0, "protocol": "honest", **changes}
        run = RunSettings(dataset="fashion-mnist", label=label, **settings)
        nothing = dict.fromkeys(("false_alarm_rate", "false_alarms", "interval", "found"))
        figures = dict.fromkeys(("auroc", "aupr_in", "aupr_out", "average_precision", "fpr_at_95_tpr"), auroc)
        row = Row(
            key=run.key,
            run=run,
            class_name=CLASSES[label],
            title=title,
            status="failed" if failed else "done",
            reason=failed,
            hindsight=hindsight,
            result=None if failed else Result(**figures, **nothing, normals=3, anomalies=27),
            cost=None if failed or not cost else Cost(**dict.fromkeys(Cost.model_fields, 1)),
            where={"commit": "0123456789ab"},
            finished="2026-11-19T08:00:00+00:00",
        )
        benchmark.ledger.append(row)
        if not failed:
            tensors = {"normality": np.linspace(1, 0, scores), "is_normal": np.arange(scores) // 3 == label}
            storage.write(benchmark.file(run, "safetensors"), kind="scores", tensors=tensors, document={"key": run.key})
        return row

    return add


@pytest.fixture
def page(here, benchmark, tmp_path):
    """Writes the report and returns its HTML and what was said meanwhile."""

    def page(recipe="fashion-mnist"):
        _, err = here("bench", "report", recipe, "--folder", benchmark.folder, "-o", tmp_path / "page.html")
        return (tmp_path / "page.html").read_text(), " ".join(err.split())

    return page


def words(markup):
    """The text of it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def panels(markup):
    """The text of the section of classes, by group."""
    found = re.findall(r"<figure>\s*<table class=\"bars.*?</figure>", markup, re.DOTALL)
    return {words(re.search("<caption>(.*?)</caption>", panel)[1]): words(panel) for panel in found}


OTHER = [{"precision": "fp32"}, {"settings": {"holdout": 0.1}}, {"protocol": "paper"}, {"test_images": 30}]


@pytest.mark.parametrize("other", [*OTHER, {"data": "fedcba9876543210"}])
def test_runs_that_the_tables_keep_apart_are_never_averaged(add, page, other):
    rows = [add(3, 0.91), add(3, 0.51, seed=1, **other)]
    found = panels(page()[0])
    assert list(found) == list(dict.fromkeys(groups(rows).values()))
    assert list(found) == [title for title, _ in paper_table("auroc", "fashion-mnist", rows).groups if title]
    assert sorted(re.search(r"Dress ([\d.]+)", panel)[1] for panel in found.values()) == ["51.0", "91.0"]


def test_hindsight_is_marked_in_ours_and_in_what_is_printed(add, page):
    add(3, detector="raw-ocsvm", preset="paper", protocol="paper", hindsight=True)
    add(3)
    ours, theirs = panels(page()[0]).items()
    assert "hindsight" in ours[0]
    assert "ours printed (hindsight) diff." in ours[1]
    assert "test labels chose" in ours[1]
    assert "hindsight" not in "".join(theirs)


def test_classes_that_were_not_run_are_gaps_in_the_papers_order(add, page):
    add(3, 0.918)
    add(8, 0.978)
    ((_, panel),) = panels(page()[0]).items()
    assert f"Ankle-boot {DASH} not run 99.4 {DASH} Bag 97.8 97.6 +0.2 Coat {DASH} not run 91.1 {DASH}" in panel
    assert len(re.findall("not run", panel)) == 8
    assert "Mean of 2 classes with both" in panel


def test_a_failed_run_is_a_gap_with_its_reason_beside_its_kind(add, page):
    add(3, 0.9)
    add(8, failed="Diverged: not finite")
    add(3, failed="MemoryError: 8 GB", seed=1)
    add(3, failed="NoImages: none", precision="fp32")
    ours, alone = panels(page()[0]).values()
    assert "Bag failed 97.6" in ours
    assert "Dress 90.0 89.9 +0.1" in ours
    assert "failed: Bag, seed 0: Diverged: not finite" in ours
    assert "failed: Dress, seed 1: MemoryError: 8 GB" in ours
    assert "Dress failed 89.9" in alone
    assert "failed: Dress, seed 0: NoImages: none" in alone


def test_a_ledger_of_failures_alone_is_a_page_of_gaps(add, page):
    add(3, failed="Diverged: not finite")
    markup, _ = page()
    assert "No run came to its end; 1 failed." in words(markup)
    assert re.findall('<section id="(.*?)"', markup) == ["tables", "classes"]


@pytest.mark.parametrize("scores", [29, 31])
def test_scores_of_another_length_cost_a_run_its_pictures_and_not_the_page(add, page, benchmark, scores):
    whole, broken = add(3), add(8, scores=scores)
    markup, err = page()
    path = benchmark.file(broken.run, "safetensors")
    assert f"no curves and pictures of bag, seed 0: {path} does not hold the scores" in err
    assert list(panels(markup)) == [groups([whole, broken])[broken.key]]
    assert "Bag 90.0 97.6" in panels(markup)[groups([whole, broken])[broken.key]]
    assert markup.count("Most normal") == 1
    assert "ROC curves of Dress" in markup
    assert "ROC curves of Bag" not in markup


def test_scores_of_another_length_than_the_test_set_are_refused_whatever_the_ledger_says(add, page, data, monkeypatch):
    add(3)
    few = Split(data.test.images[:12], data.test.labels[:12])
    shrunk = DataSet(data.name, data.title, data.class_names, data.train, few, data.fingerprint)
    monkeypatch.setattr(report, "open_dataset", lambda name, root: shrunk)
    markup, err = page()
    assert "no curves and pictures of dress" in err
    assert "<img" not in markup


def test_a_file_of_scores_that_is_damaged_is_told_and_left_out(add, page, benchmark):
    benchmark.file(add(3).run, "safetensors").write_bytes(b"[red]nothing")
    markup, err = page()
    assert "no curves and pictures of dress, seed 0" in err
    assert "Dress 90.0" in next(iter(panels(markup).values()))


@pytest.mark.parametrize("titles", [("part of it", "part of it"), ("part of it", ""), ("", "")])
def test_the_data_set_is_called_what_the_tables_call_it(add, page, titles):
    rows = [add(label, title=title) for label, title in zip((3, 8), titles, strict=True)]
    called = paper_table("auroc", "fashion-mnist", rows).title.removeprefix("AUROC in percent, ")
    assert f"2 runs on {called}. In each" in words(page()[0])


def test_a_run_without_a_cost_has_no_place_among_the_costs(add, page):
    add(3, cost=False)
    assert 'id="cost"' not in page()[0]
