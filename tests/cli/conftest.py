"""The command, run in this process."""

import sys

import pytest

from askew.cli import main
from commands import judged


@pytest.fixture
def here(capsys, monkeypatch):
    """`run` in this process, which has loaded torch already."""

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["askew", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            main()
        return judged(*capsys.readouterr(), exit.value.code or 0, code)

    return run
