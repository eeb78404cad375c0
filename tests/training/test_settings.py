"""Settings: every wrong value ends in a sentence, a file and the command line agree."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from nngk.cli.options import _reasons, given_settings
from nngk.errors import InputError
from nngk.training.optimiser import create_optimiser, rate, set_rate
from nngk.training.settings import Settings, read_config


def test_every_default_has_its_reason():
    assert set(_reasons()) == {f.name for f in dataclasses.fields(Settings)}


def test_round_trip():
    settings = Settings(task="metric", dim=None, sigma=0.3, update_interval="50 steps", freeze=False)
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(("wrong", "right"), [("epoch", "epochs"), ("n_neighbors", "n_neighbours"), ("sgima", "sigma")])
def test_unknown_name_suggests(wrong, right):
    with pytest.raises(InputError, match=f"Unknown setting '{wrong}' in run.toml. Did you mean '{right}'"):
        Settings.from_dict({wrong: 1}, "run.toml")


def test_unknown_name_without_a_neighbour():
    with pytest.raises(InputError, match=r"Unknown setting 'zzz' in the settings\.$"):
        Settings.from_dict({"zzz": 1})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", "ten", "a whole number"),
        ("epochs", 2.5, "a whole number"),
        ("epochs", True, "a whole number"),
        ("lr", "fast", "a number"),
        ("flip", 1, "true or false"),
        ("task", "cluster", "'classify' or 'metric'"),
        ("network", 3, "a text"),
        ("sigma", "broad", "a number or 'auto' or 'validation' or 'learned'"),
        ("dim", "64", "a whole number or empty"),
        ("epochs", 0, "at least 1"),
        ("batch_size", 1, "from 2 to 1048576"),
        ("batch_size", 10**20, "from 2 to 1048576"),
        ("guaranteed", 10**10, "at most 10000"),
        ("wide", 10**11, "at most 16384"),
        ("lr", 0, "above 0 and up to 1e+06"),
        ("lr", math.nan, "above 0 and up to 1e+06"),
        ("lr", math.inf, "above 0 and up to 1e+06"),
        ("sigma", -1.0, "from 1e-15 to 1e+15"),
        ("sigma", math.inf, "from 1e-15 to 1e+15"),
        ("sigma", 1e30, "from 1e-15 to 1e+15"),
        ("dim", -3, "at least 1, or 0 for none"),
        ("n_neighbours", -1, "at least 1, or 0 for none"),
        ("crop_size", -16, "at least 1, or 0 for none"),
        ("guaranteed", -1, "at least 0"),
        ("seed", -1, "at least 0"),
        ("seed", 10**13, "below 2147483648"),
        ("margin", math.inf, "from 0 to 1e+06"),
        ("embedding_lr_factor", 1e300, "above 0 and up to 1e+06"),
        ("dim", 10**8, "at most 65536"),
        ("patience", -1, "at least 0"),
        ("weight_decay", -1e-4, "from 0 to 1e+06"),
        ("momentum", math.nan, "from 0 to 1e+06"),
        ("weight_lr_factor", 0, "above 0 and up to 1e+06"),
        ("threads", 0, "at least 1"),
        ("dropout", 1.0, "from 0 to below 1"),
        ("val_fraction", 1.0, "from 0 to below 1"),
        ("crop_scale", 0.0, "above 0 and up to 1"),
        ("warmup", 1.0, "from 0 to below 1"),
    ],
)
def test_wrong_values(name, value, expected):
    with pytest.raises(InputError) as caught:
        Settings(**{name: value})
    assert f"'{name}' must be {expected}; got {value!r}" in str(caught.value)


def test_config_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('epochs = 3\nbatch-size = 16  # with either dash\nsigma = "learned"\nflip = false\ndim = 0\n')
    settings = Settings.from_dict(read_config(path), str(path))
    assert (settings.epochs, settings.batch_size, settings.sigma, settings.flip) == (3, 16, "learned", False)
    assert not settings.dim


def test_config_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(tmp_path / "binary.toml")


def test_what_is_not_given_stays_out():
    given = given_settings(
        {"epochs": 3, "dim": 0, "sigma": "0.5", "update_interval": "2 steps", "lr": None, "flip": False}
    )
    assert given == {"epochs": 3, "dim": None, "sigma": 0.5, "update_interval": "2 steps", "flip": False}
    assert Settings.from_dict(given).sigma == 0.5


def test_rate_rises_and_falls():
    s = Settings(warmup=0.2)
    shares = [rate(step, 50, s) for step in range(50)]
    assert shares[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert shares[10:] == pytest.approx([0.5 * (1 + math.cos(math.pi * i / 40)) for i in range(40)])
    assert {rate(step, 50, Settings(warmup=0.0, schedule="constant")) for step in range(50)} == {1.0}


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_groups_have_their_own_rates_and_decay(optimiser):
    backbone, head, theta = nn.Linear(3, 3), nn.Linear(3, 2), nn.Parameter(torch.zeros(5))
    s = Settings(optimiser=optimiser, lr=0.01, embedding_lr_factor=10, weight_decay=0.1)
    extra = [{"params": [theta], "lr": 1.0, "weight_decay": 0.0}]
    made = create_optimiser(list(backbone.parameters()), list(head.parameters()), extra, s)
    seen = {id(g["params"][0]): (g["lr"], g["weight_decay"]) for g in made.param_groups}
    assert seen[id(backbone.weight)] == (0.01, 0.1) and seen[id(backbone.bias)] == (0.01, 0.0)
    assert seen[id(head.weight)] == (pytest.approx(0.1), 0.1) and seen[id(head.bias)] == (pytest.approx(0.1), 0.0)
    assert seen[id(theta)] == (1.0, 0.0)
    set_rate(made, 0.5)
    set_rate(made, 0.5)  # of the base rate, not of the last one
    assert {round(g["lr"], 6) for g in made.param_groups} == {0.005, 0.05, 0.5}


def test_nothing_to_train():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train"):
        create_optimiser(list(frozen.parameters()), [], [], Settings())
