"""Where a row comes from: the commit, the command, the machine and the moment."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch

from nngk import __version__

UNKNOWN = "unknown"  # the commit of a package that does not run from its repository
CHANGED = "+changes"  # after a commit whose source was changed and not committed
COLUMNS = ("finished", "version", "commit", "command", "machine", "device")


def provenance(
    device: str | torch.device = "cpu", commit: str | None = None, command: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the columns that say how to repeat a row.

    Args:
        device: where the row was computed.
        commit: the commit of the source, where git is not there to ask.
        command: the words of the command; by default those of this process.
    """
    return {
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "version": __version__,
        "commit": commit or source_commit(),
        "command": shlex.join(this_command() if command is None else command),
        "machine": f"{platform.machine()}, {_cores()} cores, torch {torch.__version__}",
        "device": _device_name(torch.device(device)),
    }


@cache  # the source that was imported stays the same however the tree changes while this process runs
def source_commit() -> str:
    """Return the commit of the source tree that this package runs from, with ``+changes`` where the tree differs."""
    here = Path(__file__).resolve()
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # not the repository of somebody who installed it
        head = _git(here.parent, "rev-parse", "HEAD")
        changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/benchmarks")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return head + (CHANGED if changed else "")


def short_commit(commit: str) -> str:
    """Return a commit in the length that people read, with what follows it kept whole.

    >>> short_commit("0123456789abcdef+changes"), short_commit("unknown")
    ('0123456789+changes', 'unknown')
    """
    head, plus, rest = commit.partition("+")
    return head[:10] + plus + rest


def this_command() -> list[str]:
    """Return the words of this process's command, without the folders that differ from machine to machine."""
    script, words = Path(sys.argv[0]), [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    parts = script.resolve().parts
    if "benchmarks" in parts:
        place = len(parts) - 1 - parts[::-1].index("benchmarks")
        return ["python", "/".join(parts[place:]), *words]
    return ["nngk" if script.name == "__main__.py" else script.name, *words]


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    if described.exists():
        for line in described.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "CPU"
