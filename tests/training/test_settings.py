"""Settings: every wrong value ends in a sentence, a file and the command line agree."""

import dataclasses
import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from nngk.errors import InputError
from nngk.training.fields import About, about, expected
from nngk.training.optimiser import create_optimiser, rate, set_rate
from nngk.training.settings import GROUPS, RETIRED, Settings, read_config

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_says_what_it_does_in_sentences(name):
    told = about(FIELDS[name])
    assert told.group in GROUPS
    assert told.help[0].isupper() and told.help.endswith(".") and len(told.help.split()) >= 4
    hint = get_type_hints(Settings)[name]
    # What is empty has a word, and the help says what it stands for.
    assert (type(None) in get_args(hint)) == bool(told.empty)
    assert not told.empty or any(said in told.help.lower() for said in (f"'{told.empty}'", "by default"))
    numeric = {int, float} & {hint, *get_args(hint)} and name != "update_interval"  # which has its own check
    assert bool(told.limits()) == bool(numeric), "a number has limits"


def test_groups_stand_together():
    groups = [about(field).group for field in FIELDS.values()]
    assert list(dict.fromkeys(groups)) == list(GROUPS) and groups == sorted(groups, key=GROUPS.index)


def test_limits_in_words():
    assert About("", "", above=0, most=1).limits() == "above 0 and up to 1"
    assert About("", "", above=0).limits() == "above 0"
    assert About("", "", most=5).limits() == "at most 5" and About("", "").limits() == ""
    assert About("", "", least=1, most=9, empty="none").limits() == "from 1 to 9, or 0 for none"
    assert expected(bool | None, About("", "", empty="auto")) == "true or false or 'auto'"


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
        ("sigma", "broad", "a number, 'auto', 'validation' or 'learned'"),
        ("dim", "64", "a whole number or 'none'"),
        ("epochs", 0, "at least 1"),
        ("batch_size", 1, "from 2 to 1048576"),
        ("batch_size", 10**20, "from 2 to 1048576"),
        ("guaranteed", 10**10, "from 0 to 10000"),
        ("wide", 10**11, "from 1 to 16384, or 0 for auto"),
        ("wide", 64, "at least as large as 'dim'"),
        ("lr", 0, "above 0 and up to 1e+06"),
        ("lr", math.nan, "above 0 and up to 1e+06"),
        ("lr", math.inf, "above 0 and up to 1e+06"),
        ("sigma", -1.0, "from 1e-15 to 1e+15"),
        ("sigma", math.inf, "from 1e-15 to 1e+15"),
        ("sigma", 1e30, "from 1e-15 to 1e+15"),
        ("dim", -3, "from 1 to 65536, or 0 for none"),
        ("n_neighbours", -1, "at least 1, or 0 for none"),
        ("crop_size", -16, "at least 1, or 0 for auto"),
        ("layers", -1, "at least 1, or 0 for auto"),
        ("guaranteed", -1, "from 0 to 10000"),
        ("seed", -1, "from 0 to below 2147483648"),
        ("seed", 10**13, "from 0 to below 2147483648"),
        ("clip", math.inf, "from 0 to 1e+06"),
        ("freeze", 0, "true or false or 'auto'"),
        ("cache", 0, "a text or 'auto'"),
        ("resident_gib", math.inf, "from 0 to 1e+06"),
        ("compile", "default", "'auto', 'off' or 'graphs'"),
        ("drop_centres", 1.0, "from 0 to below 1"),
        ("whiten", 1.5, "from 0 to 1"),
        ("embedding_lr_factor", 1e300, "above 0 and up to 1e+06"),
        ("dim", 10**8, "from 1 to 65536, or 0 for none"),
        ("patience", -1, "at least 0"),
        ("weight_decay", -1e-4, "from 0 to 1e+06"),
        ("momentum", math.nan, "from 0 to 1e+06"),
        ("weight_lr_factor", 0, "above 0 and up to 1e+06"),
        ("threads", 0, "at least 1"),
        ("dropout", 1.0, "from 0 to below 1"),
        ("floor", 1.0, "from 0 to below 1"),
        ("sigma_end", 20.0, "none unless 'sigma' is a number"),
        ("val_fraction", 1.0, "from 0 to below 1"),
        ("crop_scale", 0.0, "above 0 and up to 1"),
        ("warmup", 1.0, "from 0 to below 1"),
        ("step_factor", 0.0, "above 0 and up to 1"),
        ("head_epochs", 30, "less than the 30 epochs"),
    ],
)
def test_wrong_values(name, value, expected):
    with pytest.raises(InputError) as caught:
        Settings(**{name: value})
    said = str(caught.value)
    assert said.startswith(f"The setting '{name}' must be {expected}") and said.endswith(f"; got {value!r}.")


def test_a_floor_needs_lists_that_every_process_holds():
    with pytest.raises(InputError, match="'floor' must be 0 without neighbour lists"):
        Settings(floor=1e-10, n_neighbours=None)
    with pytest.raises(InputError, match="'floor' must be 0 with a sharded bank"):
        Settings(floor=1e-10, bank="sharded")


def test_config_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('epochs = 3\nbatch-size = 16  # with either dash\nsigma = "learned"\nflip = false\ndim = 0\n')
    settings = Settings.from_dict(read_config(path), str(path))
    assert (settings.epochs, settings.batch_size, settings.sigma, settings.flip) == (3, 16, "learned", False)
    assert settings.dim is None


def test_words_and_zero_stand_for_empty():
    settings = Settings.from_dict({"dim": "none", "layers": "auto", "freeze": "auto", "cache": "auto", "wide": 0})
    assert (settings.dim, settings.layers, settings.freeze, settings.cache, settings.wide) == (None,) * 5
    assert Settings(n_neighbours=0) == Settings(n_neighbours=None)
    assert Settings.from_dict({"sigma": "auto", "device": "auto"}) == Settings()  # words of their own
    with pytest.raises(InputError, match="'epochs' must be a whole number; got 'auto'"):
        Settings.from_dict({"epochs": "auto"})
    with pytest.raises(InputError, match="'dim' must be a whole number or 'none'; got 'auto'"):
        Settings.from_dict({"dim": "auto"})


def test_files_of_the_version_before():
    assert Settings.from_dict({"epochs": 3, "margin": 0.0, "write_back": False}) == Settings(epochs=3)
    assert not set(RETIRED) & set(FIELDS)
    for name, value in (("margin", 2.0), ("write_back", True), ("write_back", "yes"), ("margin", None)):
        with pytest.raises(InputError, match=f"{name} = .* in old.toml is no longer supported.*remove it"):
            Settings.from_dict({name: value}, "old.toml")
    for value in ("default", "reduce-overhead"):
        with pytest.raises(InputError, match=f"compile = '{value}' in old.toml is no longer supported: use 'auto'"):
            Settings.from_dict({"compile": value}, "old.toml")
    with pytest.raises(InputError, match=r"'compile' must be .*; got \['default'\]"):
        Settings.from_dict({"compile": ["default"]})


def test_config_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(tmp_path / "binary.toml")


def test_rate_rises_and_falls():
    s = Settings(warmup=0.2)
    shares = [rate(step, 50, s) for step in range(50)]
    assert shares[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert shares[10:] == pytest.approx([0.5 * (1 + math.cos(math.pi * i / 40)) for i in range(40)])
    assert {rate(step, 50, Settings(warmup=0.0, schedule="constant")) for step in range(50)} == {1.0}


def test_rate_in_steps():
    s = Settings(warmup=0.0, schedule="steps", epochs=7, step_epochs=3, step_factor=0.1)
    shares = [rate(step, 7 * 5, s) for step in range(7 * 5)]  # five steps in each epoch
    assert shares == pytest.approx([1.0] * 15 + [0.1] * 15 + [0.01] * 5)


def test_a_frozen_network_has_no_epochs_without_the_rest():
    with pytest.raises(InputError, match="'head_epochs' must be 0 for a frozen network"):
        Settings(freeze=True, head_epochs=1)


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
        create_optimiser(list(frozen.parameters()), [], [], Settings(lr=1e-3))
