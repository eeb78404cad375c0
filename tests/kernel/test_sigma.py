"""Choosing σ, against a brute-force search in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.kernel.sigma import best_sigma
from nngk.search import Exact


def mean_loss(squared, same, sigma, theta=None):
    """The mean of equation 3's negative log over the rows that have a same-class neighbour, in float64."""
    squared = squared.double()
    values = -squared / (2 * sigma**2) + (0 if theta is None else theta.double())
    rows = same.any(1)
    positive = values.masked_fill(~same, -math.inf)[rows].logsumexp(1)
    return float((values[rows].logsumexp(1) - positive).mean())


def widest_within_a_nat(squared, same, grid, theta=None):
    """The widest of some widths, going up from the best one, whose summed loss is at most one above the lowest."""
    losses = [mean_loss(squared, same, sigma, theta) for sigma in grid]
    best = losses.index(min(losses))
    limit = losses[best] + 1 / int(same.any(1).sum())
    above = next((i for i in range(best, len(grid)) if losses[i] > limit), len(grid))
    return grid[above - 1]


def fine_grid(squared, low=1e-3, high=1e3, n=3000):
    scale = float(squared[squared.isfinite()].median().sqrt())
    return (torch.logspace(math.log10(low), math.log10(high), n, dtype=torch.float64) * scale).tolist()


@given(st.integers(0, 10_000), st.sampled_from([0.01, 1.0, 50.0]), st.booleans())
@settings(max_examples=12, deadline=None)
@pytest.mark.thorough
def test_best_sigma_is_the_widest_that_the_examples_cannot_tell_from_the_best(seed, scale, weighted):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 4
    x = (torch.randn(60, 3, generator=g) + labels[:, None] * 0.7) * scale
    squared, neighbours = Exact(x).all_neighbours(15)
    same = labels[neighbours] == labels[:, None]
    theta = torch.randn(60, 15, generator=g) if weighted else None
    chosen = best_sigma(squared, same, theta)
    reach = max(float(squared.max().sqrt()), 3 * float(squared[:, 0].sqrt().median()))
    grid = [s for s in fine_grid(squared, n=1500) if s <= reach]
    assert chosen == pytest.approx(widest_within_a_nat(squared, same, grid, theta), rel=0.02)


@pytest.mark.thorough
def test_many_examples_leave_only_the_minimum():
    """Two kernels whose best width has a formula, and so many examples that the widths beside it are worse.

    Half the rows have their class nearest, half have the other class nearest, by the same margin in d²; with a margin
    of a in favour and of b against, d loss / d(1/2σ²) = 0 where a s(-a u) = b s(b u), u = 1/2σ², s the logistic
    function.
    """
    a, b = 4.0, 1.0
    squared = torch.tensor([[1.0, 1.0 + a], [1.0, 1.0 + b]]).double().repeat(50_000, 1)
    same = torch.tensor([[True, False], [False, True]]).repeat(50_000, 1)
    low, high = 0.0, 100.0
    for _ in range(200):
        u = (low + high) / 2
        slope = -a / (1 + math.exp(a * u)) + b / (1 + math.exp(-b * u))
        low, high = (u, high) if slope < 0 else (low, u)
    assert best_sigma(squared, same) == pytest.approx(math.sqrt(1 / (2 * low)), rel=0.02)


@pytest.mark.parametrize("factor", [1e-4, 1e4])
@pytest.mark.thorough
def test_a_minimum_far_outside_the_first_grid(factor):
    """The grid follows the minimum: an outlying scale of nearest distances does not hide it."""
    a, b = 4.0 * factor**2, 1.0 * factor**2
    squared = torch.tensor([[1.0, 1.0 + a], [1.0, 1.0 + b]], dtype=torch.float64).repeat(20, 1)
    same = torch.tensor([[True, False], [False, True]]).repeat(20, 1)
    grid = (torch.logspace(-1, 1, 2000, dtype=torch.float64) * factor).tolist()
    assert best_sigma(squared, same) == pytest.approx(widest_within_a_nat(squared, same, grid), rel=0.01)


@pytest.mark.parametrize("near", [1e-4, 1.0])
def test_where_classes_lie_apart_the_width_does_not_collapse(near):
    """Every narrow width has loss 0 there, down to one centre that decides alone: rounding must not choose it."""
    squared = torch.tensor([[near, 1.2, 1.4, 9.0]]).repeat(40, 1)
    same = torch.tensor([[True, True, True, False]]).repeat(40, 1)
    chosen = best_sigma(squared, same)
    assert mean_loss(squared, same, chosen) == pytest.approx(1 / 40, rel=0.01)
    shares = (-squared[0] / (2 * chosen**2)).softmax(0)
    assert shares.max() < 0.6


@pytest.mark.parametrize("seed", range(5))
def test_where_neighbours_tell_nothing_the_width_stays_within_their_reach(seed):
    """Labels at random: the loss falls for ever as σ grows, and a kernel without a slope teaches nothing."""
    g = torch.Generator().manual_seed(seed)
    x, labels = torch.randn(200, 4, generator=g), torch.randint(4, (200,), generator=g)
    squared, neighbours = Exact(x).all_neighbours(20)
    chosen = best_sigma(squared, labels[neighbours] == labels[:, None])
    assert chosen <= 1.001 * max(float(squared.max().sqrt()), 3 * float(squared[:, 0].sqrt().median()))


def test_duplicates_only():
    same = torch.tensor([[True, False]])
    assert 0 < best_sigma(torch.zeros(1, 2), same) < math.inf


def test_missing_neighbours_do_not_matter():
    squared, same = torch.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 5.0]]), torch.tensor([[True, False, True]] * 2)
    padded = torch.cat([squared, torch.full((2, 2), math.inf)], 1)
    marks = torch.cat([same, torch.zeros(2, 2, dtype=torch.bool)], 1)
    assert best_sigma(padded, marks) == pytest.approx(best_sigma(squared, same), rel=1e-6)


def test_rows_without_a_same_class_neighbour_do_not_count():
    squared, same = torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([[True, False], [True, False]])
    more = torch.cat([squared, torch.tensor([[0.1, 0.2]])]), torch.cat([same, torch.tensor([[False, False]])])
    assert best_sigma(*more) == best_sigma(squared, same)
    with pytest.raises(InputError, match="Raise n_neighbours or give a fixed sigma"):
        best_sigma(squared, torch.zeros(2, 2, dtype=torch.bool))
