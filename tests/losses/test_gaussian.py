"""The loss module: its two ways of being called, its parameters, its σ, its refusals."""

import math

import pytest
import torch

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import TRAINING_FACTOR, leave_one_out_sigma
from nngk.errors import InputError
from nngk.losses.gaussian import GaussianKernelLoss


def filled(m=20, dim=4, k=8, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    bank = CentreBank(torch.arange(m) % classes, dim, k)
    bank.renew(torch.randn(m, dim, generator=g))
    return bank


def by_loops(x, labels, references, ref_labels, sigma, own=None):
    """Equation 2's negative log over all references, in float64."""
    out = []
    for i in range(len(x)):
        values = [
            (math.exp(-float((x[i].double() - references[j].double()).square().sum()) / (2 * sigma**2)), j)
            for j in range(len(references))
            if own is None or j != own[i]
        ]
        same = sum(v for v, j in values if ref_labels[j] == labels[i])
        out.append(-math.log(same / sum(v for v, _ in values)) if same else 0.0)
    return torch.tensor(out, dtype=torch.float64)


def test_over_given_references():
    x, references = torch.randn(5, 3), torch.randn(9, 3)
    labels, ref_labels = torch.tensor([0, 1, 2, 0, 1]), torch.arange(9) % 3
    each = GaussianKernelLoss(sigma=0.9, reduction="none")(x, labels, ref_emb=references, ref_labels=ref_labels)
    torch.testing.assert_close(each.double(), by_loops(x, labels, references, ref_labels, 0.9), rtol=1e-5, atol=1e-6)


def test_over_the_rest_of_the_batch():
    x, labels = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 0, 1, 1, 1, 2])
    loss = GaussianKernelLoss(sigma=0.9, reduction="none")(x, labels)
    expected = by_loops(x.detach(), labels, x.detach(), labels, 0.9, own=range(6))
    torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=1e-6)
    assert loss[5] == 0  # alone in its class
    mean = GaussianKernelLoss(sigma=0.9)(x, labels)
    torch.testing.assert_close(mean, loss.sum() / 5)
    # Both sides learn: as a reference of the others, the last one is pushed although its own loss is 0.
    assert torch.autograd.grad(mean, x)[0].abs().sum(1).min() > 0


def test_references_beside_a_bank_win():
    bank = filled()
    x, labels = torch.randn(4, 4), torch.zeros(4).long()
    references, ref_labels = torch.randn(6, 4), torch.arange(6) % 2
    a = GaussianKernelLoss(bank, sigma=1.0)(x, labels, ref_emb=references, ref_labels=ref_labels)
    b = GaussianKernelLoss(sigma=1.0)(x, labels, ref_emb=references, ref_labels=ref_labels)
    assert torch.equal(a, b)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(reduction):
    bank = filled()
    own = torch.arange(20)
    each = GaussianKernelLoss(bank, sigma=0.7, reduction="none")(bank.centres, bank.labels, own)
    value = GaussianKernelLoss(bank, sigma=0.7, reduction=reduction)(bank.centres, bank.labels, own)
    torch.testing.assert_close(value, {"mean": each.mean(), "sum": each.sum(), "none": each}[reduction])


def test_weights_are_parameters_with_their_own_group_and_no_decay():
    bank = filled()
    loss = GaussianKernelLoss(bank, sigma=1.0, learn_sigma=True)
    assert {name for name, _ in loss.named_parameters()} == {"bank.theta", "log_sigma"}
    weights, sigma = loss.parameter_groups(0.01, weight_factor=100, sigma_factor=10)
    assert weights["params"][0] is bank.theta and weights["lr"] == pytest.approx(1.0) and weights["weight_decay"] == 0
    assert sigma["params"][0] is loss.log_sigma and sigma["lr"] == pytest.approx(0.1) and sigma["weight_decay"] == 0
    assert [n for n, _ in GaussianKernelLoss(bank, sigma=1.0).named_parameters()] == ["bank.theta"]
    assert GaussianKernelLoss(sigma=1.0).parameter_groups(0.1) == []


def test_auto_sigma_is_found_at_the_first_use_and_kept():
    bank = filled()
    loss = GaussianKernelLoss(bank)
    with torch.no_grad():
        value = loss(bank.centres, bank.labels, torch.arange(20))
    tuned = TRAINING_FACTOR * leave_one_out_sigma(bank)
    assert loss.sigma == pytest.approx(tuned, rel=1e-6)
    assert value == GaussianKernelLoss(bank, sigma=loss.sigma)(bank.centres, bank.labels, torch.arange(20))
    bank.renew(bank.centres * 3)
    assert loss.sigma == pytest.approx(tuned, rel=1e-6)
    copy = GaussianKernelLoss(filled())
    copy.load_state_dict(loss.state_dict())
    assert copy.sigma == loss.sigma


def grid(low=0.02, high=20.0, n=200):
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


@pytest.mark.parametrize("neighbours", [8, None])
@pytest.mark.parametrize("start", [0.05, 5.0])
def test_learned_sigma_moves_towards_the_best(neighbours, start):
    bank = filled(k=neighbours)
    with torch.no_grad():
        bank.centres[bank.labels == 1] += 2
    bank.renew(bank.centres)
    loss = GaussianKernelLoss(bank, sigma=start, learn_sigma=True)
    own = torch.arange(20)
    first = loss(bank.centres, bank.labels, own)
    (gradient,) = torch.autograd.grad(first, loss.log_sigma)
    # Against a difference quotient in float64.
    doubles = GaussianKernelLoss(bank.double(), sigma=1.0)
    values = []
    for step in (-1e-4, 1e-4):
        doubles.log_sigma = torch.tensor(math.log(start) + step, dtype=torch.float64)
        values.append(float(doubles(bank.centres, bank.labels, own).detach()))
    assert float(gradient) == pytest.approx((values[1] - values[0]) / 2e-4, rel=1e-3)
    bank.float()
    optimiser = torch.optim.Adam([loss.log_sigma], lr=0.1)
    for _ in range(30):
        optimiser.zero_grad()
        loss(bank.centres, bank.labels, own).backward()
        optimiser.step()
    fixed = {s: float(GaussianKernelLoss(bank, sigma=s)(bank.centres, bank.labels, own).detach()) for s in grid()}
    best = min(fixed, key=fixed.__getitem__)
    assert abs(math.log(loss.sigma / best)) < abs(math.log(start / best))
    assert loss(bank.centres, bank.labels, own) < first


def test_fixed_sigma_is_no_parameter():
    loss = GaussianKernelLoss(filled(), sigma=2.5)
    assert loss.sigma == pytest.approx(2.5) and not loss.log_sigma.requires_grad


@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, 1e-25, 1e20, "wide", None])
def test_sigma_that_is_no_width(sigma):
    with pytest.raises(InputError, match="sigma must be a number from 1e-15 to"):
        GaussianKernelLoss(filled(), sigma=sigma)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how", ["lists", "all centres", "the batch", "references"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_embeddings_that_are_not_finite_are_never_a_good_answer(bad, how, reduction):
    bank = filled(k=None if how == "all centres" else 8)
    x = bank.centres.clone()
    x[7, 1] = bad
    x.requires_grad_()
    if how in ("lists", "all centres"):
        value = GaussianKernelLoss(bank, sigma=1.0, reduction=reduction)(x, bank.labels, torch.arange(20))
    else:
        against = {"ref_emb": bank.centres, "ref_labels": bank.labels} if how == "references" else {}
        value = GaussianKernelLoss(sigma=1.0, reduction=reduction)(x, bank.labels, **against)
    assert value.isnan()
    assert torch.autograd.grad(value, x)[0][7].isnan().any()


def test_refusals_say_what_to_do():
    bank, x, labels = filled(), torch.randn(3, 4), torch.zeros(3).long()
    with pytest.raises(InputError, match="needs a bank"):
        GaussianKernelLoss()
    with pytest.raises(InputError, match="reduction"):
        GaussianKernelLoss(sigma=1.0, reduction="max")
    with pytest.raises(InputError, match="training indices"):
        GaussianKernelLoss(bank, sigma=1.0)(x, labels)
    with pytest.raises(InputError, match="ref_labels"):
        GaussianKernelLoss(sigma=1.0)(x, labels, ref_emb=x)
    with pytest.raises(InputError, match=r"\(batch, dim\)"):
        GaussianKernelLoss(sigma=1.0)(x[0], labels)
    with pytest.raises(InputError, match="one per embedding"):
        GaussianKernelLoss(sigma=1.0)(x, labels[:2])
    with pytest.raises(InputError, match="indices"):
        GaussianKernelLoss(bank, sigma=1.0)(x, labels, torch.tensor([0]))
    with pytest.raises(InputError, match="4 dimensions"):
        GaussianKernelLoss(bank, sigma=1.0)(torch.randn(3, 5), labels, torch.arange(3))
    for sigma in (1.0, "auto"):
        with pytest.raises(InputError, match="no centres yet"):
            GaussianKernelLoss(CentreBank(torch.zeros(4).long(), 4), sigma=sigma)(x, labels, torch.arange(3))


def test_dropped_centres_are_left_out_in_training_only():
    bank = filled(m=40, k=20)
    x, labels, indices = bank.centres.clone(), bank.labels, torch.arange(40)
    whole, dropped = GaussianKernelLoss(bank, 1.0), GaussianKernelLoss(bank, 1.0, drop=0.5)
    torch.manual_seed(0)
    first, second = dropped(x, labels, indices), dropped(x, labels, indices)
    assert first != second  # other centres each time
    dropped.eval()
    assert dropped(x, labels, indices) == whole(x, labels, indices)
    dropped.train()
    losses = torch.stack([dropped(x, labels, indices) for _ in range(300)])
    # Each sum loses half of its terms on average, so their ratio stays about where it was.
    assert losses.mean().item() == pytest.approx(whole(x, labels, indices).item(), rel=0.3)


@pytest.mark.parametrize("drop", [-0.1, 1.0, math.nan])
def test_a_share_of_dropped_centres_that_is_none(drop):
    with pytest.raises(InputError, match="drop must be from 0"):
        GaussianKernelLoss(sigma=1.0, drop=drop)


@pytest.mark.parametrize("bank", [False, True])
def test_the_indices_tuple_of_a_miner_is_refused_and_never_ignored(bank):
    labels = torch.tensor([0, 0, 1, 1])
    loss = GaussianKernelLoss(sigma=1.0)
    if bank:
        loss = GaussianKernelLoss(CentreBank(labels, dim=2, n_neighbours=2), sigma=1.0)
        loss.bank.renew(torch.randn(4, 2))
    triplets = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    with pytest.raises(InputError, match="indices_tuple of a miner"):
        loss(torch.randn(4, 2), labels, triplets)
