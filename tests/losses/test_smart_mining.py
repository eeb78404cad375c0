import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.losses import create_loss, samplers
from nngk.losses.mining import mine, next_kappa, walk
from nngk.search import Exact


def clouds(classes, each, spread, seed=0, dim=8):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(each)
    x = torch.randn(classes, dim, generator=generator)[y]
    return x + spread * torch.randn(len(y), dim, generator=generator), y


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 4), st.booleans()), min_size=1, max_size=25),
    st.floats(1, 4),
)
@pytest.mark.thorough
def test_walk_keeps_the_papers_order(items, kappa):
    items.sort()
    distances, same = [d for d, _ in items], [s for _, s in items]
    pairs = list(walk(range(len(items)), distances, same, kappa))
    if True not in same:
        assert pairs == []
        return
    nearest_positive = same.index(True)
    bound = kappa * distances[nearest_positive]
    negatives = [i for i, s in enumerate(same) if not s and i > nearest_positive and distances[i] >= bound]
    assert [n for _, n in pairs] == negatives  # all beyond the bound, nearest first
    for positive, negative in pairs:
        farther = [i for i, s in enumerate(same) if s and i > negative]
        assert positive == (farther[0] if farther else None)  # softest: the first positive behind the negative
        assert positive is None or distances[positive] >= distances[negative]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(1, 3), st.integers(3, 29))
def test_mined_triplets_violate_and_respect_the_bound(seed, kappa, k):
    x, y = clouds(3, 10, 1.5, seed, dim=3)
    classes = samplers.classes_of(y, "a test")
    distances, neighbours = Exact(x).all_neighbours(k)
    all_distances = torch.cdist(x, x).square()
    for anchor in range(len(x)):
        found = mine(
            anchor, neighbours[anchor].tolist(), distances[anchor].tolist(), classes, kappa, np.random.default_rng(seed)
        )
        assert found.anchor == anchor != found.positive
        assert y[found.positive] == y[anchor] != y[found.negative]
        if found.mined:
            own = all_distances[anchor][(y == y[anchor]) & (torch.arange(len(y)) != anchor)]
            to_negative = float(all_distances[anchor, found.negative])
            assert to_negative >= kappa * float(own.min()) - 1e-4
            assert float(all_distances[anchor, found.positive]) >= to_negative - 1e-4


def test_random_triplets_where_there_is_nothing_to_mine():
    classes = samplers.classes_of(torch.tensor([0, 0, 1, 1]), "a test")
    rng = np.random.default_rng(0)
    # A list without a positive, and one whose positives are all nearer than its negatives.
    assert not mine(0, [2, 3], [1.0, 2.0], classes, 1.0, rng).mined
    assert not mine(0, [1, 2, 3], [1.0, 2.0, 3.0], classes, 1.0, rng).mined
    # A positive outside the list is farther than all of it.
    wide = samplers.classes_of(torch.tensor([0, 0, 1, 1, 0]), "a test")
    assert mine(0, [1, 2, 3], [1.0, 2.0, 3.0], wide, 1.0, rng) == (0, 4, 2, True)


@pytest.mark.parametrize("target", [0.5, 0.6, 0.75])
@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    "response",
    [lambda k: 0.95 * math.exp(-0.15 * (k - 1)), lambda k: 0.95 / k**0.5, lambda k: 1 / (1 + math.exp(k - 4))],
)
def test_controller_finds_the_target_on_a_response_curve(target, noise, response):
    rng = np.random.default_rng(1)
    history, kappa = [], 1.0
    for _ in range(25):
        history.append((response(kappa) + noise * rng.normal(), kappa))
        kappa = next_kappa(history[-5:], target, lowest=1, highest=100)
    assert abs(np.mean([e for e, _ in history[-5:]]) - target) < 0.05


def test_controller_moves_the_right_way_without_a_line():
    limits = {"lowest": 1.0, "highest": 10.0}
    assert next_kappa([(0.9, 2.0)], 0.6, **limits) == 3.0
    assert next_kappa([(0.61, 2.0)], 0.6, **limits) == 2.0
    assert next_kappa([(0.3, 3.0)], 0.6, **limits) == 2.0
    assert next_kappa([(0.3, 1.0)], 0.6, **limits) == 1.0  # no softer triplets than these
    assert next_kappa([(0.9, 9.0)], 0.6, **limits) == 10.0
    # The network's progress makes error and κ fall together: a line through that would point the wrong way.
    assert next_kappa([(0.8, 2.0), (0.7, 1.5)], 0.6, **limits) > 1.5


def train(loss, net, x, y, epochs, lr=0.02, start=0):
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for epoch in range(start, epochs):
        loss.start_epoch(epoch, lambda: net(x))
        for batch in loss.batches(y, 60, 0, epoch):
            optimiser.zero_grad()
            loss(net(x[batch]), y[batch], batch).backward()
            optimiser.step()
        loss.end_epoch()


@pytest.mark.parametrize("target", [0.5, 0.65])
@pytest.mark.thorough
def test_controller_steers_training_to_its_target(target):
    torch.manual_seed(0)
    x, y = clouds(20, 60, 1.6)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    loss = create_loss("smart-mining", dim=8, n_classes=20, target=target)
    train(loss, net, x, y, 16)
    errors = loss.history[:, 0]
    assert len(errors) == 14
    assert abs(float(errors[-5:].mean()) - target) < 0.05
    fixed = create_loss("smart-mining", dim=8, n_classes=20, target=target, highest_kappa=1.0)
    train(fixed, net, x, y, 6)
    assert abs(float(fixed.history[-2:, 0].mean()) - target) > 0.05  # κ = 1 alone would not be there


def test_first_epochs_are_random_and_later_ones_mined():
    x, y = clouds(6, 20, 1.5)
    loss = create_loss("smart-mining", dim=8, n_classes=6)
    plain = create_loss("triplet-global", dim=8, n_classes=6)
    for epoch in range(2):
        loss.start_epoch(epoch)
        ours, theirs = (each.batches(y, 30, 0, epoch) for each in (loss, plain))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    with pytest.raises(InputError, match="from epoch 3 on"):
        loss.start_epoch(2)
    with pytest.raises(InputError, match="call start_epoch first"):
        loss.batches(y, 30, 0, 2)
    loss.start_epoch(2, lambda: x)
    a, p, n = torch.cat(loss.batches(y, 30, 0, 2)).view(-1, 3).T
    unit = torch.nn.functional.normalize(x)
    harder = (unit[a] - unit[p]).norm(dim=1) >= (unit[a] - unit[n]).norm(dim=1) - 1e-6
    assert harder.float().mean() > 0.8
    assert (y[a] == y[p]).all()
    assert (y[a] != y[n]).all()


def test_share_of_mined_triplets():
    x, y = clouds(6, 50, 1.5)
    unit = torch.nn.functional.normalize(x)
    shares = []
    for mined in (0.02, 0.5, 1.0):
        loss = create_loss("smart-mining", dim=8, n_classes=6, mined=mined)
        loss.start_epoch(2, lambda: x)
        a, p, n = torch.cat(loss.batches(y, 30, 0, 2)).view(-1, 3).T
        shares.append(float(((unit[a] - unit[p]).norm(dim=1) >= (unit[a] - unit[n]).norm(dim=1)).float().mean()))
    assert shares == sorted(shares)
    assert shares[2] - shares[0] > 0.3


def test_resumes_in_the_middle_of_an_epoch():
    x, y = clouds(6, 20, 1.5)
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    whole = create_loss("smart-mining", dim=4, n_classes=6)
    train(whole, net, x, y, 5)
    with torch.no_grad():
        embeddings = net(x)
        whole.start_epoch(5, lambda: embeddings)
        batches = whole.batches(y, 30, 0, 5)
        whole(embeddings[batches[0]], y[batches[0]])
        cut = create_loss("smart-mining", dim=4, n_classes=6)
        cut.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
        cut.start_epoch(5, lambda: embeddings + 1)  # whatever the network has become since
        again = cut.batches(y, 30, 0, 5)
        assert [b.tolist() for b in again] == [b.tolist() for b in batches]
        for loss in (whole, cut):
            for batch in batches[1:]:
                loss(embeddings[batch], y[batch])
            loss.end_epoch()
    assert torch.equal(whole.history, cut.history)
    assert torch.equal(whole.kappa, cut.kappa)
    assert len(whole.history) == 4


def test_evaluating_does_not_count():
    loss = create_loss("smart-mining", dim=2, n_classes=2)
    x, y = torch.randn(6, 2), torch.tensor([0, 0, 1, 1, 1, 0])
    loss.eval()(x, y)
    assert loss.counts.tolist() == [0, 0]
    loss.train()(x, y)
    assert int(loss.counts[1]) == 2


def test_takes_any_engine():
    built = []

    def engine():
        built.append(Exact())
        return built[-1]

    x, y = clouds(3, 10, 1.0)
    loss = create_loss("smart-mining", dim=8, n_classes=3, engine=engine, neighbours=10_000)
    loss.start_epoch(2, lambda: x)
    loss.batches(y, 30, 0, 2)
    assert len(built[0]) == 30
