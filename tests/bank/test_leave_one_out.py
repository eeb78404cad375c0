"""The width that suits a bank, against a brute-force search in float64."""

import math

import pytest
import torch

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import leave_one_out_sigma, neighbour_sigma, training_sigma
from nngk.kernel.sigma import best_sigma
from nngk.search import Exact


def mean_loss(squared, same, sigma, theta):
    """The mean of equation 3's negative log, in float64."""
    values = theta.double() - squared.double() / (2 * sigma**2)
    return float((values.logsumexp(1) - values.masked_fill(~same, -math.inf).logsumexp(1)).mean())


def overlapping(m=80, seed=1, apart=0.6):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(m) % 4
    return torch.randn(m, 3, generator=g) + labels[:, None] * apart, labels


@pytest.mark.parametrize("neighbours", [79, None])
def test_leave_one_out_over_the_whole_bank(neighbours):
    """Over all pairs but the diagonal, by brute force: the widest whose summed loss is within one of the lowest."""
    x, labels = overlapping()
    bank = CentreBank(labels, 3, neighbours)
    bank.renew(x)
    with torch.no_grad():
        bank.theta.copy_(torch.randn(80) * 0.5)
    squared = (x.double()[:, None] - x.double()).square().sum(2)
    squared.fill_diagonal_(math.inf)
    same = (labels[:, None] == labels) & ~torch.eye(80, dtype=torch.bool)
    theta = bank.theta.detach().expand(80, -1)
    grid = torch.logspace(-2, 1, 2000, dtype=torch.float64).tolist()
    losses = [mean_loss(squared, same, s, theta) for s in grid]
    widest = max(s for s, loss in zip(grid, losses) if loss <= min(losses) + 1 / 80)
    assert leave_one_out_sigma(bank) == pytest.approx(widest, rel=0.01)


def test_leave_one_out_over_some_of_a_large_bank():
    x, labels = overlapping(400, apart=1.2)
    bank = CentreBank(labels, 3, 20)
    bank.renew(x)
    assert leave_one_out_sigma(bank, limit=200) == pytest.approx(leave_one_out_sigma(bank), rel=0.2)


def test_neighbour_sigma_of_validation_examples():
    x, labels = overlapping()
    bank = CentreBank(labels, 3, 10)
    bank.renew(x)
    y, y_labels = overlapping(40, seed=2)
    squared, neighbours = Exact(x).search(y, 10)
    expected = best_sigma(squared, labels[neighbours] == y_labels[:, None])
    assert neighbour_sigma(bank, y, y_labels, neighbours) == pytest.approx(expected, rel=1e-3)


def test_training_wants_a_wider_kernel():
    x, labels = overlapping()
    bank = CentreBank(labels, 3, 10)
    bank.renew(x)
    assert training_sigma(bank) == pytest.approx(1.5 * leave_one_out_sigma(bank))
    assert training_sigma(bank, 3.0) == pytest.approx(3 * leave_one_out_sigma(bank))
