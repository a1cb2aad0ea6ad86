"""How the command ends where its output cannot go on, where it is interrupted, and where it is wrong."""

import logging
import os
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from commands import BIN
from pictures import drawings, write_images

FULL = Path("/dev/full")


def words_of(place, verb):
    return {
        "score": ["score", place / "model.safetensors", place / "new", "-q"],
        "info": ["info", place / "model.safetensors"],
        "doctor": ["doctor"],
        "help": ["--help"],
    }[verb]


def into(stdout, words, **options):
    command = [str(BIN), *map(str, words)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("verb", ["score", "info", "doctor", "help"])
def test_a_full_disk_is_told_on_one_line(place, verb):
    with FULL.open("w") as full:
        done = into(full, words_of(place, verb))
    assert done.stderr == "askew: standard output: cannot be written: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.parametrize("verb", ["score", "info", "doctor", "help"])
def test_a_closed_pipe_is_no_error(place, verb):
    reader, writer = os.pipe()
    os.close(reader)
    done = into(writer, words_of(place, verb))
    os.close(writer)
    assert (done.stderr, done.returncode) == ("", 0)


def test_an_output_that_is_closed_is_written_to_nobody(place):
    command = " ".join([str(BIN), *map(str, words_of(place, "score"))])
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    done = subprocess.run(f"{command[:-3]} 2>&-", shell=True, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 16
    assert done.returncode == 0


@pytest.mark.parametrize("output", [[], ["-o", "s.csv"]])
def test_a_full_temporary_folder_is_named(place, tmp_path, output):
    """A limit on file size stands in for the full folder."""
    words = ["score", str(place / "model.safetensors"), str(place / "new"), "-q", "--fdr", "0.2", *output]
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        f"sys.argv = ['askew', *{words!r}]\nfrom askew.cli import main\nmain()"
    )
    (tmp_path / "spool").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "spool")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    line = f"askew: {tmp_path / 'spool'}: verdicts cannot be put aside for --fdr: File too large; set TMPDIR to "
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2
    assert not (tmp_path / "s.csv").exists()


def test_a_bug_is_told_with_its_traceback_and_is_no_anomaly(here, place, monkeypatch):
    monkeypatch.setattr(import_module("askew.cli.info"), "read_model", lambda _: 1 / 0)
    _, err = here("info", place / "model.safetensors", code=70)
    assert err.startswith("Traceback")
    assert "ZeroDivisionError" in err


def test_an_interruption_is_told_on_one_line(here, place, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("askew.cli.score"), "load", interrupted)
    _, err = here(*words_of(place, "score"), code=130)
    assert err.split("\n") == ["", "interrupted", ""]


def test_quiet_silences_what_loading_and_pillow_remark(here, place, tmp_path, monkeypatch):
    score = import_module("askew.cli.score")
    loaded = score.load

    def load(*arguments, **options):
        logging.getLogger("askew").warning("the machine is slow today")
        return loaded(*arguments, **options)

    monkeypatch.setattr(score, "load", load)
    words = words_of(place, "score")
    assert here(*words)[1] == ""
    assert "slow today" in here(*words[:-1])[1]

    odd = write_images(tmp_path / "odd", drawings(1, seed=6))
    Image.fromarray(drawings(1, channels=3)[0]).save(tmp_path / "a.tif")
    good = (tmp_path / "a.tif").read_bytes()
    for name, tag, entry in (("warns.tif", 278, (305, 2, 400, 4000)), ("logs.tif", 277, (277, 3, 1, 200))):
        place_of_tag = good.index(struct.pack("<H", tag), struct.unpack("<I", good[4:8])[0])
        (odd / name).write_bytes(good[:place_of_tag] + struct.pack("<HHII", *entry) + good[place_of_tag + 12 :])
    done = into(subprocess.PIPE, ["score", place / "model.safetensors", odd, "-q"])
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 4
