"""``nngk bench search`` through a real process."""

import json
import subprocess
import sys

import pytest


@pytest.mark.thorough
def test_bench_search(tmp_path):
    command = [sys.executable, "-m", "nngk", "bench", "search", "--n", "400", "--dim", "8", "--k", "5"]
    command += ["--peers", "exact,fanng", "--threads", "1", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) and (tmp_path / "search.csv").exists()
    nonsense = ["nothing" if word == "exact,fanng" else word for word in command]
    wrong = subprocess.run(nonsense, capture_output=True, text=True, timeout=200)
    assert wrong.returncode == 1 and "Error: " in wrong.stderr and "Traceback" not in wrong.stderr
