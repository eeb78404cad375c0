"""Sizes that are cut from one wide run: trained once a seed, and what training each of them would have given."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nngk.errors import InputError
from nngk.experiments.paper import distances, run_experiments, unseen_map, zero_shot
from nngk.experiments.paper.quick import quick_table, shrink
from nngk.experiments.paper.results import trial_key
from nngk.experiments.paper.sections import total_seconds
from nngk.experiments.paper.sizes import wide_job
from nngk.experiments.paper.train_and_test import final_settings, train_and_test
from nngk.experiments.paper.trial import Job
from nngk.experiments.record import read_rows, runs
from nngk.model.model import Model
from nngk.training import loop
from nngk.training.loop import train

TESTED = ("recall@1", "recall@2", "recall@4", "recall@8", "r_precision", "map@r", "nmi")


@pytest.fixture
def wide(monkeypatch):
    """Our recipe for retrieval as if it were trained with 1024 dimensions (32 on gratings)."""

    def settings(preset, dim, network):
        return replace(presets(preset, dim, network), wide=1024)

    presets = zero_shot.metric_settings
    monkeypatch.setattr(zero_shot, "metric_settings", settings)
    monkeypatch.setattr(unseen_map, "metric_settings", settings)


@pytest.fixture
def trained(monkeypatch):
    """The settings of every training run."""
    real, seen = runs.train, []

    def spy(table, settings, **options):
        seen.append(settings)
        return real(table, settings, **options)

    monkeypatch.setattr(runs, "train", spy)
    return seen


def run(home, names, **options):
    options = {"quick": True, "seeds": 1, "preset": "best", "commit": "abc", **options}
    return run_experiments(names, results=home / "results", work=home / "work", **options)


def job_of(home, dim, wide, *, settled=True, **changes):
    """A job on gratings, as `nngk paper run` makes them."""
    trial = zero_shot.BIRDS.trials("best")[0]
    trial = replace(shrink(trial), settled=settled)
    settings = replace(trial.settings, network="small", weights="random", dim=dim, wide=wide, seed=1, device="cpu")
    settings = replace(settings, cache=str(home / "images"), hold_out=True, **changes)
    trial = replace(trial, settings=settings)
    table = quick_table(home / "data", "cub200", "metric")
    return Job(trial, settings, table, 1, 1, trial_key(trial, settings), home, home / "results", {})


@pytest.mark.thorough
def test_five_sizes_are_one_training_run(tmp_path, wide, trained):
    rows = run(tmp_path, "birds-metric")
    assert not any(row["error"] for row in rows)
    assert [(s.dim, s.wide) for s in trained] == [(32, None)]
    assert [row["dim"] for row in rows] == [2, 4, 8, 16, 32]
    assert len({row["map@r"] for row in rows}) == 5, "every size has figures of its own"
    *cuts, whole = rows
    assert {row["wide_run"] for row in cuts} == {whole["key"]} and not whole["wide_run"]
    for row in cuts:
        assert row["seconds"] > row["wide_seconds"] == whole["seconds"]
        assert row["last_loss"] == whole["last_loss"] and row["epochs"] == 2
        assert json.loads(row["settings"])["wide"] == 32
        model = Model.load(tmp_path / "work" / "runs" / f"cub200-{row['key']}" / "seed0")
        assert model.network.dim == model.centres.shape[1] == row["dim"]
        assert model.info["seconds"] == row["seconds"] and model.info["settings"]["dim"] == row["dim"]
    stored = read_rows(tmp_path / "results" / "birds-metric.csv")
    assert total_seconds(stored) == pytest.approx(whole["seconds"] + sum(r["seconds"] - whole["seconds"] for r in cuts))
    run(tmp_path, "birds-metric", seeds=2)
    assert [(s.dim, s.seed) for s in trained] == [(32, 0), (32, 1)]


@pytest.mark.thorough
def test_sizes_asked_one_after_the_other_do_not_train_twice(tmp_path, wide, trained):
    for size in (128, 1024, 64):
        run(tmp_path, "birds-metric", only={"dim": [size]})
    (tmp_path / "results" / "birds-metric.csv").unlink()  # rows are lost, what was trained is not
    rows = run(tmp_path, ["birds-metric", "embedding"], only={"dataset": ["cub200"]})
    assert len(trained) == 1 and len(rows) == 6 and not any(row["error"] for row in rows)


@pytest.mark.thorough
def test_the_widest_size_is_the_run_that_a_recipe_without_cuts_would_train(tmp_path, trained, monkeypatch):
    presets = zero_shot.metric_settings

    def trained_at(**size):
        monkeypatch.setattr(zero_shot, "metric_settings", lambda *given: replace(presets(*given), **size))

    trained_at(wide=None, whiten=0.0)
    (plain,) = run(tmp_path, "birds-metric", only={"dim": [1024]})
    (tmp_path / "results" / "birds-metric.csv").unlink()
    trained_at(wide=1024, whiten=0.5)
    rows = run(tmp_path, "birds-metric", only={"dim": [256, 1024]})
    assert len(trained) == 1
    assert rows[1]["key"] == plain["key"] == rows[0]["wide_run"] and rows[1]["map@r"] == plain["map@r"]


@pytest.mark.parametrize(
    "changes", [{}, {"freeze": True}, {"loss": "smart-mining"}, {"pool": "gem", "normalise": False, "dropout": 0.3}]
)
@pytest.mark.thorough
def test_a_cut_is_what_training_with_wide_gives(tmp_path, changes):
    job = job_of(tmp_path, 6, 24, **changes)
    figures = train_and_test(job)
    settings = final_settings(job.settings, figures)
    assert settings.wide == 24 and settings.val_fraction == 0
    direct = train(job.table, settings, out=tmp_path / "direct")
    cut = Model.load(job.folder)
    for key in TESTED:
        assert figures[key] == pytest.approx(direct.info["test"][key], abs=1e-6), key
    # Principal components have no sign, so the embeddings are compared by their products.
    torch.testing.assert_close(cut.centres @ cut.centres.T, direct.centres @ direct.centres.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cut.theta, direct.theta)
    assert cut.sigma == pytest.approx(direct.sigma, rel=1e-3) and cut.class_names == direct.class_names
    wide = Model.load(wide_job(job).folder)
    assert wide.network.dim == 24 and wide.info["test"]["map@r"] != figures["map@r"]
    assert not list(tmp_path.glob("runs/*/*/run/features-*"))


@pytest.mark.thorough
def test_choices_are_made_for_the_wide_run(tmp_path, trained):
    for dim in (3, 6):
        figures = train_and_test(job_of(tmp_path, dim, 24, settled=False))
        assert figures["selection_seconds"] > 0
    assert [(s.dim, s.wide, s.val_fraction) for s in trained] == [(24, None, 0.5), (24, None, 0.0)]


@pytest.mark.thorough
def test_a_wide_run_that_was_stopped_goes_on_for_another_size(tmp_path, monkeypatch):
    whole = train_and_test(job_of(tmp_path / "a", 6, 24))
    real, steps = loop.take_step, []

    def stopped(run, *rest):
        steps.append(run.at.step)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return real(run, *rest)

    monkeypatch.setattr(loop, "take_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        train_and_test(job_of(tmp_path / "b", 3, 24))
    resumed = train_and_test(job_of(tmp_path / "b", 6, 24))
    assert 0 < steps[8] < 8, "it should have gone on from the checkpoint"
    assert resumed["last_loss"] == whole["last_loss"]
    assert resumed["map@r"] == pytest.approx(whole["map@r"], abs=1e-6)


def test_cuts_of_other_images_are_refused(tmp_path):
    job = job_of(tmp_path, 6, 24)
    train_and_test(wide_job(job))
    fewer = job.table.select(np.arange(len(job.table)) != 0)
    with pytest.raises(InputError, match="trained with other images"):
        train_and_test(replace(job, table=fewer))


@pytest.mark.thorough
def test_a_map_of_the_unseen_classes_is_of_the_cut(tmp_path, wide, trained):
    rows = run(tmp_path, "embedding")
    assert not any(row["error"] for row in rows) and [s.dim for s in trained] == [32, 32]
    for row in rows:
        folder = tmp_path / "work" / "runs" / f"{row['dataset']}-{row['key']}" / "seed0"
        assert Model.load(folder).network.dim == row["dim"] == 16
        with np.load(tmp_path / "results" / "embedding" / f"{row['dataset']}-{row['key']}.npz") as content:
            assert content["components"].shape == (40, 16)


def test_watched_training_is_cut_at_its_end(tmp_path, monkeypatch):
    real, models = distances.finish, []

    def spy(run, seconds):
        models.append(real(run, seconds))
        return models[-1]

    monkeypatch.setattr(distances, "finish", spy)
    trials = distances.DISTANCES.make

    def wider(preset, network):
        return [replace(t, settings=replace(t.settings, wide=512)) for t in trials(preset, network)]

    monkeypatch.setattr(
        "nngk.experiments.paper.runner.find_experiment", lambda name: replace(distances.DISTANCES, make=wider)
    )
    (row,) = run(tmp_path, "distances")
    assert not row["error"] and row["accuracy"] > 0.2
    (model,) = models
    assert row["dim"] == 6 and model.network.dim == model.centres.shape[1] == 6
    assert {r["epoch"] for r in read_rows(tmp_path / "results" / distances.CURVE)} == {"0", "1", "2"}
