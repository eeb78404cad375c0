"""A loss that is not finite: at which step, with which images, and what to change."""

import math
from pathlib import Path

import pytest
import torch

from nngk.errors import InputError
from nngk.training import loop
from nngk.training.recent_losses import RecentLosses
from runs import make_run


def recent(*values):
    found = RecentLosses([Path(f"{i}.png") for i in range(20)])
    for step, value in enumerate(values):
        found.add(step, torch.tensor(value), torch.arange(step, step + 5))
    return found


def test_the_sum_since_the_last_look():
    losses = recent(0.5, 0.25)
    assert losses.read() == 0.75 and losses.read() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_its_images(bad):
    with pytest.raises(InputError, match=rf"became {bad} at step 2, with the images 1.png, 2.png, 3.png, …: .*--lr"):
        recent(0.5, bad, math.nan).read()


def test_finite_losses_whose_sum_is_not():
    with pytest.raises(InputError, match=r"at step 2"):
        recent(3e38, 3e38).read()


def poison(run, step):
    """Make the embeddings of one step NaN, as a diverged network does."""
    plain = run.stepping

    def stepping(images):
        out = plain(images)
        return out * math.nan if run.at.step == step else out

    run.stepping = stepping


@pytest.mark.parametrize("loss", ["nngk", "softmax"])
def test_the_trainer_says_where(loss, data, tmp_path):
    run = make_run(data, tmp_path / "run", loss=loss)
    poison(run, 1)
    first = run.split.train.paths[int(run.index_batches(0)[1][0])]
    with pytest.raises(InputError) as said:
        loop.train_epoch(run, lambda: False, 0.0)
    assert f"became nan at step 2, with the images {first}, " in str(said.value)


def test_the_cause_is_said_before_what_came_of_it(data, tmp_path, monkeypatch):
    """Losses are read every 20 steps on a GPU; the bank may meet the NaN weights before that."""
    run = make_run(data, tmp_path / "run", update_interval="1 step", clip=0.0)
    poison(run, 0)
    monkeypatch.setattr(RecentLosses, "__len__", lambda self: 0)
    with pytest.raises(InputError, match="became nan at step 1, with the images"):
        loop.train_epoch(run, lambda: False, 0.0)


@pytest.mark.parametrize(("sigma", "expected"), [(1e-9, 1), (None, 0)])
def test_kernels_that_reach_nobody_are_said_once(sigma, expected, data, tmp_path, capsys):
    more = {} if sigma is None else {"sigma": sigma}
    run = make_run(data, tmp_path / "run", **more)
    log = loop.RunLog(run.folder)
    run.objective.before_step(0, run.trainee)
    for epoch in range(2):
        run.at.epoch, run.at.step = epoch + 1, epoch + 1
        loop._record(run, log, 0.5, 1.0, {}, False)
    assert capsys.readouterr().err.count("kernels reach nobody") == expected
