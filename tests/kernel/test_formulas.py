"""The kernel against plain loops in float64, autograd, and pytorch-metric-learning's NCA loss."""

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.kernel import formulas as kernel
from nngk.losses.gaussian import GaussianKernelLoss

INF = math.inf


def by_loops(x, centres, theta, sigma, neighbours, same):
    """Equation 3's negative log, term by term, differentiable."""
    losses = []
    for i in range(len(x)):
        above, below = [], []
        for j, mine in zip(neighbours[i].tolist(), same[i].tolist()):
            if j < 0:
                continue
            term = theta[j] - ((x[i] - centres[j]) ** 2).sum() / (2 * sigma**2)
            below.append(term)
            if mine:
                above.append(term)
        if not above:
            losses.append(x[i].sum() * 0)
            continue
        losses.append(torch.stack(below).logsumexp(0) - torch.stack(above).logsumexp(0))
    return torch.stack(losses)


def problem(seed, batch=6, m=15, k=7, dim=5, classes=3, spread=1.0, weights=1.0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(batch, dim, generator=g, dtype=dtype) * spread).requires_grad_()
    centres = torch.randn(m, dim, generator=g, dtype=dtype) * spread
    theta = (torch.randn(m, generator=g, dtype=dtype) * weights).requires_grad_()
    neighbours = torch.stack([torch.randperm(m, generator=g)[:k] for _ in range(batch)])
    neighbours[torch.rand(batch, k, generator=g) < 0.1] = -1
    labels = torch.randint(classes, (m,), generator=g)
    own = torch.randint(classes, (batch,), generator=g)
    same = (labels[neighbours.clamp(min=0)] == own[:, None]) & (neighbours >= 0)
    return x, centres, theta, neighbours, same, labels, own


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.7, 3.0]), st.sampled_from([0.0, 1.0, 10.0]))
@settings(max_examples=40, deadline=None)
def test_loss_and_gradients_equal_plain_loops(seed, sigma, weights):
    x, centres, theta, neighbours, same, _, _ = problem(seed, weights=weights)
    width = torch.tensor(sigma, dtype=torch.float64, requires_grad=True)
    scale = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    ours = kernel.neighbour_loss(x, centres, theta, width, neighbours, same)
    grads = torch.autograd.grad((ours * scale).sum(), [x, theta, width])
    theirs = by_loops(x, centres, theta, width, neighbours, same)
    expected = torch.autograd.grad((theirs * scale).sum(), [x, theta, width])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for a, b in zip(grads, expected):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-9 / sigma**3)


def test_gradcheck():
    x, centres, theta, neighbours, same, labels, own = problem(3)
    sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, t, s: kernel.neighbour_loss(x, centres, t, s, neighbours, same), (x, theta, sigma)
    )
    index = torch.tensor([0, 3, -1, 2, -1, 1])
    assert torch.autograd.gradcheck(
        lambda x, c, t, s: kernel.all_centres_loss(x, c, t, s, own, labels, index),
        (x, centres.clone().requires_grad_(), theta, sigma),
    )


@pytest.mark.parametrize("tile", [1 << 24, 20, 1])
def test_all_centres_equals_neighbours_at_k_equals_m(tile, monkeypatch):
    """Equation 3 equals equation 2 when every centre is a neighbour, however the work is cut."""
    monkeypatch.setattr(kernel, "TILE", tile)
    monkeypatch.setattr(kernel, "GATHER_CPU", tile)
    x, centres, theta, _, _, labels, own = problem(5)
    sigma = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 4, -1, 2, 14, -1])
    everyone = torch.arange(len(centres)).expand(len(x), -1)
    everyone = everyone.masked_fill(everyone == index[:, None], -1)
    same = (labels[everyone.clamp(min=0)] == own[:, None]) & (everyone >= 0)
    a = kernel.all_centres_loss(x, centres, theta, sigma, own, labels, index)
    b = kernel.neighbour_loss(x, centres, theta, sigma, everyone, same)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for u, v in zip(torch.autograd.grad(a.sum(), [x, theta, sigma]), torch.autograd.grad(b.sum(), [x, theta, sigma])):
        torch.testing.assert_close(u, v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_equals_nca_loss_of_pytorch_metric_learning(sigma):
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import NCALoss

    g = torch.Generator().manual_seed(1)
    labels = torch.arange(12) % 3
    references, ref_labels = torch.randn(30, 8, generator=g), torch.arange(30) % 3
    nca = NCALoss(softmax_scale=1 / (2 * sigma**2), distance=LpDistance(normalize_embeddings=False, power=2))
    ours = GaussianKernelLoss(sigma=sigma)
    for arguments in ({}, {"ref_emb": references, "ref_labels": ref_labels}):
        x = torch.randn(12, 8, generator=g, requires_grad=True)
        a, b = ours(x, labels, **arguments), nca(x, labels, **arguments)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(a, x)[0], torch.autograd.grad(b, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dim", "sigma", "spread", "weights"),
    [
        (4096, 10.0, 6.0, 1.0),
        (8, 1e-3, 1.0, 1.0),
        (8, 1e3, 1.0, 1.0),
        (8, 1.0, 1.0, 20.0),
        (4096, 1e-3, 6.0, 20.0),
    ],
)
def test_extreme_inputs_stay_finite_and_learn(dim, sigma, spread, weights):
    x, centres, theta, neighbours, same, _, _ = problem(0, dim=dim, spread=spread, weights=weights, dtype=torch.float32)
    width = torch.tensor(sigma)
    loss = kernel.neighbour_loss(x, centres, theta, width, neighbours, same)
    grad_x, grad_theta = torch.autograd.grad(loss.sum(), [x, theta])
    assert loss.isfinite().all() and grad_x.isfinite().all() and grad_theta.isfinite().all()
    assert grad_x.abs().max() > 0 and grad_theta.abs().max() > 0
    doubles = [t.double() for t in (x, centres, theta, width)]
    exact = by_loops(*doubles, neighbours, same)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-4, atol=1e-4 * max(1, 1 / sigma))


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_probabilities_sum_to_one_and_give_the_loss(seed):
    x, centres, theta, neighbours, same, labels, own = problem(seed, weights=8.0)
    squared = kernel.squared_distances(x, centres, neighbours)
    index = neighbours.clamp(min=0)
    values = kernel.log_kernels(squared, 0.5, theta[index])
    logs = kernel.class_log_probabilities(values, labels[index], 3)
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(len(x), dtype=torch.float64))
    loss = kernel.neighbour_loss(x, centres, theta, torch.tensor(0.5, dtype=torch.float64), neighbours, same)
    learns = same.any(1)
    torch.testing.assert_close(loss[learns], -logs[learns, own[learns]])
    assert (loss[~learns] == 0).all()


def test_a_class_far_below_the_winner_keeps_its_logarithm():
    values = torch.tensor([[0.0, -5000.0]])
    logs = kernel.class_log_probabilities(values, torch.tensor([0, 1]), 3)
    assert logs.tolist() == [[0.0, -5000.0, -INF]]


def test_half_precision_embeddings_are_worked_on_in_float32():
    x, centres, theta, neighbours, same, _, _ = problem(2, dtype=torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    sigma = torch.tensor(1.0)
    a = kernel.neighbour_loss(half, centres, theta, sigma, neighbours, same)
    b = kernel.neighbour_loss(half.detach().float(), centres, theta, sigma, neighbours, same)
    assert a.dtype == torch.float32
    torch.testing.assert_close(a, b)
    assert torch.autograd.grad(a.sum(), half)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
@pytest.mark.parametrize("row", ["learns", "has no same-class neighbour", "has no neighbour"])
@pytest.mark.parametrize("centres_are", ["anywhere", "positive"])
def test_embeddings_that_are_not_finite_have_no_good_answer(bad, row, centres_are):
    """A loss and gradients of NaN for the row, and what they would have been for the others."""
    x, centres, theta, neighbours, _, labels, own = problem(4, batch=3)
    centres = centres.abs() if centres_are == "positive" else centres
    own[1] = labels[neighbours[1].clamp(min=0)][1] if row == "learns" else 99
    if row == "has no neighbour":
        neighbours[1] = -1
    same = (labels[neighbours.clamp(min=0)] == own[:, None]) & (neighbours >= 0)
    sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    good = kernel.neighbour_loss(x, centres, theta, sigma, neighbours, same)
    before = torch.autograd.grad(good.sum(), x)[0]
    with torch.no_grad():
        x[1, 2] = bad
    loss = kernel.neighbour_loss(x, centres, theta, sigma, neighbours, same)
    by_x, by_theta, by_sigma = torch.autograd.grad(loss.sum(), [x, theta, sigma])
    assert loss.isnan().tolist() == [False, True, False] and torch.equal(loss[[0, 2]], good[[0, 2]])
    assert by_x.isnan().any(1).tolist() == [False, True, False] and torch.equal(by_x[[0, 2]], before[[0, 2]])
    assert by_theta.isnan().any() and by_sigma.isnan()
    nobody = torch.full((3,), -1)
    loss = kernel.all_centres_loss(x, centres, theta, sigma, own, labels, nobody)
    by_x, by_theta = torch.autograd.grad(loss.sum(), [x, theta])
    assert loss.isnan().tolist() == [False, True, False]
    assert by_x.isnan().any(1).tolist() == [False, True, False] and by_theta.isnan().any()


@pytest.mark.parametrize("lists", [True, False])
def test_distances_beyond_the_range_of_float32_have_no_good_answer(lists):
    """Finite embeddings whose squared distances are infinite: not silent either."""
    x = torch.tensor([[1e25], [0.0]], requires_grad=True)
    centres, theta, sigma = torch.tensor([[0.0], [1.0]]), torch.zeros(2), torch.tensor(1.0)
    if lists:
        everyone = torch.tensor([[0, 1], [0, 1]])
        loss = kernel.neighbour_loss(x, centres, theta, sigma, everyone, torch.eye(2, dtype=torch.bool))
    else:
        labels = torch.arange(2)
        loss = kernel.all_centres_loss(x, centres, theta, sigma, labels, labels, torch.tensor([-1, -1]))
    assert loss.isnan().tolist() == [True, False]
    assert torch.autograd.grad(loss[0], x)[0][0].isnan()


def test_memory_stays_under_a_quarter_of_the_gathered_tensor():
    """Peak allocations of forward and backward at B=256, K=200, D=2048, read from the allocator."""
    batch, k, dim, m = 256, 200, 2048, 1000
    x = torch.randn(batch, dim, requires_grad=True)
    centres, theta = torch.randn(m, dim), torch.zeros(m, requires_grad=True)
    neighbours = torch.randint(m, (batch, k))
    same = torch.rand(batch, k) < 0.1
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kernel.neighbour_loss(x, centres, theta, torch.tensor(50.0), neighbours, same).sum().backward()
    live = peak = 0
    for event in profile.profiler.kineto_results.events():  # allocations and frees in the order they happened
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert batch * dim * 4 < peak < batch * k * dim * 4 / 4


def test_runs_in_a_thread_beside_another():
    """The functions hold no state: two threads get what one gets."""
    x, centres, theta, neighbours, same, _, _ = problem(7)
    sigma = torch.tensor(0.8, dtype=torch.float64)
    expected = kernel.neighbour_loss(x, centres, theta, sigma, neighbours, same)
    results = []
    threads = [
        threading.Thread(
            target=lambda: results.append(kernel.neighbour_loss(x, centres, theta, sigma, neighbours, same))
        )
        for _ in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(r, expected) for r in results) and len(results) == 2
