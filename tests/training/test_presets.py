"""The presets: what is given wins, and the best recipe is what training does by default."""

from dataclasses import replace

import pytest

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
    usual_rate,
)
from nngk.training.settings import Settings


def test_presets_are_those_of_the_experiments():
    asked = {"task": "metric", "network": "googlenet-bvlc", "dim": 64}
    for name in MEASURED:
        of_experiments = metric_settings(name, 64, "googlenet-bvlc")
        start = "projection" if name == "paper" else "auto"  # the discriminant, where the network is pretrained
        lr = of_experiments.lr if name == "paper" else None  # the data choose it
        whiten = (
            None if name == "frozen" else of_experiments.whiten
        )  # chosen on validation classes, unless it is settled
        chosen = replace(of_experiments, network="googlenet-bvlc", embedding_start=start, lr=lr, whiten=whiten)
        assert preset_settings(name, asked) == chosen
    flowers = classify_settings("best", "resnet50", classes=102)
    assert flowers.dim == 101
    chosen = preset_settings("best", {"network": "resnet50"}, classes=102)
    assert chosen == replace(flowers, network="resnet50", lr=None, embedding_start="auto")
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
    assert preset_settings("frozen", {}, classes=3).dim == 512 and preset_settings("frozen", {}, classes=900).dim == 899


def test_names_there_are_not():
    with pytest.raises(InputError, match="The presets are 'best', 'frozen', 'paper', 'quick'; there is no 'fast'"):
        preset_settings("fast", {})
    with pytest.raises(InputError, match="The presets are 'paper', 'best', 'frozen'; there is no 'quick'"):
        require_preset("quick")
    with pytest.raises(InputError, match=r"Unknown setting 'epoch' in run\.toml"):
        preset_settings("best", {"epoch": 3}, source="run.toml")
    with pytest.raises(InputError, match="'dim' must be a whole number or 'none'; got 'wide'"):
        preset_settings("paper", {"task": "metric", "dim": "wide"})


@pytest.mark.parametrize("task", ["classify", "metric"])
def test_the_default_is_the_preset_that_suits_network_and_machine(task):
    given = {"task": task, "network": "resnet50"}
    for gpu, name in ((True, "best"), (False, "frozen")):
        assert preset_settings(None, given, classes=102, gpu=gpu) == preset_settings(name, given, classes=102)
    for trained in ({"freeze": False}, {"weights": "random"}, {"network": "small"}, {"loss": "softmax"}):
        asked = given | trained
        assert preset_settings(None, asked, classes=9) == preset_settings("best", asked, classes=9)
    frozen = given | {"freeze": True}
    assert preset_settings(None, frozen, classes=9, gpu=True) == preset_settings("frozen", frozen, classes=9)


def test_the_best_recipe_keeps_the_aspect_and_one_rate_for_all_layers():
    for name in ("best", "frozen"):
        for task in ("classify", "metric"):
            chosen = preset_settings(name, {"task": task}, classes=9)
            assert not chosen.squash and chosen.embedding_lr_factor == 1.0
    assert preset_settings("paper", {}, classes=9).squash


def test_settings_are_the_recipe_for_known_classes():
    chosen = preset_settings("best", {"network": "small"}, classes=600)
    own = Settings(network="small", dim=599, freeze=False, layers=1)
    assert chosen == own


def test_the_rate_that_is_used_where_the_data_cannot_choose():
    assert usual_rate(Settings(), frozen=False) == 1e-4  # the middle one of those that experiments choose from
    assert usual_rate(Settings(task="metric", network="resnet50"), frozen=False) == 2e-5
    assert usual_rate(Settings(task="metric", network="googlenet", dim=64), frozen=False) == 4e-5
    assert usual_rate(Settings(), frozen=True) == 3e-4
    assert usual_rate(Settings(task="metric"), frozen=True) == 1e-3
