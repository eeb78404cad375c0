"""A command in this process, through the entry point that a person's command goes through."""

import io
import sys

import pytest

from nngk import cli


@pytest.fixture
def ask(monkeypatch, capfd):
    """A function that runs a command and returns its exit code, standard output and standard error."""

    def run(*arguments, stdin=None):
        monkeypatch.setattr(sys, "argv", ["nngk", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run
