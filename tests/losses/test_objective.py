"""What the trainer asks of every loss, ours among them."""

import math

import pytest
import torch
from torch import nn

from nngk.bank.centres import CentreBank
from nngk.bank.refresh import Refresher
from nngk.losses import LOSSES, create_loss, loss_class
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.losses.kernel_objective import KernelObjective
from nngk.losses.objective import Objective

OTHERS = [name for name in LOSSES if name != "nngk"]


def objective(name, dim=4, classes=5):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    return create_loss(name, dim=dim, n_classes=classes)


def kernel_objective(every=2, sigma="auto", **options):
    """Twelve examples of three classes whose centres are a network's answers to fixed rows."""
    rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    bank = CentreBank(torch.arange(12) % 3, 4, n_neighbours=5)
    torch.manual_seed(0)
    network = nn.Linear(3, 4)
    refresher = Refresher(bank, lambda net: net(rows).detach(), every)
    return KernelObjective(refresher, sigma, **options), network, rows


def test_every_loss_is_an_objective():
    for name, info in LOSSES.items():
        kind = loss_class(name)
        assert issubclass(kind, Objective) and kind.name == name == info.name
    assert {name for name in LOSSES if loss_class(name).has_logits} == {"softmax", "normalized-softmax"}
    assert loss_class("nngk") is GaussianKernelLoss and GaussianKernelLoss.normalise is None
    assert all(loss_class(name).normalise is not None for name in OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_layer_says_what_the_logits_say(name):
    loss = objective(name)
    layer = loss.layer()
    assert (layer is not None) == loss.has_logits
    if layer is None:
        return
    x = torch.randn(6, 4)
    y = nn.functional.normalize(x) * layer["scale"] if "scale" in layer else x
    torch.testing.assert_close((y @ layer["weight"].T + layer["bias"]).softmax(1), loss.logits(x).softmax(1))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_never_a_good_answer(name, bad):
    loss = objective(name)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 0])
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    assert loss(x, labels).isfinite()
    x[4, 1] = bad
    assert not loss(x, labels).isfinite()


def test_the_kernel_objective_renews_its_bank_and_settles_sigma_once():
    loss, network, rows = kernel_objective()
    assert not loss.bank.filled
    loss.before_step(0, network)
    torch.testing.assert_close(loss.bank.centres, network(rows))
    first = float(loss.log_sigma)
    assert math.isfinite(first)
    with torch.no_grad():
        network.weight.mul_(3)
    for step in (1, 2):
        loss.before_step(step, network)
        assert torch.equal(loss.bank.centres, network(rows)) == (step == 2)
    assert float(loss.log_sigma) == first
    assert loss.record(3) | {"refresh_seconds": 0} == {
        "sigma": round(math.exp(first), 6),
        "bank_age": 1,
        "refresh_seconds": 0,
        "staleness": 0,
        "lonely": loss.bank.n_lonely,
    }


def test_a_rule_finds_sigma_for_the_first_bank_and_a_checkpoint_brings_it():
    seen = []
    loss, network, _ = kernel_objective(sigma=lambda bank: seen.append(bank.refreshed_at) or 0.7)
    loss.before_step(0, network)
    loss.before_step(2, network)
    assert seen == [0] and loss.sigma == pytest.approx(0.7)
    again, _, _ = kernel_objective(sigma=lambda bank: seen.append("again") or 0.1)
    again.load_state_dict(loss.state_dict())
    assert again.sigma == pytest.approx(0.7) and seen == [0]


def test_a_rule_that_fails_is_asked_again():
    answers = [ValueError("nothing to tune on"), 0.4]

    def rule(bank):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loss, network, _ = kernel_objective(sigma=rule)
    with pytest.raises(ValueError, match="nothing to tune on"):
        loss.before_step(0, network)
    assert loss.sigma == pytest.approx(0.4)


def test_the_names_in_a_checkpoint_stay():
    """Runs that were begun with an earlier version are resumed by these names."""
    loss, _, _ = kernel_objective(learn_sigma=True)
    assert set(loss.state_dict()) == {
        "log_sigma",
        "bank.theta",
        "bank.centres",
        "bank.labels",
        "bank.neighbours",
        "bank.has_partner",
        "bank._extra_state",
    }


def test_the_kernel_objectives_own_rates():
    loss, _, _ = kernel_objective(learn_sigma=True, weight_factor=100.0, sigma_factor=10.0)
    theta, sigma = loss.parameter_groups(0.01)
    assert (theta["lr"], sigma["lr"]) == pytest.approx((1.0, 0.1))
    assert theta["weight_decay"] == sigma["weight_decay"] == 0
