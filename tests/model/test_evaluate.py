"""A model is measured on the images that its training left aside, cropped as they were in training."""

import pytest

from nngk.model import evaluate as evaluation
from nngk.model.evaluate import evaluate_model
from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import TINY, write_shapes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), count=6)


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    return train(folder, Settings(**{**TINY, "epochs": 1, "seed": 3}), out=tmp_path_factory.mktemp("model") / "m")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"seed": 3, "crop_boxes": False, "allow_missing": False}),
        ({"crop_boxes": True, "allow_missing": True}, {"seed": 3, "crop_boxes": True, "allow_missing": True}),
    ],
)
def test_the_data_are_read_as_in_training(model, folder, monkeypatch, options, expected):
    seen, real = {}, evaluation.read_images
    monkeypatch.setattr(evaluation, "read_images", lambda data, **given: seen.update(given) or real(data, **given))
    scores = evaluate_model(model, folder, **options)
    assert scores["images"] == 18 and 0 <= scores["accuracy"] <= 1
    assert {name: seen[name] for name in expected} == expected


def test_a_model_of_an_earlier_version(model, folder, monkeypatch):
    monkeypatch.setattr(model, "info", {"task": "classify"})
    assert evaluate_model(model, folder)["images"] == 18
