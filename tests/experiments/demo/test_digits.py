"""The whole way on real images: scikit-learn's digits, with the settings of the demonstration."""

from dataclasses import replace
from functools import cache
from statistics import mean

import numpy as np
import pytest
import torch

from nngk.data import read_images, split
from nngk.experiments.demo import digits as demo
from nngk.metrics import evaluate
from nngk.training.loop import train

pytestmark = pytest.mark.thorough

SETTINGS = replace(demo.SETTINGS, epochs=8)
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

    return lambda loss="nngk", background=False: [run(loss, background, seed) for seed in SEEDS[:2]]


@pytest.mark.slow
def test_classification_is_as_good_as_softmax(accuracy):
    """Means of two seeds, about 0.99 each; two points, or eight test images, are more than their noise."""
    ours, softmax = mean(accuracy()), mean(accuracy("softmax"))
    assert ours >= 0.96
    assert ours >= softmax - 0.02


@pytest.mark.slow
def test_background_refresh_converges_to_the_same_accuracy(accuracy):
    assert mean(accuracy(background=True)) >= mean(accuracy()) - 0.02


@pytest.fixture(scope="module")
def eights(digits, tmp_path_factory):
    """Models of eight digits, one per seed, each with the unseen digits and the test images of the eight."""
    table = read_images(digits)
    new = np.isin(table.labels, [table.class_names.index(name) for name in demo.NEW])
    known = table.select(~new).compact()
    made = []
    for seed in SEEDS:
        s = replace(demo.SETTINGS, seed=seed)
        model = train(known, s, out=tmp_path_factory.mktemp("eight") / "model")
        test = split(known, s.task, s.val_fraction, s.test_fraction, s.seed).test
        made.append((model, table.select(new), test))
    return made


def test_retrieval_of_unseen_digits(eights):
    """About 0.97 to 0.99 for each seed."""
    scores = [
        evaluate(model.embed(unseen.paths), torch.as_tensor(unseen.labels), nmi_seeds=0)["recall@1"]
        for model, unseen, _ in eights
    ]
    assert mean(scores) >= 0.93


def test_no_single_image_decides_every_answer(eights):
    """Classes that separate perfectly used to leave a width of a tenth of the distance between neighbours."""
    for model, _, test in eights:
        largest = [answer.evidence[0].share for answer in model.classify(test.paths)]
        assert np.median(largest) < 0.6


@pytest.mark.parametrize(("shown", "wanted"), [(5, 0.88), (20, 0.92)])
def test_classes_learned_by_being_shown(eights, shown, wanted):
    """Accuracy over all ten classes, as the mean of the classes' own: about 0.93 and 0.96."""
    assert mean(learned(*eight, shown) for eight in eights) >= wanted


def learned(model, unseen, test, shown):
    """The mean over five draws of what is shown."""
    old, new = model.embed(test.paths), model.embed(unseen.paths)
    before = model.answers(old)
    means = []
    for draw in range(5):
        rng = np.random.default_rng(draw)
        asked = [old]
        truth = [test.class_names[label] for label in test.labels]
        for name in demo.NEW:
            rows = rng.permutation(np.flatnonzero(unseen.labels == unseen.class_names.index(name)))
            assert model.add(name, [unseen.paths[i] for i in rows[:shown]]) == shown
            asked.append(new[rows[shown:].copy()])
            truth += [name] * (len(rows) - shown)
        names = np.array(model.class_names)[model.probabilities(torch.cat(asked)).argmax(1).numpy()]
        right = names == np.array(truth)
        means.append(np.mean([right[np.array(truth) == name].mean() for name in model.class_names]))
        for name in demo.NEW:
            model.remove(name)
    assert model.answers(old) == before  # forgetting gives back the old answers exactly
    return np.mean(means)
