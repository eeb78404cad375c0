"""Rows of results with what is needed to repeat them."""

import csv
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def circumstances(device: str, commit: str | None = None) -> dict[str, str]:
    """Commit, command, machine and device of this run."""
    # Folders differ between machines and say nothing: their last part is enough.
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    script = Path(sys.argv[0])
    cuda = torch.device(device).type == "cuda"
    return {
        "commit": commit or _commit(),
        "command": shlex.join(["python", f"{script.parent.name}/{script.name}", *words]),
        "machine": f"{platform.machine()}, {_cores()} cores, torch {torch.__version__}",
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
    }


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a CSV file; the file is complete at every moment."""
    old: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            old = list(csv.DictReader(file))
    columns = list(dict.fromkeys(key for row in [*rows, *old] for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows([*old, *rows])
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _commit() -> str:
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "../src", "."],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}{'+changes' if changed else ''}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "CPU"
