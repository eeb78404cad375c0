"""The Dockerfile copies what the build reads."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copied():
    """The names at the root that come into the image which builds."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return {name for line in lines for name in line.split()}


def test_what_is_copied_is_there_and_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied() and all((ROOT / name).exists() for name in copied())
    assert all(any(fnmatch(name, pattern) for pattern in kept) for name in copied())


def test_everything_that_the_build_reads_is_copied():
    """CMake finds its sources by a pattern, which matches nothing without a word where a folder is missing."""
    named = set(re.findall(r"[\s(\"](\w+)/", (ROOT / "CMakeLists.txt").read_text()))
    folders = {name for name in named if (ROOT / name).is_dir()}
    assert "native" in folders and folders <= copied()
    assert {"src", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"} <= copied()
