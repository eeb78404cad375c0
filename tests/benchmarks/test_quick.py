"""Every benchmark walks through its code on little data and writes complete rows; the indexes name every file."""

import csv
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nngk import progress
from nngk.search.native import core

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PROVENANCE = ("finished", "version", "commit", "command", "machine", "device")
needs_core = pytest.mark.skipif(core() is None, reason="the compiled core is not built")
may_make_namespaces = shutil.which("ip") and Path("/dev/net/tun").exists() and os.geteuid() == 0
needs_namespaces = pytest.mark.skipif(not may_make_namespaces, reason="network namespaces take root and /dev/net/tun")
needs_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")

# Script and task, and the columns that are numbers.
HERE = [
    pytest.param("audit/fewer_centres.py", ("accuracy",)),
    pytest.param("audit/label_errors.py", ("average_precision",)),
    pytest.param("gpu/distributed.py", ("value",), marks=pytest.mark.slow),
    pytest.param("gpu/hardware.py", ("value",)),
    pytest.param("gpu/step_cost.py", ("value",)),
    pytest.param("gpu/refresh_cost.py", ("value",)),
    pytest.param("gpu/graphs_gain.py", ("value",)),
    pytest.param("gpu/time_to_recall.py", ("value",)),
    pytest.param("losses/small_images.py", ("seed",)),
    pytest.param("networks/decoders.py", ("cpu_ms_per_image", "of_usual")),
    pytest.param("networks/throughput.py", ("images_per_second", "peak_memory_mib")),
    pytest.param("networks/cpu_inference.py", ("images_per_second", "of_bare_network"), marks=pytest.mark.slow),
    pytest.param("promise/accuracy.py", ("accuracy",)),
    pytest.param("promise/finetuned.py", ("seed", "seconds")),
    pytest.param("promise/startup.py", ("ratio", "cpu_ratio"), marks=pytest.mark.slow),
    pytest.param("promise/incremental.py", ("all", "old")),
    pytest.param("promise/unknown.py", ("auroc", "false_alarms", "oscr")),
    pytest.param("recipe/cuts.py", ("recall@1", "map@r", "nmi")),
    pytest.param("recipe/features.py", ("recall@1", "map@r")),
    pytest.param("recipe/pooling.py", ("recall@1", "map@r")),
    pytest.param("recipe/start.py", ("accuracy",)),
    pytest.param("recipe/variants.py", ("recall@1", "map@r", "sigma", "blend0.5_recall@1")),
    pytest.param("scale/lists_ahead.py", ("value", "least"), marks=pytest.mark.slow),
    pytest.param("scale/metrics.py", ("value",), marks=pytest.mark.slow),
    pytest.param("scale/sharded_bank.py", ("value",), marks=pytest.mark.slow),
    pytest.param("scale/simulation.py", ("measured", "simulated", "ratio"), marks=pytest.mark.slow),
    pytest.param("scale/two_machines.py", ("value",), marks=[pytest.mark.slow, needs_namespaces]),
    pytest.param("search/distance_counts.py", ("recall", "distances_per_query"), marks=needs_core),
    pytest.param("search/engines.py queries", ("recall", "queries_per_second"), marks=needs_core),
    pytest.param("search/engines.py pairs", ("recall", "seconds"), marks=needs_core),
    pytest.param("search/families.py", ("recall", "queries_per_second"), marks=needs_core),
    pytest.param("search/growth.py", ("recall", "seconds"), marks=needs_core),
    pytest.param("search/lists.py", ("recall", "exact_seconds", "fanng_seconds", "ratio"), marks=needs_core),
    pytest.param("search/on_disk.py", ("build_seconds", "search_peak_gib", "recall_0.95"), marks=needs_core),
    pytest.param("search/training_lists.py", ("accuracy", "recall@1"), marks=needs_core),
    pytest.param("serve/load.py", ("p50_ms", "p99_ms", "per_second", "ratio", "server_cpu_ms")),
    pytest.param("serve/map_frames.py", ("frames_per_second", "drawing_ms"), marks=[pytest.mark.slow, needs_browser]),
    pytest.param("search/update.py", ("recall", "seconds"), marks=needs_core),
]
# Those that launch Triton's kernels, in its interpreter.
INTERPRETED = [
    pytest.param("gpu/all_centres_loss.py"),
    pytest.param("gpu/losses_correct.py"),
    pytest.param("gpu/neighbour_loss.py"),
    pytest.param("gpu/exact_neighbours.py", marks=pytest.mark.slow),
    pytest.param("gpu/inference.py"),
    pytest.param("gpu/fused_convolutions.py", marks=pytest.mark.slow),
    pytest.param("gpu/googlenet_passes.py", marks=pytest.mark.slow),
]
# They have tests of their own.
OTHERS = {f"reliability/{name}.py" for name in ("faults", "hostile_images", "pack_faults", "promises", "stops")} | {
    "promise/tables.py",
    "recipe/taught.py",
    "recipe/unseen.py",
    "search/write_features.py",
}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(row[column] for row in rows for column in PROVENANCE)
    assert "FAILED" not in {row.get("what") for row in rows}
    return rows


def run_here(monkeypatch: pytest.MonkeyPatch, script: str, *words: str) -> None:
    """Run a benchmark as its command line would, without a new process that imports everything again."""
    path = BENCHMARKS / script
    monkeypatch.setattr(sys, "argv", [str(path), *words, "--quick", "--commit", "none+changes"])
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(progress, "quiet", True)
    runpy.run_path(str(path), run_name="__main__")


def run_there(script: str, out: Path, *options: str) -> subprocess.CompletedProcess:
    """Run a benchmark in a process of its own."""
    command = [sys.executable, str(BENCHMARKS / script), "--out", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("script", "numbers"), HERE)
@pytest.mark.thorough
def test_benchmark(tmp_path, monkeypatch, script, numbers):
    script, *words = script.split()
    run_here(monkeypatch, script, *words, "--out", str(tmp_path / "x.csv"))
    rows = rows_of(tmp_path / "x.csv")
    assert all(math.isfinite(float(row[column])) for row in rows for column in numbers)
    assert {row["commit"] for row in rows} == {"none+changes"}
    assert rows[0]["command"].startswith(f"python benchmarks/{script}")


@pytest.mark.parametrize("script", INTERPRETED)
@pytest.mark.thorough
def test_kernels(tmp_path, script):
    pytest.importorskip("triton")
    done = run_there(script, tmp_path / "x.csv", "--quick", "--commit", "none+changes")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "x.csv")
    assert all(math.isfinite(float(row["value"])) for row in rows)
    errors = [float(row["value"]) for row in rows if row["unit"] == "rel"]
    assert all(value < 0.03 for value in errors)
    if "correct" in script:
        assert {row["value"] for row in rows if row["unit"] == "bool"} == {"1.0"} and len(errors) == 6


def test_features_are_written_for_the_other_benchmarks(tmp_path, monkeypatch):
    run_here(monkeypatch, "search/write_features.py", "--out", str(tmp_path / "x.npy"))
    x = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert x.shape == (80, 128)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-4)


@needs_core
def test_a_quick_run_writes_no_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_here(monkeypatch, "search/update.py")
    assert [path.parent.name for path in tmp_path.rglob("*.csv")] == ["benchmarks-quick"]


def test_what_was_measured_before_a_failure_is_kept(tmp_path, monkeypatch, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text(
        f"import sys\nsys.path.insert(0, {str(BENCHMARKS / 'gpu')!r})\nfrom measure import report_of\n"
        "def measure(report):\n    report('before', 1.0, 's')\n    raise RuntimeError('no room')\n"
        "report_of('x', '', 'x.csv', measure)\n"
    )
    with pytest.raises(SystemExit, match="1"):
        run_here(monkeypatch, str(broken), "--out", str(tmp_path / "x.csv"))
    assert "no room" in capsys.readouterr().err
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [row["what"] for row in csv.DictReader(file)] == ["before", "FAILED"]


def test_every_benchmark_has_a_quick_run_and_a_place_in_the_index():
    files = {path.relative_to(BENCHMARKS).as_posix(): path for path in BENCHMARKS.glob("*/*") if path.suffix}
    scripts = {name for name, path in files.items() if '__name__ == "__main__"' in path.read_text(encoding="utf-8")}
    assert scripts == {str(param.values[0]).split()[0] for param in [*HERE, *INTERPRETED]} | OTHERS
    index = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+/\w+\.(?:py|sh|toml))`", index)) == set(files)


def test_every_result_is_in_the_index():
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.-]+\.csv)`", index, flags=re.MULTILINE))
    assert named == {path.name for path in (ROOT / "results").glob("*.csv")}
    for link in re.findall(r"\]\((\S+?)\)", index):
        assert (ROOT / "results" / link).exists(), link


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
    options = ("--device", "cpu", "--data", cub, "--weights", weights, "--networks", "googlenet-bvlc", "--limit", "70")
    for times in (1, 2):  # rows are added, none is lost
        done = run_there("recipe/pooling.py", tmp_path / "pooling.csv", *options)
        assert done.returncode == 0, done.stderr
        rows = rows_of(tmp_path / "pooling.csv")
        assert [(row["pool"], row["normalisation"]) for row in rows] == times * [
            (pool, setting) for pool in ("avg", "max", "avg+max", "gem") for setting in ("none", "LayerNorm + L2")
        ]
    assert all(float(row["recall@1"]) > 0.5 and row["seed"] == "0" for row in rows)


@pytest.mark.data
@pytest.mark.slow
def test_throughput_on_a_few_images(tmp_path: Path, cub: str) -> None:
    options = ("--device", "cpu", "--data", cub, "--limit", "4", "--batch-size", "2")
    done = run_there("networks/throughput.py", tmp_path / "x.csv", *options, "--networks", "resnet50", "resnet50-v1")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "x.csv")
    assert [row["network"] for row in rows] == ["resnet50", "resnet50-v1"]
    assert all(float(row["images_per_second"]) > 0 and float(row["peak_memory_mib"]) > 0 for row in rows)
