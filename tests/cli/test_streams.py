"""A command answers however it was started: with streams that are closed, and in an encoding that lacks the names."""

import io
import subprocess
import sys

import pytest

from nngk import cli
from nngk.cli.streams import prepare_streams
from shapes import command, environment
from small_models import small_model


@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.thorough
def test_a_closed_stream_in_a_real_process(closed, tmp_path):
    small_model().save(tmp_path / "model")
    line = f'"$@" {closed}{"<" if closed == 0 else ">"}&-'
    words = command("info", tmp_path / "model")
    done = subprocess.run(
        ["sh", "-c", line, "sh", *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert ("3 classes" in done.stdout) == (closed != 1)


def test_nothing_is_asked_of_streams_that_are_not_there(tmp_path, monkeypatch):
    model = tmp_path / "model"
    small_model().save(model)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    for words in (["classify", model, "-"], ["calibrate", model, tmp_path], ["info", tmp_path]):
        monkeypatch.setattr(sys, "argv", ["nngk", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 1, words


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_any_name_in_any_encoding(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    prepare_streams()
    print("caf\udce9 m\u00f6we \u03c3 \u9ce5", flush=True)
    said = written.getvalue()
    assert b"caf\xe9" in said and (b"\\u9ce5" in said) == (encoding != "utf-8")
