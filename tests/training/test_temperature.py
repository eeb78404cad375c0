"""Temperature scaling of a softmax layer: a plain search agrees, and a model's probabilities have it."""

import math

import pytest
import torch

from nngk.training.finish import softmax_layer
from nngk.training.loop import train
from nngk.training.temperature import HIGHEST, LOWEST, best_temperature, with_temperature
from runs import make_run, settings


def loss_by_loops(logits, labels, temperature):
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist()):
        top = max(row)
        total += math.log(sum(math.exp((v - top) / temperature) for v in row)) - (row[label] - top) / temperature
    return total / len(labels)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_temperature_is_better(seed):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, 4, generator=g) * 3
    labels = torch.where(torch.rand(60, generator=g) < 0.6, logits.argmax(1), torch.randint(4, (60,), generator=g))
    best = best_temperature(logits, labels)
    least = loss_by_loops(logits, labels, best)
    assert all(
        loss_by_loops(logits, labels, best * factor) >= least - 1e-9 for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2)
    )


def test_it_stays_within_bounds():
    right = torch.eye(3) * 5
    assert best_temperature(right, torch.arange(3)) == pytest.approx(LOWEST, rel=1e-3)
    assert best_temperature(-right, torch.arange(3)) == pytest.approx(HIGHEST, rel=1e-3)


def test_scores_of_a_layer_are_divided():
    x, weight, bias = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
    plain = with_temperature({"weight": weight, "bias": bias}, 2.0)
    torch.testing.assert_close(x @ plain["weight"].T + plain["bias"], (x @ weight.T + bias) / 2)
    scaled = with_temperature({"weight": weight, "bias": bias, "scale": torch.tensor(20.0)}, 4.0)
    assert scaled["scale"] == 5 and torch.equal(scaled["weight"], weight)


def test_a_model_has_the_temperature_of_its_validation_images(data, tmp_path):
    run = make_run(data, tmp_path / "run", loss="softmax", val_fraction=0.3)
    run.begin()
    logits = run.objective.logits(run.embed(run.feed.val)).detach()
    plain, made = run.objective.layer(), softmax_layer(run)
    torch.testing.assert_close(made["weight"] * best_temperature(logits, run.feed.val.labels), plain["weight"])
    model = train(data, settings(loss="softmax", epochs=1, val_fraction=0.3, hold_out=True), out=tmp_path / "model")
    assert model.classes.softmax is not None
