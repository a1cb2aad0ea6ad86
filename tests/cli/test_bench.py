"""`askew bench` as a researcher meets it: a folder of images, a ledger, tables and a page."""

import csv
import io

import pytest

from askew.evaluation import sweep as sweeping
from pictures import drawings, oddities, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes to learn from and to be judged by."""
    place = tmp_path_factory.mktemp("data")
    for part, count, seed in (("train", 40, 0), ("test", 12, 5)):
        write_images(place / part / "plain", drawings(count, side=32, seed=seed))
        write_images(place / part / "odd", oddities(count, side=32))
    return place


@pytest.fixture
def bench(here, folder, tmp_path, monkeypatch):
    """The command on that folder's recipe, with short runs."""
    preset = sweeping._preset

    def shortened(kind, of):
        name, settings = preset(kind, of)
        return name, settings.with_views(1280)

    monkeypatch.setattr(sweeping, "_preset", shortened)

    def run(verb, *words, code=0):
        return here("bench", verb, f"folder:{folder}", "--folder", tmp_path / "bench", *words, code=code)

    return run


def test_a_recipe_ends_in_a_table_and_a_report_and_is_not_run_twice(bench, tmp_path):
    words = ("--seeds", "1", "--precision", "fp32")
    out, _ = bench("status", *words)
    assert out.split()[-7:] == ["fast", "0", "0", "0", "2", "unknown"] or "unknown" in out
    out, err = bench("run", *words)
    assert "2 runs, 0 of them in the ledger" in err
    assert "plain" in out
    assert "mean of 2 classes" in out
    page = (tmp_path / "bench" / "report.html").read_text()
    assert "AUROC in percent" in page
    assert str(tmp_path / "bench" / "report.html") in "".join(err.split())
    again, err = bench("run", *words)
    assert "2 runs, 2 of them in the ledger" in err
    assert again == out
    assert len((tmp_path / "bench" / "ledger.jsonl").read_text().splitlines()) == 2
    out, _ = bench("status", *words)
    assert "unknown" not in out


def test_any_figure_in_the_ledger_can_be_shown(bench):
    bench("run", "--seeds", "1", "--precision", "fp32", "--classes", "0", "--quiet")
    out, _ = bench("table", "--metrics", "fpr_at_95_tpr,average_precision")
    assert "FPR at 95 % TPR in percent" in out
    assert "average precision in percent" in out
    out, _ = bench("table", "--format", "csv")
    assert next(csv.reader(io.StringIO(out)))[0] == "class"
    _, err = bench("table", "--metrics", "accuracy", code=2)
    assert "no metric 'accuracy'" in err
    bench("report", "-o", "no/such/folder/page.html", code=2)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--precision", "fp64"), "precision must be"),
        (("--classes", "x"), "--classes takes labels"),
        (("--classes", "9"), "no training images of label 9"),
        (("--detectors", "magic"), "there is no detector 'magic'"),
        (("--datasets", "mnist"), "has no data set 'mnist'"),
        (("--seeds", "0"), "1 to 1000 seeds"),
        (("--preset", "slow"), "no preset 'slow'"),
    ],
)
def test_what_cannot_be_run_is_one_line(bench, words, reason):
    _, err = bench("run", *words, code=2)
    assert reason in " ".join(err.split())
