"""The whole way on real images: scikit-learn's digits, with the settings of the demonstration."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from nngk.data import read_images, split
from nngk.experiments.demo import digits as demo
from nngk.metrics import evaluate
from nngk.training.loop import train

SETTINGS = replace(demo.SETTINGS, epochs=15)
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return demo.write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def accuracy(digits, tmp_path_factory):
    @cache
    def run(loss: str, background: bool, seed: int) -> float:
        settings = replace(SETTINGS, loss=loss, background=background, seed=seed)
        model = train(digits, settings, out=tmp_path_factory.mktemp("run") / "model")
        return model.info["test"]["accuracy"]

    return lambda loss="nngk", background=False: [run(loss, background, seed) for seed in SEEDS]


def noise(*runs: list[float]) -> float:
    """Standard error of a difference of means; at least one test image in 359."""
    return max(1 / 359, sum(stdev(r) ** 2 / len(r) for r in runs) ** 0.5)


def test_classification_reaches_98_5_and_softmax(accuracy):
    ours, softmax = accuracy(), accuracy("softmax")
    assert mean(ours) >= 0.985
    assert mean(ours) >= mean(softmax) - noise(ours, softmax)


def test_background_refresh_converges_to_the_same_accuracy(accuracy):
    blocking, background = accuracy(), accuracy(background=True)
    assert mean(background) >= mean(blocking) - 2 * noise(blocking, background)


@pytest.fixture(scope="module")
def eight(digits, tmp_path_factory):
    """A model of eight digits, with the images of the two it has not seen and the tests of those it has."""
    table = read_images(digits)
    new = np.isin(table.labels, [table.class_names.index(name) for name in demo.NEW])
    known = table.select(~new).compact()
    model = train(known, demo.SETTINGS, out=tmp_path_factory.mktemp("eight") / "model")
    s = demo.SETTINGS
    test = split(known, s.task, s.val_fraction, s.test_fraction, s.seed).test
    return model, table.select(new), test


def test_retrieval_of_unseen_digits(eight):
    model, unseen, _ = eight
    scores = evaluate(model.embed(unseen.paths), torch.as_tensor(unseen.labels), nmi_seeds=0)
    assert scores["recall@1"] >= 0.95


@pytest.mark.parametrize(("shown", "wanted"), [(5, 0.90), (20, 0.95)])
def test_classes_learned_by_being_shown(eight, shown, wanted):
    """Accuracy over all ten classes, as the mean of the classes' own, over five draws of what is shown."""
    model, unseen, test = eight
    before = model.answers(model.embed(test.paths))
    means = []
    for draw in range(5):
        rng = np.random.default_rng(draw)
        asked: list[Path] = list(test.paths)
        truth = [test.class_names[label] for label in test.labels]
        for name in demo.NEW:
            rows = rng.permutation(np.flatnonzero(unseen.labels == unseen.class_names.index(name)))
            assert model.add(name, [unseen.paths[i] for i in rows[:shown]]) == shown
            asked += [unseen.paths[i] for i in rows[shown:]]
            truth += [name] * (len(rows) - shown)
        names = np.array(model.class_names)[model.probabilities(model.embed(asked)).argmax(1).numpy()]
        right = names == np.array(truth)
        means.append(np.mean([right[np.array(truth) == name].mean() for name in model.class_names]))
        for name in demo.NEW:
            model.remove(name)
    assert np.mean(means) >= wanted
    assert model.answers(model.embed(test.paths)) == before  # forgetting gives back the old answers exactly
