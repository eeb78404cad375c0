"""The benchmark of training on a GPU walks through all its sections on tiny pictures."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_training_benchmark(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_training.py"), "--quick", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--commit", "none"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "gpu_training.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    assert "FAILED" not in rows, done.stderr
    assert {row["section"] for row in rows.values()} == {"step", "refresh", "training", "profile", "target"}
    for what in ("kernel / softmax", "googlenet-bvlc, batch 20, background / none", "resnet50-v1, batch 128, step"):
        assert float(rows[what]["value"]) > 0
    assert all(row["commit"] == "none" and row["device"] for row in rows.values())
