import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from askew.errors import BadFile, InvalidInput
from askew.evaluation import ledger as module
from askew.evaluation.ledger import Cost, Ledger, Result, Row, RunSettings, content_key, latest

SETTINGS = {
    "dataset": "cifar10",
    "data": "0123456789abcdef",
    "label": 5,
    "detector": "geometric",
    "preset": "fast",
    "settings": {"holdout": 0.2, "networks": {"32": {"depth": 10}}, "shifts": [0, -0.25, 0.25]},
    "precision": "bf16",
    "seed": 0,
    "protocol": "honest",
    "test_images": None,
}
RESULT = {
    "auroc": 0.875,
    "aupr_in": 0.5,
    "aupr_out": 0.97,
    "average_precision": 0.49,
    "fpr_at_95_tpr": 0.61,
    "false_alarm_rate": 0.01,
    "false_alarms": 12,
    "interval": (3, 22),
    "normals": 1000,
    "anomalies": 9000,
    "found": 4000,
}
COST = {
    "trained_on": 4000,
    "held_out": 1000,
    "training_seconds": 61.5,
    "scoring_seconds": 20.25,
    "peak_memory_bytes": 2**30,
    "training_views": 200_000,
    "scoring_views": 360_000,
    "training_macs": 10**15,
    "scoring_macs": 10**14,
}


def run(**changes):
    return RunSettings(**{**SETTINGS, **changes})


def row(auroc=0.875, failed="", **changes):
    of = run(**changes)
    return Row(
        key=of.key,
        run=of,
        class_name="Dog",
        status="failed" if failed else "done",
        reason=failed,
        result=None if failed else Result(**{**RESULT, "auroc": auroc}),
        cost=None if failed else Cost(**COST),
        where={"askew": "0.1", "hardware": "two cores"},
        finished="2026-11-19T08:00:00Z",
    )


def line(of):
    return json.dumps(of.model_dump(mode="json"), separators=(",", ":")).encode() + b"\n"


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.jsonl")


def refusal(ledger):
    with pytest.raises(BadFile) as caught:
        ledger.rows()
    message = str(caught.value)
    assert message.startswith(f"{ledger.path}: ")
    assert message.isprintable()
    assert len(message) < 600
    return message.removeprefix(f"{ledger.path}: ")


# Keys


def test_the_key_of_settings_never_changes():
    # Ledgers are resumed years later: another key here makes every run of theirs run again.
    assert run().key == "4b08f27c82b0ba60"
    assert run(test_images=500).key == "fdb83464ecd04a7e"


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "cifar100"},
        {"data": "0123456789abcdee"},
        {"label": 6},
        {"detector": "dagmm"},
        {"preset": "paper"},
        {"settings": {**SETTINGS["settings"], "holdout": 0.25}},
        {"precision": "fp32"},
        {"seed": 1},
        {"protocol": "paper"},
        {"test_images": 500},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_key_changes_with_every_field(change):
    assert run(**change).key != run().key


def test_every_field_has_its_change_above():
    marks = test_the_key_changes_with_every_field.pytestmark
    assert {name for change in marks[0].args[1] for name in change} == set(RunSettings.model_fields)


def test_settings_that_are_the_same_have_one_key_however_they_are_written():
    networks = {"32": {"depth": 10}}
    for same in (
        {"networks": networks, "shifts": [0, -0.25, 0.25], "holdout": 0.2},
        {"holdout": 0.2, "networks": {32: {"depth": 10.0}}, "shifts": (0.0, -0.25, 0.25)},
    ):
        assert run(settings=same).key == run().key
    assert run(settings={"a": True}).key != run(settings={"a": 1}).key


def test_a_setting_that_is_added_later_keeps_the_keys_of_those_before():
    class Later(RunSettings):
        colour: str = "grey"

    assert Later(**SETTINGS).key == run().key
    assert Later(**SETTINGS, colour="red").key != run().key


@given(
    st.recursive(
        st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aü\n") | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner),
    )
)
@settings(max_examples=40, deadline=None)
def test_the_key_is_the_same_before_and_after_it_was_stored(value):
    before = row(settings={"value": value})
    after = Row.model_validate_json(line(before))
    assert after == before
    assert after.run.key == content_key(before.run.model_dump(mode="json", exclude_defaults=True)) == before.key


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"bytes"])
def test_settings_that_are_no_json_are_refused_at_once(value):
    with pytest.raises(ValidationError, match="JSON"):
        run(settings={"value": value})


# Rows


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"key": "0" * 16}, "key of these settings is"),
        ({"result": None}, "result if it is done, and only then"),
        ({"status": "failed", "reason": "out of memory"}, "result if it is done, and only then"),
        ({"status": "failed", "result": None}, "failed run has a reason"),
        ({"status": "running"}, "'done' or 'failed'"),
        ({"result": {**RESULT, "auroc": float("nan")}}, "finite"),
        ({"result": {**RESULT, "auroc": 87.5}}, "less than or equal to 1"),
        ({"result": {**RESULT, "false_alarms": -1}}, "greater than or equal to 0"),
        ({"cost": {**COST, "training_seconds": float("inf")}}, "finite"),
        ({"colour": "red"}, "not permitted"),
    ],
)
def test_a_row_that_does_not_hold_together_cannot_be_made(changes, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Row(**{**row().model_dump(), **changes})


def test_a_perfect_score_may_end_a_rounding_above_one():
    assert Result(**{**RESULT, "aupr_in": 1 + 2e-16}).aupr_in >= 1


def test_the_last_row_of_a_key_counts_but_a_failure_never_hides_a_result(ledger):
    for one in (
        row(seed=0, failed="killed"),
        row(seed=1, auroc=0.8),
        row(seed=2, failed="first"),
        row(seed=0, auroc=0.7),
        row(seed=1, failed="diverged"),
        row(seed=2, failed="second"),
        row(seed=1, auroc=0.9),
    ):
        ledger.append(one)
    assert ledger.rows() == [row(seed=0, auroc=0.7), row(seed=1, auroc=0.9), row(seed=2, failed="second")]
    assert latest(ledger.rows()) == ledger.rows()
    assert [ledger.done(run(seed=seed).key) for seed in range(4)] == [True, True, False, False]


def test_a_ledger_that_is_not_there_has_no_rows_and_is_not_made_by_looking(ledger):
    assert ledger.rows() == []
    assert not ledger.done(run().key)
    assert not ledger.path.exists()


def test_a_row_is_one_line_of_json_after_those_before(ledger):
    awkward = row(seed=1, failed="first line\nsecond line\u2028\x00 ü")
    ledger.append(row())
    before = ledger.path.read_bytes()
    ledger.append(awkward)
    after = ledger.path.read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 2
    assert [json.loads(text)["key"] for text in after.splitlines()] == [row().key, awkward.key]
    assert ledger.rows() == [row(), awkward]


def test_a_row_without_end_is_refused_and_nothing_is_written(ledger):
    with pytest.raises(InvalidInput, match=r"up to 1,048,576 bytes, got 1,04"):
        ledger.append(row(failed="x" * 2**20))
    assert not ledger.path.exists()


# Crashes


def test_what_a_crash_leaves_of_a_row_is_passed_over_and_goes_with_the_next(ledger):
    whole, last, new = line(row(seed=0)), line(row(seed=1)), row(seed=2)
    for cut in [*range(0, len(last), 61), 1, 5, 17, len(last) - 2, len(last) - 1]:
        ledger.path.write_bytes(whole + last[:cut])
        complete = cut == len(last) - 1  # all but the line end
        expected = [row(seed=0), *([row(seed=1)] if complete else [])]
        assert ledger.rows() == expected, cut
        ledger.append(new)
        assert ledger.path.read_bytes() == whole + (last if complete else b"") + line(new), cut
        assert ledger.rows() == [*expected, new]


@pytest.mark.parametrize("left", [b"\0" * 700, b'{"schema_version":1,"key":"ab\0\0\0'])
def test_zeros_that_a_power_cut_leaves_are_passed_over_too(ledger, left):
    ledger.path.write_bytes(line(row()) + left)
    assert ledger.rows() == [row()]
    ledger.append(row(seed=1))
    assert ledger.path.read_bytes() == line(row()) + line(row(seed=1))


def test_nothing_that_is_not_a_torn_row_is_ever_cut_off(ledger):
    newer = b'{"schema_version":99,"key":"0123456789abcdef"}'  # whole, and from a newer askew
    reasons = {b"notes without a line end": "is not JSON", b"a line\n" + b"x" * 2**21: "is not JSON", newer: "newer"}
    for foreign, reason in reasons.items():
        ledger.path.write_bytes(foreign)
        ledger.append(row())
        assert ledger.path.read_bytes() == foreign + b"\n" + line(row())
        assert "line 1" in refusal(ledger)
        assert reason in refusal(ledger)


def test_a_disk_that_fills_up_leaves_the_ledger_as_it_was(ledger, monkeypatch):
    ledger.append(row())
    before = ledger.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:100]))
    with pytest.raises(BadFile, match="cannot be written: No space left"):
        ledger.append(row(seed=1))
    assert ledger.path.read_bytes() == before
    monkeypatch.undo()
    ledger.append(row(seed=1))
    assert len(ledger.rows()) == 2


def test_a_row_is_one_write_that_is_on_the_disk_when_append_returns(ledger, monkeypatch):
    calls = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda descriptor, data: calls.append("write") or write(descriptor, data))
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync") or fsync(descriptor))
    ledger.append(row())
    assert calls == ["write", "fsync", "fsync"]  # the second is the folder's


# Several processes


def appender(path, first, count, gate):
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_ledger import Ledger, row
rows = [row(seed=seed) for seed in range({first}, {first + count})]
Path({str(gate)!r} + "{first}").touch()
while not Path({str(gate)!r}).exists():
    time.sleep(0.001)
for one in rows:
    Ledger({str(path)!r}).append(one)
"""
    return subprocess.Popen([sys.executable, "-c", script])


def test_two_processes_append_at_once_while_a_third_reads(ledger, tmp_path):
    gate, count = tmp_path / "gate", 40
    ledger.path.write_bytes(line(row(seed=10**6)) + line(row(seed=10**6 + 1))[:300])
    processes = [appender(ledger.path, first, count, gate) for first in (0, count)]
    try:
        while not all((tmp_path / f"gate{first}").exists() for first in (0, count)):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.01)
        gate.touch()
        seen = [1]
        while any(process.poll() is None for process in processes):
            seen.append(len(ledger.rows()))
        assert [process.wait(timeout=30) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert seen == sorted(seen)
    expected = {row(seed=10**6).key} | {run(seed=seed).key for seed in range(2 * count)}
    assert {one.key for one in ledger.rows()} == expected
    assert ledger.path.read_bytes().count(b"\n") == len(expected)


# Files that are no ledger


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"not json", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"schema_version":1', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"9" * 5000, "is not JSON"),
        (b"[]", "is no row of a ledger"),
        (b"null", "is no row of a ledger"),
        (b'{"schema_version":1}', "is no row of a ledger: key: Field required"),
        (b'{"schema_version":2,"colour":"red"}', "was written by a newer askew, with schema 2: upgrade askew"),
        (b'{"schema_version":' + b"9" * 300 + b"}", "newer askew"),
        (b'{"\\u001b[2J\\u202e":1}', "is no row of a ledger"),
        (line(row()).replace(b'"seed":0', b'"seed":1').strip(), "the key of these settings is"),
        (line(row()).replace(b"0.875", b"NaN").strip(), "finite"),
        (line(row()).replace(b"0.875", b"1e999").strip(), "finite"),
        (line(row()).replace(b"0.2", b"Infinity").strip(), "JSON"),
        (line(row()).replace(b"0.2", b"[" * 800 + b"]" * 800).strip(), "is no"),
        (line(row()).replace(b'"seed":0', b'"seed":0,"\\u001b[31m":0').strip(), r"run.\x1b[31m: Extra inputs"),
    ],
)
def test_a_line_that_is_no_row_is_named_by_its_number_on_one_line(ledger, text, complaint):
    ledger.path.write_bytes(line(row()) + line(row(seed=2)) + text + b"\n" + line(row(seed=3)))
    message = refusal(ledger)
    assert message.startswith("line 3 ")
    assert complaint in message


def test_a_line_without_end_is_never_read_whole(ledger):
    with ledger.path.open("wb") as stream:
        stream.write(line(row()))
        stream.truncate(200 * 2**20)  # the rest is a hole of zeros
    tracemalloc.start()
    try:
        assert "line 2 is longer than the 1,048,576 bytes of a row" in refusal(ledger)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    with ledger.path.open("r+b") as stream:
        stream.truncate(2**28 + 1)
    assert "has 268,435,457 bytes, and a ledger up to 268,435,456" in refusal(ledger)


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_read_as_rows_or_refused_on_one_line(ledger, data):
    blob = bytearray(line(row()) + line(row(seed=1)) + line(row(seed=2, failed="x")))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(blob) - 1))
        blob[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    ledger.path.write_bytes(blob)
    try:
        rows, refused = ledger.rows(), ""
    except BadFile as error:
        rows, refused = [], str(error)
    assert refused.isprintable()
    assert all(one.key == one.run.key for one in rows)


def test_a_folder_or_a_pipe_is_no_ledger(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("", "pipe"):
        ledger = Ledger(tmp_path / name)
        assert "is not a regular file" in refusal(ledger) or "Is a directory" in refusal(ledger)
        with pytest.raises(BadFile, match=r"is a folder|is not a regular file"):
            ledger.append(row())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BadFile, match=r"there is no folder .*results; make it first"):
        Ledger(tmp_path / "results" / "ledger.jsonl").append(row())


def test_a_hostile_name_stays_on_its_line(tmp_path):
    path = tmp_path / "a\n\x1b[2J"
    path.write_bytes(b"x\n")
    with pytest.raises(BadFile) as caught:
        Ledger(path).rows()
    assert str(caught.value).isprintable()


def test_without_a_lock_reading_goes_on_and_writing_does_not(ledger, monkeypatch):
    ledger.append(row())

    def refused(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", refused)
    assert ledger.rows() == [row()]
    with pytest.raises(BadFile, match="No locks available"):
        ledger.append(row(seed=1))
