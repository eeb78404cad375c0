import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.data import class_balanced_batches, random_batches
from nngk.errors import InputError


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_random_batches_meet_each_index_once(n: int, size: int, seed: int, epoch: int, drop: bool) -> None:
    got = random_batches([0] * n, size, seed, epoch, drop_last=drop)
    seen = torch.cat([*got, torch.empty(0, dtype=torch.int64)])
    assert seen.dtype == torch.int64 and len(seen.unique()) == len(seen)
    if drop and n > size:
        assert [len(batch) for batch in got] == [size] * (n // size)
    else:
        assert sorted(seen.tolist()) == list(range(n))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return torch.cat(random_batches([0] * 50, 8, seed, epoch)).tolist()

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 15), min_size=4, max_size=9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
def test_balanced_batches_have_their_classes(counts: list[int], per_class: int, classes: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)) * 3, counts)
    got = class_balanced_batches(labels, per_class * classes, per_class, seed, 0)
    assert got
    for batch in got:
        present, number = np.unique(labels[batch.numpy()], return_counts=True)
        assert len(present) == classes and (number == per_class).all()
        for label in present:
            mine = [i for i in batch.tolist() if labels[i] == label]
            assert len(set(mine)) == min(per_class, counts[label // 3])
    again = class_balanced_batches(labels, per_class * classes, per_class, seed, 0)
    assert all(torch.equal(a, b) for a, b in zip(got, again))


def test_balanced_batches_meet_nearly_every_image_once() -> None:
    labels = np.repeat(np.arange(50), 20)
    batches = class_balanced_batches(labels, 40, 4, seed=0, epoch=0)
    seen = torch.cat(batches)
    assert len(seen.unique()) == len(seen) >= 960
    other = torch.cat(class_balanced_batches(labels, 40, 4, seed=0, epoch=1))
    assert not torch.equal(seen[:40], other[:40])


def test_large_classes_are_spread_over_the_epoch() -> None:
    labels = np.array([0] * 200 + [1] * 100 + [2] * 100 + [3] * 100)
    batches = class_balanced_batches(labels, 20, 10, seed=0, epoch=0)
    seen = torch.cat(batches).numpy()
    assert (labels[seen] == 0).sum() >= 180


@pytest.mark.parametrize(
    ("batch", "each", "says"), [(10, 4, "multiple"), (2, 4, "multiple"), (8, 0, "multiple"), (12, 2, "needs 6 classes")]
)
def test_batches_that_cannot_be_made_are_refused(batch: int, each: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        class_balanced_batches([0, 0, 1, 1, 2, 2], batch, each, 0, 0)
    with pytest.raises(InputError, match="at least one"):
        random_batches([0, 1], 0, 0, 0)
