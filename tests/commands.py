"""The installed command, run in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent / "askew"


def run(*words, code=0, **environment):
    """Run the command in a process of its own and return (standard output, standard error)."""
    done = subprocess.run(
        [str(BIN), *map(str, words)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return judged(out, err, done.returncode, code)


def judged(out, err, found, code):
    assert found == code, err
    if code == 2:
        assert "Traceback" not in err
    return out, err
