import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.data.sampling import classes_of
from nngk.errors import InputError
from nngk.losses import LOSSES, create_loss, samplers

LABELS = torch.tensor([5] * 7 + [2] * 12 + [9] * 4 + [3] * 2 + [11] * 9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.integers(3, 20))
def test_triplets(seed, batch_size):
    batches = samplers.triplets(LABELS, batch_size, seed, 1)
    for batch in batches:
        assert len(batch) <= batch_size
        a, p, n = batch.view(-1, 3).T
        assert (a != p).all()
        assert (LABELS[a] == LABELS[p]).all()
        assert (LABELS[a] != LABELS[n]).all()
    anchors = torch.cat(batches)[0::3]
    assert len(anchors) == len(anchors.unique()) == -(-len(LABELS) // 3)


def test_random_pairs_reach_every_candidate():
    classes = classes_of(torch.tensor([0, 0, 0, 1, 1, 2, 2]), "a test")
    rng = np.random.default_rng(0)
    pairs = {samplers.random_pair(1, classes, rng) for _ in range(300)}
    assert pairs == {(p, n) for p in (0, 2) for n in (3, 4, 5, 6)}


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "nngk"])
def test_batches_depend_on_seed_and_epoch_alone(name):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    loss = create_loss(name, dim=4, n_classes=5)
    torch.manual_seed(1)
    first = loss.batches(LABELS, 12, 3, 1)
    torch.manual_seed(2)
    again = loss.batches(LABELS, 12, 3, 1)
    assert [b.tolist() for b in first] == [b.tolist() for b in again]
    assert [b.tolist() for b in first] != [b.tolist() for b in loss.batches(LABELS, 12, 3, 0)]
    assert [b.tolist() for b in first] != [b.tolist() for b in loss.batches(LABELS, 12, 4, 1)]
    assert all(b.dtype == torch.long for b in first)
    # Equal budgets: an epoch shows about as many images as there are.
    assert sum(len(b) for b in first) == pytest.approx(len(LABELS), rel=0.3)


@pytest.mark.parametrize("sampler", [samplers.per_class(4), samplers.per_class(2, exactly=True), samplers.triplets])
def test_impossible_requests(sampler):
    with pytest.raises(InputError, match=r"2 of 3 classes have one: class 4, 8\. Add images"):
        sampler(torch.tensor([4, 6, 6, 8]), 8, 0, 0)
    with pytest.raises(InputError, match="At least two classes"):
        sampler(torch.tensor([1, 1, 1]), 8, 0, 0)
    with pytest.raises(InputError, match="batch size of at least"):
        sampler(torch.tensor([1, 1, 0, 0]), 2, 0, 0)
