"""What is built from settings and data, and what is left alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nngk.errors import InputError
from nngk.training import finish
from nngk.training.build import is_frozen, network_of
from nngk.training.loop import train
from nngk.training.run import RunState
from runs import make_run, settings


def network(source):
    return SimpleNamespace(config={"weights": {"source": source}})


@pytest.mark.parametrize(
    ("source", "device", "loss", "frozen"),
    [
        ("imagenet", "cpu", "nngk", True),
        ("imagenet", "cuda", "nngk", False),
        ("imagenet", "cpu", "softmax", False),
        ("random", "cpu", "nngk", False),
    ],
)
def test_what_is_frozen_unless_somebody_says(source, device, loss, frozen):
    s, place = settings(loss=loss), torch.device(device)
    assert is_frozen(s, network(source), place) is frozen
    for told in (True, False):
        assert is_frozen(replace(s, freeze=told), network(source), place) is told


@pytest.mark.parametrize(
    ("loss", "asked", "made"),
    [("nngk", True, True), ("nngk", False, False), ("softmax", True, False), ("triplet-global", False, True)],
)
def test_a_network_ends_as_its_loss_wants(loss, asked, made):
    built = network_of(settings(loss=loss, normalise=asked))
    assert built.head.normalise is built.config["normalise"] is made


def test_settings_and_tables_are_left_alone(data, tmp_path):
    given = settings(loss="softmax")
    before = given.to_dict()
    run = make_run(data, tmp_path / "run", loss="softmax")
    assert given.to_dict() == before and given.freeze is None
    assert run.settings.freeze is False and run.settings.normalise == given.normalise
    assert run.network.head.normalise is False


def test_two_runs_of_the_same_settings_are_built_alike(data, tmp_path):
    a, b = (make_run(data, tmp_path / name) for name in "ab")
    for x, y in zip(a.network.parameters(), b.network.parameters(), strict=True):
        assert torch.equal(x, y)
    assert a.notes == b.notes and a.notes[0].startswith("Neighbour lists: ")
    assert make_run(data, tmp_path / "c", loss="softmax").notes == []


def test_sigma_goes_evenly_to_its_end(data, tmp_path):
    run = make_run(data, tmp_path / "run", sigma=10.0, sigma_end=30.0)
    run.begin()
    seen = []
    for step in (0, run.total_steps // 2, run.total_steps):
        run.objective.before_step(step, run.trainee)
        seen.append(run.objective.sigma)
    halfway = 10 + 20 * (run.total_steps // 2) / run.total_steps
    assert seen == pytest.approx([10, halfway, 30])


def test_the_floor_reaches_the_loss(data, tmp_path):
    assert make_run(data, tmp_path / "run", floor=1e-10).objective.floor == 1e-10


def test_the_names_in_a_checkpoints_record_stay():
    """Runs that were begun with an earlier version are resumed by these names."""
    names = "epoch batch step loss_sum best_epoch best_score seconds last_refresh overrun data"
    assert list(vars(RunState())) == names.split()


def test_a_width_that_cannot_be_tuned_does_not_cost_the_model(data, tmp_path, monkeypatch):
    def nothing(*_):
        raise InputError("Sigma cannot be tuned")

    monkeypatch.setattr(finish, "classifier_sigma", nothing)
    model = train(data, settings(sigma=0.37, epochs=1, val_fraction=0.0), out=tmp_path / "m")
    assert model.sigma == pytest.approx(0.37)
