"""The presets, and the search for a recipe as a process.

The search validates on held-out training classes and never meets a test class.
"""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nngk
from nngk.errors import InputError
from nngk.training.presets import (
    BEST,
    MEASURED,
    PRESETS,
    QUICK,
    classify_settings,
    metric_settings,
    preset_settings,
    require_preset,
)
from nngk.training.settings import Settings

HOME = Path(nngk.__file__).parents[2]


def test_presets_are_those_of_the_experiments():
    asked = {"task": "metric", "network": "googlenet-bvlc", "dim": 64}
    for name in MEASURED:
        of_experiments = metric_settings(name, 64, "googlenet-bvlc")
        assert preset_settings(name, asked) == replace(of_experiments, network="googlenet-bvlc")
    flowers = classify_settings("best", "resnet50", classes=102)
    assert flowers.dim == 101
    chosen = preset_settings("best", {"network": "resnet50"}, classes=102)
    assert chosen == replace(flowers, network="resnet50", lr=1e-4)  # the middle one of the rates to choose from
    paper = classify_settings("paper", "vgg16")
    assert preset_settings("paper", {"network": "vgg16"}, classes=102) == replace(paper, network="vgg16")


def test_what_is_given_wins_over_a_preset():
    assert BEST.batch_size == 96
    chosen = preset_settings("best", {"batch_size": 8, "layers": "auto", "dim": 0, "margin": 0.0}, classes=5)
    assert (chosen.batch_size, chosen.layers, chosen.dim, chosen.pool) == (8, None, None, "avg+max")
    assert preset_settings("quick", {}) == QUICK
    assert preset_settings("quick", {"task": "metric", "dim": 8}) == replace(QUICK, task="metric", dim=8)
    # What is only valid together with the preset: it trains wide, so it can be evened out.
    assert preset_settings("best", {"task": "metric", "network": "googlenet", "dim": 64, "whiten": 0.5}).wide == 2048


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("task", ["classify", "metric"])
@pytest.mark.parametrize("dim", [None, 32, 4096])
@pytest.mark.parametrize("network", ["efficientnet-lite0", "googlenet", "resnet50", "vgg16"])
def test_every_preset_takes_every_task_network_and_size(name, task, dim, network):
    chosen = preset_settings(name, {"task": task, "dim": dim, "network": network}, classes=3)
    assert (chosen.task, chosen.dim, chosen.network) == (task, dim, network)
    assert chosen != Settings(task=task, dim=dim, network=network)


def test_few_classes_leave_room_for_more():
    assert preset_settings("best", {}, classes=3).dim == 64 and preset_settings("best", {}, classes=200).dim == 199


def test_names_there_are_not():
    with pytest.raises(InputError, match="The presets are 'best', 'frozen', 'paper', 'quick'; there is no 'fast'"):
        preset_settings("fast", {})
    with pytest.raises(InputError, match="The presets are 'paper', 'best', 'frozen'; there is no 'quick'"):
        require_preset("quick")
    with pytest.raises(InputError, match=r"Unknown setting 'epoch' in run\.toml"):
        preset_settings("best", {"epoch": 3}, source="run.toml")
    with pytest.raises(InputError, match="'dim' must be a whole number or 'none'; got 'wide'"):
        preset_settings("paper", {"task": "metric", "dim": "wide"})


def search(out: Path, *words: str, program: str = "recipes.py") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HOME / "src"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        str(HOME / "benchmarks" / program),
        "--data",
        str(out.parent),
        "--weights",
        "imagenet",
    ]
    command += ["--quick", "--device", "cpu", "--out", str(out), "--commit", "abc", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_variants_are_run_once_and_written_down(tmp_path):
    out = tmp_path / "recipes.csv"
    first = search(out, "--only", "base", "two layers", "sigma learned", "all centres")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("40 images of 4 classes")  # half of the eight classes: the others are for testing
    with out.open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert len(rows) == 4
    assert json.loads(rows["all centres"]["settings"])["n_neighbours"] is None
    assert len(json.loads(rows["base"]["recall@1_by_epoch"])) == 2
    assert 0 <= float(rows["sigma learned"]["map@r"]) <= 1
    assert "only its last one" in rows["two layers"]["error"]  # of the small network: said, and the others went on
    again = search(out, "--only", "base")
    assert again.stdout.count("\n") == 1 and again.returncode == 0


def test_a_bare_run_says_where_it_began_and_how_it_went(tmp_path):
    out = tmp_path / "recipes.csv"
    done = search(
        out, "--list", "paper", "--bare", "--only", "GoogLeNet's own dropout", "the pooled features themselves"
    )
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert json.loads(rows["GoogLeNet's own dropout"]["settings"])["dropout"] == 0.4
    for row in rows.values():
        assert not any(name.startswith(("blend", "cut", "again", "read")) for name in row)
        assert 0 <= float(row["start_recall@1"]) <= 1
        assert all(len(json.loads(row[f"{name}_by_epoch"])) == 2 for name in ("recall@1", "loss"))


def test_every_cut_of_a_run_is_written_down(tmp_path):
    out = tmp_path / "cuts.csv"
    done = search(out, "--wide", "8", "--shrinkage", "3", "--whiten", "0", "0.5", "--shard", "1/2", program="cuts.py")
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["dim"], row["whiten"]) for row in rows] == [("2", "0.0"), ("2", "0.5"), ("4", "0.0"), ("4", "0.5")]
    assert {row["fold"] for row in rows} == {"1"}  # the other fold is the other program's
    assert len({row["map@r"] for row in rows}) > 1 and all(0 <= float(row["nmi"]) <= 1 for row in rows)
