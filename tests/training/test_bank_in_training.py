"""What goes into the bank and when, σ in its four ways, the centres' weights."""

import math

import numpy as np
import pytest
import torch

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import leave_one_out_sigma
from nngk.search import Exact
from nngk.training import loop
from nngk.training.loop import train
from runs import log_of, make_run, settings


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.thorough
def test_neither_dropout_nor_augmentation_nor_stale_weights_in_the_bank(background, data, tmp_path):
    model = train(data, settings(dropout=0.5, background=background, update_interval="2 steps"), out=tmp_path / "m")
    torch.testing.assert_close(model.embed(model.sources), model.centres, rtol=1e-4, atol=1e-5)


def test_training_steps_do_have_dropout_and_augmentation(data, tmp_path):
    run = make_run(data, tmp_path / "run", dropout=0.5)
    seen = []
    run.trainee.register_forward_hook(lambda module, inputs, output: seen.append((module.training, inputs[0])))
    loop.train_epoch(run, lambda: False, 0.0)
    trained = [x for training, x in seen if training]
    assert len(trained) == run.steps_per_epoch
    plain = run.feed.plain(run.feed.train.source.batch(run.index_batches(0)[0]), None)
    assert not torch.equal(trained[0], plain)
    # The bank's images are the plain ones, in evaluation mode.
    everything = run.feed.plain(run.feed.train.source.batch(range(len(run.bank))), None)
    assert torch.equal(torch.cat([x for training, x in seen if not training]), everything)


@pytest.mark.thorough
def test_background_refresh_in_the_loop(data, tmp_path):
    out = tmp_path / "m"
    model = train(data, settings(background=True, epochs=4), out=out)
    rows = log_of(out)
    assert all({"staleness", "lonely", "refresh_seconds", "bank_age"} <= row.keys() for row in rows)
    assert all(0 <= row["staleness"] <= row["step"] for row in rows)
    assert model.info["test"]["accuracy"] >= 0.75


@pytest.mark.parametrize(("interval", "steps"), [(1, [0, 3, 6]), (2, [0, 6]), ("2 steps", [0, 2, 4, 6])])
@pytest.mark.thorough
def test_update_interval(interval, steps, data, tmp_path):
    run = make_run(data, tmp_path / "run", update_interval=interval, epochs=3)
    assert run.steps_per_epoch == 3
    for epoch in range(3):
        run.at.epoch, run.at.batch = epoch, 0
        loop.train_epoch(run, lambda: False, 0.0)
    assert [r.snapshot_step for r in run.refresher.history if r.snapshot_step <= 6] == steps


def test_fixed_sigma(data, tmp_path):
    train(data, settings(sigma=0.37), out=tmp_path / "m")
    assert [row["sigma"] for row in log_of(tmp_path / "m")] == [0.37, 0.37]


@pytest.mark.thorough
def test_auto_sigma_is_a_multiple_of_the_leave_one_out_optimum(data, tmp_path):
    run = make_run(data, tmp_path / "run")
    run.refresher.before_step(0, run.trainee)
    expected = 1.5 * leave_one_out_sigma(run.bank)
    train(data, settings(sigma_factor=1.5), out=tmp_path / "m")
    assert [row["sigma"] for row in log_of(tmp_path / "m")] == pytest.approx([expected] * 2, rel=1e-5)
    train(data, settings(sigma_factor=3.0, epochs=1), out=tmp_path / "m3")
    assert log_of(tmp_path / "m3")[0]["sigma"] == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize("task", ["classify", "metric"])
def test_validation_sigma_is_the_widest_that_validation_cannot_tell_from_the_best(task, data, tmp_path):
    fractions = {"val_fraction": 0.5, "test_fraction": 0.0} if task == "metric" else {}
    run = make_run(data, tmp_path / "run", task=task, sigma="validation", **fractions)
    run.refresher.before_step(0, run.trainee)
    x, labels = run.embed(run.feed.val).double(), run.feed.val.labels
    if task == "metric":
        d, neighbours = Exact(x).all_neighbours(run.bank.n_neighbours)
        same = labels[neighbours] == labels[:, None]
    else:
        d, neighbours = Exact(run.bank.centres.double()).search(x, run.bank.n_neighbours)
        same = run.bank.labels[neighbours] == labels[:, None]

    def loss(sigma):
        values = -d / (2 * sigma**2)
        each = values.logsumexp(1) - values.masked_fill(~same, -math.inf).logsumexp(1)
        return float(each[same.any(1)].mean())

    reach = max(float(d.max().sqrt()), 3 * float(d[:, 0].sqrt().median()))
    limit = min(loss(sigma) for sigma in np.geomspace(0.01 * reach, reach, 400)) + 1 / int(same.any(1).sum())
    assert loss(run.objective.sigma) <= limit + 1e-3
    if run.objective.sigma < 0.9 * reach:
        assert loss(1.1 * run.objective.sigma) > limit


@pytest.mark.thorough
def test_learned_sigma_moves(data, tmp_path):
    train(data, settings(sigma="learned", epochs=3), out=tmp_path / "m")
    sigmas = [row["sigma"] for row in log_of(tmp_path / "m")]
    assert len(set(sigmas)) == 3 and all(s > 0 for s in sigmas)


@pytest.mark.thorough
def test_weights_are_learned_unless_told_otherwise(data, tmp_path):
    learned = train(data, settings(epochs=1), out=tmp_path / "learned")
    fixed = train(data, settings(epochs=1, learn_weights=False), out=tmp_path / "fixed")
    assert learned.theta.abs().max() > 0 and (fixed.theta == 0).all()


def test_another_loss_needs_no_bank_before_the_end(data, tmp_path, monkeypatch):
    renewed = []
    real = CentreBank.replace
    monkeypatch.setattr(CentreBank, "replace", lambda *a, **k: renewed.append(1) or real(*a, **k))
    train(data, settings(loss="softmax", epochs=3), out=tmp_path / "m")
    assert len(renewed) == 1
