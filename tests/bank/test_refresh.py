"""Refreshing the bank: the same centres from a thread as while waiting, swapped between steps, never piled up."""

import threading

import pytest
import torch
from torch import nn

from nngk.bank.centres import CentreBank
from nngk.bank.refresh import Refresher, interval_in_steps
from nngk.errors import InputError
from nngk.networks.embed import Rows, embed, untransformed

M, WIDTH, DIM = 24, 6, 4


class Gate:
    """Lets a thread through when told."""

    def __init__(self):
        self.started, self.open = threading.Event(), threading.Event()

    def wait(self):
        self.started.set()
        assert self.open.wait(20)


def world(seed=0, dropout=0.0):
    """A network, its images, and an empty bank."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, DIM)
    )
    images = torch.randn(M, WIDTH)
    bank = CentreBank(torch.arange(M) % 3, DIM, n_neighbours=5)
    return network.train(), images, bank


def embedder(images, gate=None):
    def all_centres(network):
        if gate is not None and threading.current_thread() is not threading.main_thread():
            gate.wait()
        return embed(network, Rows(images), untransformed, batch_size=7)

    return all_centres


def train_a_little(network, images, steps=3):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(steps):
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()


def state(bank):
    return {key: value.clone() for key, value in bank.state_dict().items() if key != "_extra_state"}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_background_equals_blocking_bit_for_bit():
    """At the same step, while training goes on and changes every weight and statistic."""
    network, images, bank = world()
    Refresher(bank, embedder(images), every=10).before_step(0, network)
    first = state(bank)
    train_a_little(network, images)

    waited = CentreBank(bank.labels, DIM, 5)
    Refresher(waited, embedder(images), every=10).before_step(10, network)

    gate = Gate()
    refresher = Refresher(bank, embedder(images, gate), every=10, background=True)
    refresher.before_step(10, network)
    assert gate.started.wait(20)
    train_a_little(network, images)  # the snapshot must not see this
    assert equal(state(bank), first)  # nor training see a half-new bank
    gate.open.set()
    refresher.finish(13)
    assert equal(state(bank), state(waited)) and not equal(state(bank), first)
    assert bank.refreshed_at == waited.refreshed_at == 10
    (done,) = refresher.history
    assert (done.snapshot_step, done.swapped_step, done.staleness) == (10, 13, 3) and done.seconds > 0


def test_second_snapshot_takes_the_new_weights_and_statistics():
    network, images, bank = world()
    refresher = Refresher(bank, embedder(images), every=1, background=True)
    refresher.before_step(0, network)
    for step in (1, 2, 3):
        train_a_little(network, images)
        refresher.before_step(step, network)
        refresher.finish(step)
        waited = CentreBank(bank.labels, DIM, 5)
        waited.renew(embedder(images)(network))
        assert equal(state(bank), state(waited))


def test_swap_happens_at_a_step_boundary_only():
    network, images, bank = world()
    gate = Gate()
    refresher = Refresher(bank, embedder(images, gate), every=4, background=True)
    refresher.before_step(0, network)
    before = state(bank)
    train_a_little(network, images)
    refresher.before_step(4, network)
    gate.open.set()
    refresher._pending._thread.join()
    assert refresher._pending.done() and equal(state(bank), before)  # ready, but nobody came to a boundary
    refresher.before_step(5, network)
    assert not equal(state(bank), before) and bank.refreshed_at == 4
    assert refresher.history[-1].staleness == 1


def test_overrun_is_counted_once_a_due_step_and_never_piled_up():
    network, images, bank = world()
    gate, calls = Gate(), []
    inner = embedder(images, gate)

    def counted(net):
        calls.append(threading.current_thread().name)
        return inner(net)

    refresher = Refresher(bank, counted, every=2, background=True)
    refresher.before_step(0, network)
    refresher.before_step(2, network)
    for step in (3, 4, 5, 6, 7):
        refresher.before_step(step, network)
    assert refresher.overrun == 2 and len(calls) <= 2  # due at 4 and 6
    gate.open.set()
    refresher._pending._thread.join()
    refresher.before_step(8, network)  # swaps, and starts the one that is due
    assert bank.refreshed_at == 2 and refresher.history[-1].staleness == 6
    refresher.finish(9)
    assert bank.refreshed_at == 8 and refresher.overrun == 2 and len(calls) == 3


def test_a_boundary_that_is_come_to_twice_is_one_boundary():
    """The loop asks at an epoch's end, before validation, and again before the next step."""
    network, images, bank = world()
    gate = Gate()
    refresher = Refresher(bank, embedder(images, gate), every=3, background=True)
    refresher.before_step(0, network)
    refresher.before_step(0, network)
    refresher.before_step(3, network)
    refresher.before_step(3, network)
    assert refresher.overrun == 0  # the refresh under way is the one for this step
    refresher.before_step(6, network)
    refresher.before_step(6, network)
    assert refresher.overrun == 1
    gate.open.set()
    refresher.finish(7)
    blocking = Refresher(bank, embedder(images), every=3)
    blocking.before_step(9, network)
    blocking.before_step(9, network)
    assert len(blocking.history) == 1


def test_the_first_bank_is_waited_for():
    network, images, bank = world()
    refresher = Refresher(bank, embedder(images), every=5, background=True)
    refresher.before_step(0, network)
    assert bank.filled and refresher._pending is None


def test_interval_is_kept():
    network, images, bank = world()
    refresher = Refresher(bank, embedder(images), every=4)
    for step in range(10):
        refresher.before_step(step, network)
    assert [r.snapshot_step for r in refresher.history] == [0, 4, 8]
    assert all(r.staleness == 0 for r in refresher.history)


@pytest.mark.parametrize("meet", ["boundary", "finish"])
def test_a_failure_in_the_thread_surfaces(meet):
    network, images, bank = world()
    inner = embedder(images)

    def failing(net):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the disk is gone")
        return inner(net)

    refresher = Refresher(bank, failing, every=1, background=True)
    refresher.before_step(0, network)
    before = state(bank)
    refresher.before_step(1, network)
    refresher._pending._thread.join()
    with pytest.raises(OSError, match="the disk is gone"):
        refresher.before_step(2, network) if meet == "boundary" else refresher.finish(2)
    assert equal(state(bank), before) and bank.refreshed_at == 0


@pytest.mark.parametrize("background", [False, True])
def test_diverged_embeddings_are_refused_with_a_sentence(background):
    network, images, bank = world()
    refresher = Refresher(bank, embedder(images), every=1, background=background)
    refresher.before_step(0, network)
    with torch.no_grad():
        network[0].weight.fill_(float("nan"))
    with pytest.raises(InputError, match="NaN or infinite"):
        refresher.before_step(1, network)
        refresher.finish(2)


@pytest.mark.parametrize("background", [False, True])
def test_no_dropout_and_no_batch_statistics_in_the_bank(background):
    network, images, bank = world(dropout=0.5)
    refresher = Refresher(bank, embedder(images), every=1, background=background)
    for step in (0, 1):
        refresher.before_step(step, network)
        refresher.finish(step)
    assert network.training and network[3].training  # the network's own mode is put back
    with torch.no_grad():
        expected = network.eval()(images)
    torch.testing.assert_close(bank.centres, expected, rtol=1e-6, atol=1e-6)


def test_snapshot_has_no_gradients_and_leaves_the_networks_alone():
    network, images, bank = world()
    refresher = Refresher(bank, embedder(images), every=1, background=True)
    refresher.before_step(0, network)
    refresher.before_step(1, network)
    refresher.finish(1)
    assert all(p.requires_grad for p in network.parameters())
    assert not any(p.requires_grad for p in refresher._shadow[0].parameters())


@pytest.mark.parametrize(
    ("interval", "steps"),
    [(1, 40), (10, 400), (0.5, 20), (0.001, 1), ("50 steps", 50), ("1 step", 1), ("2 epochs", 80), ("0.25", 10)],
)
def test_intervals(interval, steps):
    assert interval_in_steps(interval, 40) == steps


@pytest.mark.parametrize("interval", [0, -1, "0 steps", "often", "", "3 weeks", float("nan")])
def test_intervals_that_are_none(interval):
    with pytest.raises(InputError, match="'50 steps'"):
        interval_in_steps(interval, 40)


def test_a_snapshot_is_called_through_what_is_prepared_for_it():
    bank, network = CentreBank(torch.tensor([0, 0, 1, 1]), 2, 2), nn.Linear(2, 2)
    pictures, calls = torch.randn(4, 2), []

    class Counting(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            calls.append(self.inner)
            return self.inner(x)

    def embed(called):
        return called(pictures).detach()

    refresher = Refresher(bank, embed, 1, background=True, prepare=Counting)
    refresher.before_step(0, network)  # the first bank comes from the network itself
    assert not calls
    for step in (1, 2):
        with torch.no_grad():
            network.weight.add_(1.0)
        refresher.before_step(step, network)
        refresher.finish(step)
        torch.testing.assert_close(bank.centres, network(pictures).detach())
    assert len(calls) == 2 and calls[0] is calls[1] is not network
