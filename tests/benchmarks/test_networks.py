"""The networks' benchmark scripts run on a slice and write complete rows."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, out: Path, *options: str) -> list[dict[str, str]]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--out", str(out), "--device", "cpu", *options]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def cub() -> str:
    folder = os.environ.get("NNGK_DATA")
    if not folder or not Path(folder, "CUB_200_2011").is_dir():
        pytest.skip("set NNGK_DATA to the folder that holds CUB_200_2011")
    return folder


@pytest.mark.data
@pytest.mark.slow
def test_pooling_on_two_classes(tmp_path: Path, cub: str) -> None:
    weights = os.environ.get("NNGK_WEIGHTS")
    if not weights:
        pytest.skip("set NNGK_WEIGHTS to the folder of the weights")
    options = ("--data", cub, "--weights", weights, "--networks", "googlenet-bvlc", "--limit", "70")
    rows = run("pooling.py", tmp_path / "pooling.csv", *options)
    assert [(row["pool"], row["normalisation"]) for row in rows] == [
        (pool, setting) for pool in ("avg", "max", "avg+max", "gem") for setting in ("none", "LayerNorm + L2")
    ]
    assert all(row[column] for row in rows for column in ("commit", "command", "seed", "machine", "device"))
    assert all(float(row["recall@1"]) > 0.5 for row in rows)
    assert len(run("pooling.py", tmp_path / "pooling.csv", *options)) == 16  # rows are added, none is lost


@pytest.mark.data
@pytest.mark.slow
def test_throughput_on_a_few_images(tmp_path: Path, cub: str) -> None:
    options = ("--data", cub, "--limit", "4", "--batch-size", "2", "--networks", "resnet50", "resnet50-v1")
    rows = run("networks.py", tmp_path / "networks.csv", *options)
    assert [row["network"] for row in rows] == ["resnet50", "resnet50-v1"]
    assert all(float(row["images_per_second"]) > 0 and float(row["peak_memory_mib"]) > 0 for row in rows)
