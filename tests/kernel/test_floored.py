"""The loss with a floor under every class: plain loops in float64, the authors' arithmetic, and what it teaches."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.bank.centres import CentreBank
from nngk.errors import InputError
from nngk.kernel.floored import floored_neighbour_loss
from nngk.losses.gaussian import GaussianKernelLoss

CLASSES, FLOOR = 6, 1e-10


def by_loops(x, centres, theta, sigma, neighbours, labels, centre_labels, floor=FLOOR):
    """The released code of the authors, class by class: the floor stands where a class has no kernel."""
    losses = []
    for i in range(len(x)):
        sums = [None] * CLASSES
        for j in neighbours[i].tolist():
            if j >= 0:
                kernel = torch.exp(theta[j] - ((x[i] - centres[j]) ** 2).sum() / (2 * sigma**2))
                label = int(centre_labels[j])
                sums[label] = kernel if sums[label] is None else sums[label] + kernel
        floored = [torch.tensor(floor, dtype=torch.float64) if s is None else s for s in sums]
        losses.append(-torch.log(floored[int(labels[i])] / torch.stack(floored).sum()))
    return torch.stack(losses)


def problem(seed, batch=7, m=15, k=5, dim=4, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(batch, dim, generator=g, dtype=torch.float64) * spread).requires_grad_()
    centres = torch.randn(m, dim, generator=g, dtype=torch.float64) * spread
    theta = torch.randn(m, generator=g, dtype=torch.float64).requires_grad_()
    neighbours = torch.stack([torch.randperm(m, generator=g)[:k] for _ in range(batch)])
    neighbours[torch.rand(batch, k, generator=g) < 0.2] = -1
    neighbours[0] = -1  # nothing is near: every class has the floor
    centre_labels = torch.randint(CLASSES, (m,), generator=g)
    return x, centres, theta, neighbours, torch.randint(CLASSES, (batch,), generator=g), centre_labels


@given(st.integers(0, 10_000), st.sampled_from([0.4, 1.0, 5.0]), st.sampled_from([1e-10, 1e-3]))
@settings(max_examples=30, deadline=None)
def test_loss_and_gradients_equal_plain_loops(seed, sigma, floor):
    x, centres, theta, neighbours, labels, centre_labels = problem(seed)
    width = torch.tensor(sigma, dtype=torch.float64, requires_grad=True)
    scale = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    ours = floored_neighbour_loss(x, centres, theta, width, neighbours, labels, centre_labels, CLASSES, floor)
    grads = torch.autograd.grad((ours * scale).sum(), [x, theta, width])
    theirs = by_loops(x, centres, theta, width, neighbours, labels, centre_labels, floor)
    expected = torch.autograd.grad((theirs * scale).sum(), [x, theta, width])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for a, b in zip(grads, expected):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 / sigma**3)
    assert math.isclose(ours[0].item(), math.log(CLASSES))


def test_gradcheck():
    x, centres, theta, neighbours, labels, centre_labels = problem(5)
    sigma = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, t, s: floored_neighbour_loss(x, centres, t, s, neighbours, labels, centre_labels, CLASSES, 1e-3),
        (x, theta, sigma),
    )


def filled():
    """Two tight classes, and one image of a third amid the second, whose list holds the second alone."""
    centres = torch.tensor([[0.0], [0.1], [5.0], [5.2], [5.1], [9.0]])
    bank = CentreBank(torch.tensor([0, 0, 1, 1, 2, 2]), dim=1, n_neighbours=2, guaranteed=0)
    bank.renew(centres)
    return bank


def test_an_example_without_a_same_class_neighbour_is_pushed_away():
    bank, index = filled(), torch.tensor([4])
    x = torch.tensor([[5.15]], requires_grad=True)
    without = GaussianKernelLoss(bank, sigma=0.5)(x, torch.tensor([2]), index)
    assert without == 0 and not torch.autograd.grad(without, x)[0].any()
    floored = GaussianKernelLoss(bank, sigma=0.5, floor=FLOOR)(x, torch.tensor([2]), index)
    # Both neighbours are of class 1; classes 0 and 2 have the floor.
    near = math.exp(-(0.15**2) / 0.5) + math.exp(-(0.05**2) / 0.5)
    assert math.isclose(floored.item(), math.log((near + 2e-10) / 1e-10), rel_tol=1e-5)
    # A step against the gradient leads away from their mean of 5.1.
    assert torch.autograd.grad(floored, x)[0].item() < 0


def test_the_mean_is_over_all_examples_and_half_precision_agrees():
    bank = filled()
    x, labels, rows = bank.centres + 0.02, bank.labels, torch.arange(6)
    loss = GaussianKernelLoss(bank, sigma=0.5, floor=FLOOR)
    each = GaussianKernelLoss(bank, sigma=0.5, floor=FLOOR, reduction="none")(x, labels, rows)
    torch.testing.assert_close(loss(x, labels, rows), each.mean())
    half = x.bfloat16().requires_grad_()
    exact = half.detach().double().requires_grad_()
    found, expected = (torch.autograd.grad(loss(v, labels, rows), v)[0] for v in (half, exact))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=1e-3)


def test_where_every_class_has_a_neighbour_the_floor_changes_nothing():
    labels = torch.arange(12) % 3
    bank = CentreBank(labels, dim=4, n_neighbours=11)
    bank.renew(torch.randn(12, 4, generator=torch.Generator().manual_seed(1)))
    plain, floored = (GaussianKernelLoss(bank, sigma=1.0, floor=floor) for floor in (0.0, FLOOR))
    x, rows = bank.centres + 0.1, torch.arange(12)
    torch.testing.assert_close(floored(x, labels, rows), plain(x, labels, rows))


def test_a_value_that_is_not_finite_is_never_a_good_answer():
    x = torch.full((1, 1), math.nan)
    assert GaussianKernelLoss(filled(), sigma=0.5, floor=FLOOR)(x, torch.tensor([2]), torch.tensor([4])).isnan()


@pytest.mark.parametrize("floor", [-1e-3, 1.0, math.nan])
def test_a_floor_that_is_none(floor):
    with pytest.raises(InputError, match="floor must be from 0 to below 1"):
        GaussianKernelLoss(filled(), sigma=1.0, floor=floor)


def test_a_floor_needs_neighbour_lists():
    whole = CentreBank(torch.tensor([0, 0, 1]), dim=1, n_neighbours=None)
    for bank in (None, whole):
        with pytest.raises(InputError, match="neighbour lists"):
            GaussianKernelLoss(bank, sigma=1.0, floor=FLOOR)
