"""A sweep makes what the ledger lacks, once, whatever happens in between."""

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import numpy as np
import pytest

from askew.datasets.dataset import Split
from askew.errors import BadFile, Diverged, InvalidInput
from askew.evaluation import sweep as sweeping
from askew.evaluation.ledger import Result, Row
from askew.evaluation.recipes import RECIPES, Recipe, Sweep, recipe
from askew.evaluation.sweep import Benchmark, planned, sweep
from pictures import drawings, oddities, write_images


@pytest.fixture
def runs(data, run):
    return [(run.model_copy(update={"label": label, "seed": seed}), data) for seed in (0, 1) for label in (0, 1)]


@pytest.fixture
def quick(monkeypatch):
    """Runs that take no time; what was evaluated, in order."""
    made = []

    def evaluate(run, data, **_):
        made.append(run.key)
        is_normal = data.test.labels == run.label
        normality = is_normal + np.linspace(0, 1.5, len(is_normal))
        figures = dict.fromkeys(("auroc", "aupr_in", "aupr_out", "average_precision", "fpr_at_95_tpr"), 0.5)
        nothing = dict.fromkeys(("false_alarm_rate", "false_alarms", "interval", "found"))
        row = Row(
            key=run.key,
            run=run,
            class_name=data.class_names[run.label],
            status="done",
            result=Result(**figures, **nothing, normals=20, anomalies=20),
            cost=None,
            where={},
            finished="2026-01-01T00:00:00+00:00",
        )
        return row, normality, is_normal

    monkeypatch.setattr(sweeping, "evaluate", evaluate)
    return made


def test_what_is_in_the_ledger_is_not_made_again(runs, quick, tmp_path):
    benchmark = Benchmark(tmp_path / "bench")
    told = []
    rows = sweep(runs[:2], benchmark, told=lambda row, left: told.append((row.key, left)))
    assert told == [(runs[0][0].key, 1), (runs[1][0].key, 0)]
    assert [row.key for row in rows] == quick == [run.key for run, _ in runs[:2]]
    rows = sweep(runs, benchmark)
    assert [row.key for row in rows] == quick == [run.key for run, _ in runs]


def test_the_scores_of_a_run_are_kept(runs, quick, tmp_path):
    benchmark = Benchmark(tmp_path)
    sweep(runs[:1], benchmark)
    normality, is_normal = benchmark.scores(runs[0][0])
    np.testing.assert_array_equal(is_normal, [True] * 20 + [False] * 20)
    assert normality.shape == (40,)
    assert benchmark.scores(runs[1][0]) is None
    benchmark.file(runs[0][0], "safetensors").rename(benchmark.file(runs[1][0], "safetensors"))
    with pytest.raises(BadFile, match="does not hold this run's scores"):
        benchmark.scores(runs[1][0])


def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(runs, quick, tmp_path, monkeypatch):
    benchmark, works = Benchmark(tmp_path), sweeping.evaluate

    def evaluate(run, data, **words):
        if run.key == runs[1][0].key:
            raise Diverged("the loss is nan")
        return works(run, data, **words)

    monkeypatch.setattr(sweeping, "evaluate", evaluate)
    rows = sweep(runs, benchmark)
    assert [row.status for row in rows] == ["done", "failed", "done", "done"]
    assert rows[1].reason == "Diverged: the loss is nan"
    monkeypatch.setattr(sweeping, "evaluate", works)
    assert [row.status for row in sweep(runs, benchmark)].count("failed") == 1
    assert [row.status for row in sweep(runs, benchmark, again=True)] == ["done"] * 4
    assert len(quick) == 4


def test_what_a_failed_run_has_learned_is_kept_until_it_is_done(runs, quick, tmp_path, monkeypatch):
    benchmark, works = Benchmark(tmp_path), sweeping.evaluate

    def evaluate(run, data, *, checkpoint, **words):
        checkpoint.write_bytes(b"hours of work")
        raise MemoryError

    monkeypatch.setattr(sweeping, "evaluate", evaluate)
    (row,) = sweep(runs[:1], benchmark)
    assert row.status == "failed"
    checkpoint = benchmark.file(runs[0][0], "checkpoint")
    assert checkpoint.read_bytes() == b"hours of work"
    monkeypatch.setattr(sweeping, "evaluate", works)
    (row,) = sweep(runs[:1], benchmark, again=True)
    assert row.status == "done"
    assert not checkpoint.exists()


def test_a_checkpoint_of_another_version_is_set_aside_and_not_lost(runs, quick, tmp_path, monkeypatch, caplog):
    benchmark, works = Benchmark(tmp_path), sweeping.evaluate
    checkpoint = benchmark.file(runs[0][0], "checkpoint")
    benchmark.make()
    checkpoint.write_bytes(b"hours of work")

    def evaluate(run, data, *, checkpoint, **words):
        if checkpoint.exists():
            raise BadFile("it belongs to another version")
        return works(run, data, **words)

    monkeypatch.setattr(sweeping, "evaluate", evaluate)
    (row,) = sweep(runs[:1], benchmark)
    assert row.status == "done"
    assert checkpoint.with_name(f"{checkpoint.name}.set-aside").read_bytes() == b"hours of work"
    assert "set aside: it belongs to another version" in caplog.text


def test_two_sweeps_at_once_make_every_run_once(runs, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "WAIT_SECONDS", 0.01)
    benchmark, found = Benchmark(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(sweep(runs, benchmark))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(quick) == sorted(run.key for run, _ in runs)
    assert [len(rows) for rows in found] == [4, 4]
    assert len(benchmark.ledger.path.read_text().splitlines()) == 4


def test_a_killed_sweep_goes_on_from_its_checkpoint_and_ends_as_an_undisturbed_one(tmp_path):
    """The real command on a folder: killed after some steps, then called again."""
    write_images(tmp_path / "data" / "train" / "plain", drawings(60, side=32))
    write_images(tmp_path / "data" / "test" / "plain", drawings(10, side=32, seed=5))
    write_images(tmp_path / "data" / "test" / "odd", oddities(10, side=32))
    program = textwrap.dedent("""
        import os, sys
        from askew import training
        from askew.evaluation import sweep
        training.CHECKPOINT_SECONDS = 0
        preset = sweep._preset
        def shortened(kind, of):
            name, settings = preset(kind, of)
            return name, settings.with_views(2560)
        sweep._preset = shortened
        save, left = training.Checkpoint.save, int(sys.argv.pop(1))
        def saving(*arguments):
            global left
            save(*arguments)
            left -= 1
            if not left:
                os._exit(9)
        training.Checkpoint.save = saving
        from askew.cli import main
        main()
    """)

    def bench(folder, dies_after):
        words = ["bench", "run", f"folder:{tmp_path / 'data'}", "--seeds", "1", "--precision", "fp32"]
        command = [sys.executable, "-c", program, str(dies_after), *words, "--folder", str(tmp_path / folder)]
        return subprocess.run(command, capture_output=True, text=True)

    assert bench("broken", 7).returncode == 9
    (checkpoint,) = (tmp_path / "broken" / "runs").glob("*.checkpoint")
    assert not (tmp_path / "broken" / "ledger.jsonl").exists()
    again, whole = bench("broken", 1000), bench("whole", 1000)
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert "continuing from step 7 of 20" in again.stderr
    assert not checkpoint.exists()
    (one,), (other,) = (Benchmark(tmp_path / name).ledger.rows() for name in ("broken", "whole"))
    assert one.result == other.result
    assert again.stdout == whole.stdout


def test_every_recipe_lists_runs_of_known_sets():
    for name in RECIPES:
        assert all(sweep.seeds >= 1 and sweep.detectors for sweep in recipe(name).sweeps)
    table = recipe("paper-table-1")
    assert [sweep.dataset for sweep in table.sweeps] == ["cifar10", "cifar100", "fashion-mnist", "cats-vs-dogs"]
    assert {(sweep.preset, sweep.protocol, sweep.seeds) for sweep in table.sweeps} == {("paper", "paper", 5)}
    assert recipe("paper-aupr").sweeps == table.sweeps


def test_options_take_the_place_of_a_recipes_own():
    chosen = recipe("cifar10", seeds=2, detectors=["geometric"], labels=[0, 4], preset="paper", protocol="paper")
    assert chosen.sweeps == (
        Sweep("cifar10", ("geometric",), preset="paper", seeds=2, labels=(0, 4), protocol="paper"),
    )
    assert recipe("smoke", preset="paper").sweeps[0].views is None


def test_a_recipe_can_do_without_some_of_its_data_sets():
    (sweep,) = recipe("paper-table-1", datasets=["fashion-mnist"]).sweeps
    assert sweep.dataset == "fashion-mnist"
    with pytest.raises(InvalidInput, match="it has cifar10, cifar100"):
        recipe("paper-table-1", datasets=["mnist"])


def test_both_protocols_are_one_run_where_there_is_nothing_to_choose(data):
    by_protocol = [
        planned(Recipe("", (Sweep("drawings", protocol=rules),)), lambda name: data, precision="fp32")
        for rules in ("honest", "paper")
    ]
    assert [run.key for run, _ in by_protocol[0]] == [run.key for run, _ in by_protocol[1]]


def test_one_row_is_a_recipe():
    assert recipe("row:cifar10/5/geometric").sweeps == (Sweep("cifar10", ("geometric",), labels=(5,)),)
    assert recipe("row:folder:a/b/5/geometric").sweeps[0].dataset == "folder:a/b"
    for bad in ("row:cifar10/5", "row:cifar10/x/geometric", "row:cifar10/5/magic", "table-2"):
        with pytest.raises(InvalidInput, match=r"there are|such as|there is no"):
            recipe(bad)


def test_runs_are_planned_seed_by_seed_over_all_trained_classes(data):
    chosen = Recipe("", (Sweep("drawings", seeds=2),))
    runs = planned(chosen, lambda name: data, precision="fp32")
    assert [(run.seed, run.label) for run, _ in runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({run.key for run, _ in runs}) == 4
    with pytest.raises(InvalidInput, match="precision"):
        planned(chosen, lambda name: data, precision="fp64")
    alone = replace(data, test=Split(data.test.images[:20], data.test.labels[:20]))
    for label in (0, 1):
        with pytest.raises(InvalidInput, match="leave that class out"):
            planned(Recipe("", (Sweep("drawings", labels=(label,)),)), lambda name: alone, precision="fp32")
    with pytest.raises(InvalidInput, match="no training images of label 7"):
        planned(Recipe("", (Sweep("drawings", labels=(7,)),)), lambda name: data, precision="fp32")
