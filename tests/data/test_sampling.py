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


LABELS = torch.tensor([5] * 7 + [2] * 12 + [9] * 4 + [3] * 2 + [11] * 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 12), min_size=2, max_size=12), st.integers(1, 4), st.integers(0, 99))
def test_balanced_batches_have_their_classes(counts: list[int], per_class: int, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)) * 3, torch.tensor(counts))
    batch_size = 4 * per_class
    batches = class_balanced_batches(labels, batch_size, per_class, seed, 0)
    for batch in batches:
        assert len(batch.unique()) == len(batch) <= batch_size
        present, sizes = labels[batch].unique(return_counts=True)
        assert len(present) == min(4, len(counts))
        wanted = max(per_class, batch_size // len(present))
        assert sizes.tolist() == [min(wanted, counts[c // 3]) for c in present.tolist()]
    again = class_balanced_batches(labels.tolist(), batch_size, per_class, seed, 0)
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))


def test_exactly_so_many_of_each_class() -> None:
    for batch in class_balanced_batches(LABELS, 64, 2, 0, 0, exactly=True):
        assert LABELS[batch].unique(return_counts=True)[1].tolist() == [2] * 5


@pytest.mark.parametrize("size", [20, 22])
def test_balanced_batches_meet_nearly_every_image_once(size: int) -> None:
    labels = np.repeat(np.arange(50), size)
    seen = torch.cat(class_balanced_batches(labels, 40, 4, seed=0, epoch=0))
    assert abs(len(seen) - len(labels)) <= 40
    assert len(seen.unique()) >= 0.9 * len(labels)
    other = torch.cat(class_balanced_batches(labels, 40, 4, seed=0, epoch=1))
    assert not torch.equal(seen[:40], other[:40])


def test_large_classes_are_spread_over_the_epoch() -> None:
    labels = np.array([0] * 200 + [1] * 100 + [2] * 100 + [3] * 100)
    batches = class_balanced_batches(labels, 20, 10, seed=0, epoch=0)
    seen = torch.cat(batches).numpy()
    assert (labels[seen] == 0).sum() >= 180
    in_half = [int((labels[b.numpy()] == 0).any()) for b in batches[: len(batches) // 2]]
    assert 0 < sum(in_half) < 0.9 * sum(int((labels[b.numpy()] == 0).any()) for b in batches)


def test_batches_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 of 3 classes have one: class 4, 8\. Add images"):
        class_balanced_batches([4, 6, 6, 8], 8, 4, 0, 0)
    with pytest.raises(InputError, match="At least two classes"):
        class_balanced_batches([1, 1, 1], 8, 4, 0, 0)
    for size, each in ((2, 4), (7, 4), (8, 0)):
        with pytest.raises(InputError, match=f"{each} images per class need .* a batch size of at least"):
            class_balanced_batches([0, 0, 1, 1, 2, 2], size, each, 0, 0)
    with pytest.raises(InputError, match="at least one"):
        random_batches([0, 1], 0, 0, 0)
