"""The command as a person meets it: what it prints, writes and exits with."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import askew
from commands import BIN, run
from pictures import drawings, oddities, write_images

COLUMNS = ["path", "anomaly_score", "threshold", "p_value", "verdict", "error"]


def table(path):
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_help_is_instant():
    """0.3 s is the promise on a quiet machine; the processor's time is what the code is answerable for on any."""
    seconds = []
    for _ in range(3):
        before = os.times()
        out, _ = run("--help")
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(spent)
    assert 0 < min(seconds) < 0.3
    assert "fit" in out


def test_help_loads_nothing_heavy():
    heavy = {"torch", "numpy", "scipy", "sklearn", "PIL", "pydantic"}
    script = (
        "import sys; sys.argv = ['askew', '--help']\nfrom askew.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print('HEAVY', sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout


def test_without_torch_the_command_says_one_helpful_line(place):
    script = (
        "import sys; sys.modules['torch'] = None\nimport askew\n"
        f"sys.argv = ['askew', *{['fit', str(place / 'normal'), '-o', str(place / 'x.safetensors')]!r}]\n"
        "from askew.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'askew[fit]'" in done.stderr
    assert done.stderr.count("\n") == 1


WITHOUT_TORCH = {
    "from askew import GeometricDetector": "fitting and scoring need torch",
    "from askew import load; load(model)": "fitting and scoring need torch",
    "from askew.networks import WideResNet": "networks need torch",
    "from askew.geometry import fit_dirichlet; fit_dirichlet(logs)": "Dirichlet fits need scipy",
    "from askew.geometry import dirichlet_normality; dirichlet_normality(logs[None], -logs)": None,
    "from askew.geometry import TransformSet; TransformSet.paper(8).apply(images)": None,
    "from askew.evaluation import auroc; auroc([1, 0], [1.0, 0.0])": None,
}


@pytest.mark.parametrize("use", WITHOUT_TORCH)
def test_without_torch_and_scipy_a_name_works_or_says_what_it_needs(place, use):
    script = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'scipy', 'sklearn'])\nimport numpy as np\n"
        f"model = {str(place / 'model.safetensors')!r}\n"
        f"logs, images = np.full((2, 2), -1.0), np.zeros((1, 8, 8, 1), 'u1')\n{use}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    words = WITHOUT_TORCH[use]
    said = "" if words is None else f"askew.errors.MissingExtra: {words}: pip install 'askew[fit]'"
    assert "".join(done.stderr.splitlines()[-1:]) == said
    assert done.returncode == bool(said)


def test_score_writes_a_row_per_image_in_order(here, place, tmp_path):
    here("score", place / "model.safetensors", place / "new", "-o", tmp_path / "s.csv")
    rows = table(tmp_path / "s.csv")
    assert list(rows[0]) == COLUMNS
    assert [Path(row["path"]).name for row in rows] == [f"{index:04}.png" for index in range(15)]
    assert [row["verdict"] for row in rows[10:]] == ["anomaly"] * 5
    detector = askew.load(place / "model.safetensors")
    assert [float(row["anomaly_score"]) for row in rows] == detector.anomaly_scores(place / "new").tolist()
    assert {float(row["threshold"]) for row in rows} == {detector.fitted_threshold.value}


def test_several_folders_and_files_are_scored_in_the_order_given(here, place, tmp_path):
    odd = write_images(tmp_path / "odd", oddities(2, seed=4))
    np.savez(tmp_path / "more.npz", images=oddities(1, seed=5))
    images = [odd / "0001.png", place / "new", tmp_path / "more.npz"]
    here("score", place / "model.safetensors", *images, "-o", tmp_path / "s.csv")
    rows = table(tmp_path / "s.csv")
    assert len(rows) == 17
    assert [Path(rows[index]["path"]).name for index in (0, 1, 16)] == ["0001.png", "0000.png", "more.npz[0]"]


def test_score_writes_json_lines(here, place, tmp_path):
    here("score", place / "model.safetensors", place / "new", "-o", tmp_path / "s.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [list(row) for row in rows] == [COLUMNS] * 15
    assert [row["verdict"] for row in rows[10:]] == ["anomaly"] * 5


def test_what_is_piped_is_csv_and_nothing_else(here, place):
    out, err = here("score", place / "model.safetensors", place / "new")
    assert out.splitlines()[0] == ",".join(COLUMNS)
    assert len(out.splitlines()) == 16
    assert "anomalies among 15 images" in err


def test_exit_codes(here, place, tmp_path):
    model = place / "model.safetensors"
    here("score", model, place / "new", "--quiet", code=0)
    here("score", model, place / "new", "--quiet", "--fail-on-anomaly", code=1)
    (tmp_path / "folder.safetensors").mkdir()
    normal = [place / "new" / f"{index:04}.png" for index in range(3)]
    here("score", model, *normal, "--quiet", "--fail-on-anomaly", "--false-alarm-rate", "0.04", code=0)
    for words in (
        ("score", model, tmp_path / "nothing"),
        ("score", tmp_path / "nothing", place / "new"),
        ("score", model, place / "new", "-o", tmp_path / "s.xlsx"),
        ("score", model, place / "new", "-o", tmp_path / "no" / "s.csv"),
        ("score", model, place / "new", "--false-alarm-rate", "0.0001"),
        ("score", model, place / "new", "--false-alarm-rate", "much"),
        ("score", model, place / "new", "--fdr", "0.1", "--false-alarm-rate", "0.1"),
        ("score", model, place / "new", "--device", "abacus"),
        ("score", model, place / "new", "--device", "hpu"),
        ("score", model, place / "new", "--fdr", "2"),
        ("fit", place / "normal", "-o", tmp_path / "m.safetensors", "--seed", "-1"),
        ("fit", place / "normal", "-o", tmp_path / "folder.safetensors"),
        ("fit", place / "normal", "-o", tmp_path / "model.bin"),
        ("fit", place / "normal", "-o", tmp_path / "no" / "model.safetensors"),
        ("fit", place / "normal", "-o", tmp_path / "m.safetensors", "--false-alarm-rate", "0.001"),
        ("fit", place / "normal", "-o", tmp_path / "m.safetensors", "--preset", "slow"),
        ("fit", place / "normal", "-o", tmp_path / "m.safetensors", "--group-by", "("),
        ("fit", place / "normal", "-o", tmp_path / "m.safetensors", "--group-by", "zzz"),
        ("info", place / "new" / "0000.png"),
        ("frobnicate",),
    ):
        _, err = here(*words, code=2)
        assert err.strip()
        assert len([line for line in err.splitlines() if line.startswith("askew:")]) == 1, err


def test_quiet_is_silent(here, place, tmp_path):
    model = tmp_path / "m.safetensors"
    out, err = here("fit", place / "normal", "-o", model, "--views", "640", "--side", "16", "--resume", "--quiet")
    assert (out, err) == ("", "")
    assert here("score", model, place / "new", "--quiet", "-o", tmp_path / "s.csv") == ("", "")


def test_fit_says_what_it_found_and_promises(here, place, tmp_path):
    model = tmp_path / "m.safetensors"
    _, err = here("fit", place / "normal", "-o", model, "--views", "640", "--side", "16", "--seed", "3")
    assert "150 images to fit on, grey, all 16x16" in err
    assert "held-out normal images" in err
    assert "training: " in err
    assert re.search(r"loss \d", err)
    out, _ = here("info", model)
    assert "geometric" in out
    assert re.search(r"images in \d s, seed 3\b", out)
    assert json.loads(here("info", model, "--json")[0])["policy"]["side"] == 16


def test_info_and_doctor_need_no_torch(place):
    for words in (["info", str(place / "model.safetensors")], ["doctor"]):
        script = (
            f"import sys; sys.modules['torch'] = None; sys.argv = ['askew', *{words!r}]\n"
            "from askew.cli import main\nmain()"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_calibrate_changes_the_threshold_alone(here, place, tmp_path):
    write_images(tmp_path / "fresh", drawings(60, seed=20))
    model = tmp_path / "again.safetensors"
    here("calibrate", place / "model.safetensors", tmp_path / "fresh", "-o", model, "--false-alarm-rate", "0.1")
    before, after = askew.load(place / "model.safetensors"), askew.load(model)
    assert after.fitted_threshold.n == 60
    assert after.fitted_threshold.false_alarm_rate == 0.1
    np.testing.assert_array_equal(before.score_samples(place / "new"), after.score_samples(place / "new"))
    _, err = here("calibrate", place / "model.safetensors", place / "normal", "-o", model, code=2)
    assert "used in fitting" in err


def test_the_false_discovery_rate_is_for_the_whole_batch(here, place, tmp_path):
    here("score", place / "model.safetensors", place / "new", "--fdr", "0.2", "-o", tmp_path / "s.csv")
    assert [row["verdict"] for row in table(tmp_path / "s.csv")[10:]] == ["anomaly"] * 5
    many = write_images(tmp_path / "many", np.concatenate([drawings(60, seed=6), oddities(1)]))
    _, err = here("score", place / "model.safetensors", many, "--fdr", "0.1", "-o", tmp_path / "s.csv")
    assert "must be anomalies for any to be flagged" in err


def test_bad_images_are_rows_with_reasons(here, place, tmp_path, monkeypatch):
    bad = write_images(tmp_path / "bad", drawings(2, seed=6))
    (bad / "broken.png").write_bytes((bad / "0000.png").read_bytes()[:50])
    (bad / "=cmd()|x.png").write_bytes(b"no image")
    Image.fromarray(oddities(1, channels=3)[0]).save(bad / "colour.png")
    odd_names = ["new\nline.png"]
    try:
        Path(os.fsdecode(os.fsencode(bad) + b"/not-utf8-\xff.png")).write_bytes((bad / "0001.png").read_bytes())
        odd_names.append(r"not-utf8-")
    except OSError:
        pass  # this file system refuses such names
    (bad / "new\nline.png").write_bytes((bad / "0001.png").read_bytes())
    _, err = here("score", place / "model.safetensors", bad, "-o", tmp_path / "s.csv")
    rows = table(tmp_path / "s.csv")
    assert len(rows) == 5 + len(odd_names)
    assert len([row for row in rows if row["error"]]) == 3
    assert all(row["verdict"] == "" and row["anomaly_score"] == "" for row in rows if row["error"])
    assert "3 images cannot be read" in err
    assert not any("\n" in row["path"] for row in rows)
    (bad / r"new\nline.png").write_bytes((bad / "0001.png").read_bytes())
    here("score", place / "model.safetensors", bad, "-o", tmp_path / "s.csv")
    assert len({row["path"] for row in table(tmp_path / "s.csv")}) == len(rows) + 1
    monkeypatch.chdir(bad)
    here("score", place / "model.safetensors", "=cmd()|x.png", "0000.png", "-o", tmp_path / "t.csv")
    assert table(tmp_path / "t.csv")[0]["path"].startswith("'=")


def test_a_link_in_a_circle_is_a_row_and_what_is_skipped_is_said(here, place, tmp_path):
    folder = write_images(tmp_path / "new", drawings(3, seed=6))
    for name in ("0001x.png", "more"):
        (folder / name).symlink_to(name)
    _, err = here("score", place / "model.safetensors", folder, "-o", tmp_path / "s.csv")
    assert [bool(row["error"]) for row in table(tmp_path / "s.csv")] == [False, False, True, False]
    assert f"skipped the folder {folder / 'more'}: " in err


def test_a_terminal_says_where_all_reasons_are_kept(here, place, tmp_path, monkeypatch):
    folder = write_images(tmp_path / "new", drawings(3, seed=6))
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"junk")
    words = ("score", place / "model.safetensors", folder)
    assert "keeps all reasons" not in here(*words)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, err = here(*words)
    assert "2 images cannot be read, the first: " in err
    assert "; -o scores.csv keeps all reasons\n" in err


def test_nothing_readable_is_an_error(here, place, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    _, err = here("score", place / "model.safetensors", tmp_path, code=2)
    assert "none of the 1 images can be" in err
    _, err = here("fit", tmp_path, "-o", tmp_path / "m.safetensors", code=2)
    assert "none of the 1 images can be" in err


def test_quoted_patterns_and_missing_paths(here, place):
    out, _ = here("score", place / "model.safetensors", place / "new" / "000*.png")
    assert len(out.splitlines()) == 11
    _, err = here("score", place / "model.safetensors", place / "nothing", code=2)
    assert "there is no file or folder" in err


def test_a_gate_without_a_threshold_is_refused(here, place, tmp_path, tiny_settings):
    model = tmp_path / "none.safetensors"
    askew.GeometricDetector(preset=tiny_settings, views=64, side=16, holdout=0.0).fit(drawings(20)).save(model)
    for gate in (["--fail-on-anomaly"], ["--fdr", "0.1"]):
        _, err = here("score", model, place / "new", *gate, code=2)
        assert "no threshold" in err
    out, err = here("score", model, place / "new")
    assert len(out.splitlines()) == 16
    assert "no verdicts" in err


def test_names_that_are_not_ascii_are_piped_under_any_locale(place, tmp_path):
    folder = write_images(tmp_path / "größe", drawings(1, seed=9))
    out, _ = run("score", place / "model.safetensors", folder, PYTHONIOENCODING="ascii")
    assert "größe" in out


def test_a_model_cannot_write_to_the_terminal(here, place, tmp_path):
    from askew import storage

    tensors, document = storage.read(place / "model.safetensors", kind="model")
    document["versions"]["askew"] = "\x1b[31mred"
    document["learned"]["recognition"] = ["not", "a", "table"]
    path = tmp_path / "evil.safetensors"
    storage.write(path, kind="model", tensors=tensors, document=document)
    out, _ = here("info", path)
    assert "\x1b" not in out
    document["\x1b[31mred"] = 1
    storage.write(path, kind="model", tensors=tensors, document=document)
    _, err = here("score", path, place / "new", code=2)
    assert "\x1b" not in err


def test_info_shows_no_shares_that_cannot_be(here, place, tmp_path):
    from askew import storage

    tensors, document = storage.read(place / "model.safetensors", kind="model")
    document["learned"]["recognition"] = {"turn": 10**400, "flip": -1e308, "shift": 0.25}
    storage.write(tmp_path / "forged.safetensors", kind="model", tensors=tensors, document=document)
    out, _ = here("info", tmp_path / "forged.safetensors")
    assert re.search(r"recognises +shift 25\.0 % *\n", out)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "askew", "--version"], capture_output=True, text=True, check=True)
    assert askew.__version__ in done.stdout


def test_images_of_the_fit_are_noticed(here, place):
    _, err = here("score", place / "model.safetensors", place / "normal")
    assert "150 images were used in fitting" in err


def test_a_full_disk_loses_nothing(place, tmp_path):
    """A limit on file size stands in for the full disk; what was there stays."""
    output = tmp_path / "s.csv"
    output.write_text("precious")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        f"sys.argv = ['askew', *{['score', *map(str, (place / 'model.safetensors', place / 'new', '-o', output))]!r}]\n"
        "from askew.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert output.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["s.csv"]


def start_fit(place, model):
    command = [BIN, "fit", place / "normal", "-o", model, "--views", "1000000", "--side", "16"]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("training:"):
            break
    return process


def test_ctrl_c_saves_and_exits_130_and_resume_goes_on(here, place, tmp_path):
    model = tmp_path / "m.safetensors"
    process = start_fit(place, model)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted; --resume continues"
    checkpoint = tmp_path / "m.checkpoint"
    assert checkpoint.exists()
    assert not model.exists()
    words = ("fit", place / "normal", "-o", model, "--side", "16")
    _, err = here(*words, "--views", "1000000", code=2)
    assert "--resume" in err
    _, err = here(*words, "--views", "640", "--resume", code=2)
    assert "other settings" in err
    process = subprocess.Popen(
        [str(BIN), *map(str, words), "--views", "1000000", "--resume"], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("continuing from step"):
            break
    else:
        pytest.fail("the fit did not continue")
    process.kill()
    process.communicate()


def test_the_version_is_told(here):
    assert askew.__version__ in here("--version")[0]


def test_the_demo_works_as_a_whole(here, tmp_path):
    out, _ = here("demo", "--folder", tmp_path / "de\x1bmo", "--views", "2560")
    assert "AUROC" in out
    assert "\x1b" not in out
    assert "were to be expected" in out
    rows = table(tmp_path / "de\x1bmo" / "scores.csv")
    assert len(rows) > 300
    with Image.open(tmp_path / "de\x1bmo" / "verdicts.png") as picture:
        assert picture.width > 800
    assert (tmp_path / "de\x1bmo" / "model.safetensors").exists()
