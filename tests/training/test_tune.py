"""Choosing the learning rate: what is tried, what it never sees, when it is left out, and how it is resumed."""

import json
import re
from itertools import pairwise

import pytest

from nngk.errors import InputError
from nngk.training import loop, tune
from nngk.training.loop import Interrupted, train
from nngk.training.presets import usual_rate
from nngk.training.tune import Tried, best_of, next_rate, tuned_rate, use_rate, wants_tuning
from runs import make_run, settings

PARTS = {"val_fraction": 0.25, "test_fraction": 0.25}


def never():
    return False


def scored(monkeypatch, scores):
    """Let short runs score as a table says, without training; return the rates that were asked for."""
    asked = []

    def short_run(run, lr, train_epoch, stopping):
        asked.append(lr)
        return scores(lr)

    monkeypatch.setattr(tune, "_short_run", short_run)
    return asked


@pytest.mark.parametrize(("peak", "tried"), [(5e-5, 4), (2e-4, 5), (1e-3, 7), (1e-6, 7)])
def test_the_list_is_widened_where_its_end_is_best(data, tmp_path, monkeypatch, peak, tried):
    asked = scored(monkeypatch, lambda lr: [1 - abs(lr / peak - 1)] if lr < peak else [peak / lr])
    run = make_run(data, tmp_path / "run", lr=None, **PARTS)
    chosen = tuned_rate(run, loop.train_epoch, never)
    assert asked[:4] == list(tune.TRAINED) and len(asked) == len(set(asked)) == tried
    assert chosen == min(asked, key=lambda lr: -(1 - abs(lr / peak - 1) if lr < peak else peak / lr))
    record = json.loads((run.folder / tune.RECORD).read_text())
    assert [row["lr"] for row in record["tried"]] == asked


def test_equal_rates_leave_the_recipe_alone():
    tried = [Tried(lr, [0.5, -1.0]) for lr in tune.TRAINED]
    assert next_rate(tried, tune.TRAINED, 1e-4) is None and best_of(tried, 1e-4).lr == 1e-4


def test_a_rate_that_fails_is_no_choice(data, tmp_path, monkeypatch):
    scored(monkeypatch, lambda lr: [] if lr > 5e-5 else [0.5 + lr])
    assert tuned_rate(make_run(data, tmp_path / "run", lr=None, **PARTS), loop.train_epoch, never) == 5e-5
    scored(monkeypatch, lambda lr: [])
    with pytest.raises(InputError, match="not finite at any learning rate"):
        tuned_rate(make_run(data, tmp_path / "none", lr=None, **PARTS), loop.train_epoch, never)


def test_no_test_image_is_read_and_the_run_is_left_as_it_was(data, tmp_path, monkeypatch):
    run = make_run(data, tmp_path / "run", lr=None, **PARTS)
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}

    def forbidden(indices):
        raise AssertionError("a test image was read")

    monkeypatch.setattr(run.feed.test.source, "batch", forbidden)
    monkeypatch.setattr(tune, "TRAINED", (1e-4, 1e-3))
    tuned_rate(run, loop.train_epoch, never)
    assert all(before[name].equal(tensor) for name, tensor in run.network.state_dict().items())
    assert run.at.step == 0 and not (run.folder / tune.FOLDER).exists()


def test_it_is_left_out_where_it_takes_too_long_or_was_not_wanted(data, tmp_path, monkeypatch, capsys):
    asked = scored(monkeypatch, lambda lr: [0.5])
    run = make_run(data, tmp_path / "run", lr=None, **PARTS)
    assert tuned_rate(run, loop.train_epoch, never, limit=0.0) == usual_rate(run.settings, frozen=False)
    assert not asked and re.search(r"would take about \d+ seconds?\. Give --lr", capsys.readouterr().err)
    assert wants_tuning(run, settings(lr=None)) and not wants_tuning(run, settings(lr=1e-3))
    assert not wants_tuning(run, settings(lr=None, tune=False))
    alone = make_run(data, tmp_path / "alone", lr=None, val_fraction=0.0)
    assert not wants_tuning(alone, settings(lr=None))


def test_the_rate_of_every_parameter_follows(data, tmp_path):
    run = make_run(data, tmp_path / "run", lr=1e-4, **PARTS)
    other = make_run(data, tmp_path / "other", lr=4e-4, **PARTS)
    use_rate(run, 4e-4)
    assert run.settings == other.settings
    for mine, theirs in zip(run.optimiser.param_groups, other.optimiser.param_groups):
        assert mine["base_lr"] == pytest.approx(theirs["base_lr"])


@pytest.mark.thorough
def test_a_stopped_tuning_goes_on_and_the_run_is_that_of_its_rate(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "TRAINED", (1e-4, 1e-3, 3e-3))
    monkeypatch.setattr(tune, "WIDEN", 0)
    short, tried = tune._short_run, []

    def interrupted(run, lr, train_epoch, stopping):
        tried.append(lr)
        if len(tried) == 2:
            raise Interrupted("Stopped.")
        return short(run, lr, train_epoch, stopping)

    monkeypatch.setattr(tune, "_short_run", interrupted)
    chosen = settings(lr=None, **PARTS)
    with pytest.raises(Interrupted):
        train(data, chosen, out=tmp_path / "m")
    model = train(data, chosen, out=tmp_path / "m", resume=True)
    assert tried == [1e-4, 1e-3, 1e-3, 3e-3]  # what was tried is not tried again
    lr = model.info["settings"]["lr"]
    assert lr in tried
    same = train(data, settings(lr=lr, **PARTS), out=tmp_path / "same")
    assert model.centres.equal(same.centres) and model.sigma == same.sigma


def test_rates_rise():
    for rates in (tune.TRAINED, tune.FROZEN):
        assert all(a < b for a, b in pairwise(rates))
