"""Write docs/command.md from what `askew --help` says; with --check, only tell whether it is up to date."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("command.md")
ASKEW = Path(sys.executable).with_name("askew")
HEAD = """\
# What does each verb of the command do?

This page is what the command says of itself; `make docs` writes it.

Exit codes: 0 done; 1 an anomaly was found and `--fail-on-anomaly` was given; 2 something the user can mend, told on one
line; 70 a bug, with its traceback; 130 interrupted.
"""


def said(*words: str) -> str:
    """What the command prints, at a fixed width."""
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run([ASKEW, *words], capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip()


def page() -> str:
    """The whole page."""
    top = said("--help")
    return "\n".join([HEAD, f"```\n{top}\n```\n", *(part for verb in verbs(top) for part in parts(verb))])


def verbs(help_text: str) -> list[str]:
    """The commands that a help text lists."""
    return re.findall(r"^  ([a-z]+) ", help_text.partition("Commands:")[2], re.MULTILINE)


def parts(*words: str) -> list[str]:
    """A section for a command, and one for each of its own commands."""
    text = said(*words, "--help")
    section = f"## askew {' '.join(words)}\n\n```\n{text}\n```\n"
    return [section, *(part for verb in verbs(text) for part in parts(*words, verb))]


if __name__ == "__main__":
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is not what the command says: run `make docs`")
