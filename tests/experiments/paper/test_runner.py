"""Experiments as they run: every one on generated pictures, what is done is not done again."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nngk.errors import InputError
from nngk.experiments.paper import run_experiments
from nngk.experiments.paper.contents import EXPERIMENTS
from nngk.experiments.paper.quick import quick_table, shrink
from nngk.experiments.paper.train_and_test import examples_of
from nngk.experiments.paper.zero_shot import RIVALS
from nngk.experiments.record import read_rows, runs
from nngk.training import loop

NAMES = [experiment.name for experiment in EXPERIMENTS]
PROGRAM = """
import builtins, sys
real = builtins.__import__
absent = {"click", "rich", "matplotlib", "jinja2", "scipy", "sklearn", "timm", "pandas"}
def bare(name, *rest, **more):
    if name.split(".")[0] in absent:
        raise ImportError(name)
    return real(name, *rest, **more)
builtins.__import__ = bare
import torch
torch.set_num_threads(1)
from nngk.experiments.paper import run_experiments
rows = run_experiments(["birds-metric", "embedding"], quick=True, seeds=1, preset="best", only={"dataset": ["cub200"]},
                       results=sys.argv[1], work=sys.argv[2], commit="abc")
assert len(rows) == 6 and not any(row["error"] for row in rows), rows
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All experiments, one seed, our recipe; of the losses that Figure 2 compares with, two points."""
    home = tmp_path_factory.mktemp("paper")
    options = {"quick": True, "seeds": 1, "preset": "best", "results": home / "results", "work": home / "work"}
    rows = run_experiments([name for name in NAMES if name != "dimensions"], **options)
    rows += run_experiments("dimensions", only={"loss": ["nngk"]}, **options)
    rows += run_experiments("dimensions", only={"loss": RIVALS, "dim": ["64"], "dataset": ["cars196"]}, **options)
    return home, rows


def again(home: Path, names, **options):
    return run_experiments(names, quick=True, results=home / "results", work=home / "work", **options)


@pytest.mark.thorough
def test_every_experiment_runs_and_writes_its_rows(ran):
    home, rows = ran
    assert not [row["error"] for row in rows if row["error"]]
    for experiment in EXPERIMENTS:
        found = read_rows(home / "results" / f"{experiment.name}.csv")
        made = [t for t in experiment.trials("best") if t.settings.loss not in RIVALS]
        assert len(found) == len(made) + (2 if experiment.name == "dimensions" else 0)
        metric = experiment.view.metrics[0] if experiment.view.kind != "distances" else "accuracy"
        assert all(0 <= float(row[metric]) <= 1 and float(row["seconds"]) > 0 for row in found)
        assert all(row["commit"] and row["command"].startswith("nngk paper run") and row["machine"] for row in found)
        assert all(json.loads(row["settings"])["network"] == "small" for row in found)
    with (home / "results" / "distances-curve.csv").open() as file:
        curve = list(csv.DictReader(file))
    assert {row["epoch"] for row in curve} == {"0", "1", "2"}
    assert all(0 <= float(row["kernel"]) <= 1 for row in curve)
    assert len(list((home / "results" / "embedding").glob("*.npz"))) == 2


@pytest.mark.thorough
def test_the_gratings_are_learned(ran):
    # Chance is 1/8; a path that trains nothing, or on shuffled labels, would stay there.
    rows = [row for row in ran[1] if row["experiment"] == "birds-architectures" and row["loss"] == "nngk"]
    assert max(float(row["accuracy"]) for row in rows) > 0.5


@pytest.mark.thorough
def test_without_a_gpu_the_network_stays_as_it_came(tmp_path):
    options = {"quick": True, "seeds": 1, "preset": "frozen", "results": tmp_path / "r", "work": tmp_path / "w"}
    rows = run_experiments(["birds-metric", "neighbours", "ablation"], only={"dataset": ["cub200"]}, **options)
    assert not [row["error"] for row in rows if row["error"]]
    assert len(rows) == 5 + 7 + 3 and {row["preset"] for row in rows} == {"frozen"}
    settings = [json.loads(row["settings"]) for row in rows if row["variant"] not in ("random start", "ImageNet start")]
    assert all(s["freeze"] for s in settings)  # the other two train nothing at all
    # One file of features serves all lengths of the lists: training, validation and test images of two tasks.
    assert 0 < len(list((tmp_path / "w" / "images").glob("features-*.safetensors"))) < 20


@pytest.mark.thorough
def test_what_is_done_is_not_done_again(ran, monkeypatch):
    home, _ = ran
    before = (home / "results" / "fine-grained.csv").read_bytes()
    monkeypatch.setattr(runs, "train", lambda *a, **k: pytest.fail("trained again"))
    rows = again(home, ["fine-grained", "embedding"], seeds=1, preset="best")
    rows += again(home, "dimensions", seeds=1, preset="best", only={"loss": ["nngk"]})
    assert (home / "results" / "fine-grained.csv").read_bytes() == before
    assert len(rows) == 12 + 10 + 2
    rivals = [row for row in read_rows(home / "results" / "dimensions.csv") if row["loss"] in RIVALS]
    assert [row["loss"] for row in rivals] == list(RIVALS)
    assert all(float(row["lr"]) in (1e-3, 3e-3) and row["dim"] == "2" and not row["wide_run"] for row in rivals)


@pytest.mark.thorough
def test_a_new_seed_takes_the_choices_of_the_first(ran, monkeypatch):
    home, _ = ran
    real, seen = runs.train, []

    def spy(table, settings, **options):
        seen.append((settings.seed, settings.val_fraction, settings.epochs))
        return real(table, settings, **options)

    monkeypatch.setattr(runs, "train", spy)
    first = next(row for row in read_rows(home / "results" / "birds-metric.csv") if row["dim"] == "2")
    rows = again(home, "birds-metric", seeds=2, preset="best", only={"dim": [64]})
    assert seen == [(1, 0.0, int(first["epochs"]))]  # all training classes, for as long as validation said
    assert [int(row["seed"]) for row in rows] == [0, 1]
    assert rows[1]["key"] == rows[0]["key"]


@pytest.mark.thorough
def test_choosing_never_sees_the_test_part(tmp_path, monkeypatch):
    real, seen = runs.train, []

    def spy(table, settings, **options):
        seen.append((set(table.splits), len(set(table.labels.tolist())), settings))
        return real(table, settings, **options)

    monkeypatch.setattr(runs, "train", spy)
    options = {"quick": True, "seeds": 1, "results": tmp_path / "r", "work": tmp_path / "w"}
    run_experiments("birds-metric", preset="frozen", only={"dim": ["64"]}, **options)
    (chosen, classes, settings), (final, _, last) = seen
    assert chosen == {"train"} and classes == 4 and settings.val_fraction > 0
    assert final == {"train", "test"} and last.val_fraction == 0
    seen.clear()
    run_experiments("fine-grained", preset="paper", only={"loss": ["softmax"], "dataset": ["flowers102"]}, **options)
    assert [splits for splits, _, _ in seen] == [{"train", "val"}, {"train", "val"}, {"train", "val", "test"}]


@pytest.mark.thorough
def test_a_cut_run_goes_on(tmp_path, monkeypatch):
    options = {"quick": True, "seeds": 1, "preset": "best", "only": {"variant": ["25"]}}
    whole = run_experiments("neighbours", results=tmp_path / "a", work=tmp_path / "aw", **options)
    real, steps = loop.take_step, []

    def cut(run, *rest):
        steps.append(run.at.step)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return real(run, *rest)

    monkeypatch.setattr(loop, "take_step", cut)
    with pytest.raises(KeyboardInterrupt):
        run_experiments("neighbours", results=tmp_path / "b", work=tmp_path / "bw", **options)
    assert not (tmp_path / "b" / "neighbours.csv").exists()
    resumed = run_experiments("neighbours", results=tmp_path / "b", work=tmp_path / "bw", **options)
    assert steps[8] == 6, "it should have gone on after the first epoch's checkpoint"
    assert resumed[0]["accuracy"] == whole[0]["accuracy"] and resumed[0]["last_loss"] == whole[0]["last_loss"]


@pytest.mark.thorough
def test_a_run_that_diverges_is_a_row_and_is_tried_again(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise InputError("The loss became nan by step 3: training diverged.")

    options = {"quick": True, "seeds": 1, "preset": "best", "only": {"variant": ["5"]}}
    options |= {"results": tmp_path / "r", "work": tmp_path / "w"}
    with monkeypatch.context() as patch:
        patch.setattr(runs, "train", fails)
        (row,) = run_experiments("neighbours", **options)
    assert "diverged" in row["error"]
    (row,) = run_experiments("neighbours", **options)
    assert not row["error"] and len(read_rows(tmp_path / "r" / "neighbours.csv")) == 1


@pytest.mark.thorough
def test_on_a_machine_with_nothing_optional(tmp_path):
    source = str(Path(runs.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "r"), str(tmp_path / "w")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    with np.load(next((tmp_path / "r" / "embedding").glob("*.npz")), allow_pickle=False) as content:
        assert content["components"].shape[0] == 40 and "xy" not in content.files


def test_examples_are_nested_and_only_of_the_training_part(tmp_path):
    table = quick_table(tmp_path, "cub200", "classify")
    trial = EXPERIMENTS[5].trials("best")[0]

    def kept(count: int):
        job = type("Job", (), {"trial": replace(shrink(trial), examples=count), "seed": 3})
        return examples_of(job, table)

    two, four = kept(2), kept(4)
    assert set(two.where("train").paths) < set(four.where("train").paths)
    assert four.where("train").counts().tolist() == [4] * 8
    assert len(two.where("val")) == len(table.where("val")) and len(two.where("test")) == len(table.where("test"))


def test_mistakes_are_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("NNGK_DATA", raising=False)
    with pytest.raises(InputError, match="Did you mean 'birds-metric'"):
        run_experiments("bird-metric", quick=True)
    with pytest.raises(InputError, match="nngk data download cub200"):
        run_experiments("birds-metric", results=tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match=r"no CUB-200-2011 in .*data"):
        run_experiments("birds-metric", data=tmp_path / "data", results=tmp_path)
    with pytest.raises(InputError, match="chosen by"):
        run_experiments("birds-metric", quick=True, only={"size": ["3"]})
    with pytest.raises(InputError, match="compares networks"):
        run_experiments("birds-architectures", quick=True, network="resnet50")
    with pytest.raises(InputError, match="at least one seed"):
        run_experiments("birds-metric", quick=True, seeds=0)
    with pytest.raises(InputError, match="presets are"):
        run_experiments("birds-metric", quick=True, preset="good")
