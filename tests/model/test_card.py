"""The card: written with the model, true after every change, and never in the place of a person's own."""

import os

import pytest
from click.testing import CliRunner

from faults import survived
from nngk import Model
from nngk.cli import cli
from nngk.model.card import CARD, MARK, interval
from serving import coloured
from small_models import small_model


def card_of(folder):
    return (folder / CARD).read_text(encoding="utf-8")


def test_a_card_says_what_the_model_is_and_follows_its_changes(tmp_path):
    model = small_model()
    model.info |= {"measured": {"training": 60, "validation": 20, "test": 20}, "data": "pictures_of_*"}
    model.save(tmp_path)
    text = card_of(tmp_path)
    low, high = interval(0.5, 20)
    assert f"| accuracy | 50.00% | {low:.2%} to {high:.2%} |" in text and "3 classes, 12 images" in text
    assert "10.0% false alarms" in text and "closeness and lead" in text and "pictures\\_of\\_\\*" in text
    with Model.changing(tmp_path, "cpu") as changed:
        changed.add("owl", [coloured("red", n) for n in range(3)])
        changed.remove("class 0 äöü")
    text = card_of(tmp_path)
    assert "3 classes, 11 images" in text and "owl (3)" in text and "class 0" not in text and "pruned" not in text


def test_figures_of_a_model_that_was_pruned_since_say_so(tmp_path):
    model = small_model()
    model.info |= {"pruned_from": 40}
    model.save(tmp_path)
    assert "since it was pruned: then it had 40 centres" in card_of(tmp_path)
    said = CliRunner().invoke(cli, ["info", str(tmp_path)]).stdout
    assert "measured before its 40 centres were pruned to 12" in said


def test_a_card_of_ones_own_stays(tmp_path):
    model = small_model()
    model.save(tmp_path)
    (tmp_path / CARD).write_text("My own words")
    model.save(tmp_path)
    assert card_of(tmp_path) == "My own words"
    (tmp_path / CARD).unlink()
    model.save(tmp_path)
    assert card_of(tmp_path).startswith(MARK)


def test_a_card_that_cannot_be_written_does_not_undo_the_model(tmp_path):
    (tmp_path / CARD).mkdir()
    small_model().save(tmp_path)
    assert len(Model.load(tmp_path, "cpu").class_names) == 3


def test_a_pipe_in_place_of_the_card_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / CARD)
    assert survived(lambda: small_model().save(tmp_path), within=20)
    assert len(Model.load(tmp_path, "cpu").class_names) == 3


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (1.0, 5), (0.37, 1000)])
def test_intervals_hold_the_share(share, n):
    low, high = interval(share, n)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1
