"""The commit, the command and the machine of a row; what follows a commit is never cut off."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nngk import __version__
from nngk.experiments.paper.report import write_report
from nngk.experiments.record import provenance, write_rows
from nngk.experiments.record.provenance import COLUMNS, source_commit, this_command

ROOT = Path(__file__).parents[3]


def git(folder, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose source is this package's module, as git sees it."""
    source = tmp_path / "src" / "nngk" / "provenance.py"
    source.parent.mkdir(parents=True)
    source.write_text("# the source\n")
    (tmp_path / "README.md").write_text("words\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(sys.modules[source_commit.__wrapped__.__module__], "__file__", str(source))
    return tmp_path


def test_the_commit_says_whether_the_source_was_changed(repository):
    head = git(repository, "rev-parse", "HEAD").strip()
    assert source_commit.__wrapped__() == head
    (repository / "README.md").write_text("other words\n")
    assert source_commit.__wrapped__() == head  # no figure depends on it
    (repository / "src" / "nngk" / "provenance.py").write_text("# another source\n")
    assert source_commit.__wrapped__() == head + "+changes"


def test_a_package_that_is_installed_in_another_repository_has_no_commit(repository):
    git(repository, "rm", "-q", "--cached", "src/nngk/provenance.py")
    git(repository, "commit", "-qm", "the package is only installed here")
    assert source_commit.__wrapped__() == "unknown"


def test_a_row_says_how_to_repeat_it(monkeypatch):
    monkeypatch.setattr(
        sys, "argv", [str(ROOT / "benchmarks" / "gpu" / "x.py"), "--data", "/some/where/cub", "--k", "3"]
    )
    row = provenance("cpu", commit="abc")
    assert tuple(row) == COLUMNS and all(row.values())
    assert row["command"] == "python benchmarks/gpu/x.py --data cub --k 3"
    assert (row["commit"], row["version"]) == ("abc", __version__) and torch.__version__ in row["machine"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", row["finished"])
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/nngk", "bench", "search"])
    assert this_command() == ["nngk", "bench", "search"]


def test_changes_after_a_commit_are_shown_everywhere(tmp_path):
    pytest.importorskip("jinja2")
    commit = "0123456789abcdef0123456789abcdef01234567+changes"
    row = {"experiment": "birds-metric", "preset": "best", "dataset": "cub200", "variant": "", "network": "resnet50-v1"}
    row |= {"loss": "nngk", "dim": "64", "examples": "", "seed": "0", "recall@1": "0.5", "seconds": "1", "key": "k"}
    row |= provenance("cpu", commit) | {"settings": "{}", "error": "", "epochs": "1", "lr": "0.1"}
    write_rows(tmp_path / "birds-metric.csv", [row])
    page, text = write_report(tmp_path, tmp_path / "report.html")
    assert "`0123456789+changes`" in text.read_text()
    shown = re.findall(r"0123456789\S*?(?=<)", page.read_text())
    assert len(shown) == 2 and set(shown) == {"0123456789+changes"}  # at the head of the page, and in the section
