"""The batches of an epoch as pure functions of (seed, epoch), so that a resumed run meets the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from nngk.errors import InputError

Labels = Sequence[int] | np.ndarray | torch.Tensor
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Classes(NamedTuple):
    """Who belongs to which class: the class of every example, counted from 0, and the examples of every class."""

    of: IntArray
    members: list[IntArray]


def random_batches(
    labels: Labels, batch_size: int, seed: int, epoch: int, drop_last: bool = False
) -> list[torch.Tensor]:
    """Return batches with every index once, in an order of its own for each epoch.

    >>> [len(batch) for batch in random_batches([0] * 10, 4, seed=0, epoch=0)]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise InputError(f"A batch has at least one image, not {batch_size}.")
    order = torch.from_numpy(generator(seed, epoch).permutation(len(labels)))
    batches = list(order.split(batch_size)) if len(order) else []
    # Fewer images than a batch: one small batch is better than an epoch of none.
    if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size:
        batches.pop()
    return batches


def class_balanced_batches(
    labels: Labels, batch_size: int, per_class: int, seed: int, epoch: int, exactly: bool = False
) -> list[torch.Tensor]:
    """Return batches with ``per_class`` images of each of ``batch_size / per_class`` classes.

    Every class's images are dealt into groups, and each batch takes one group from each of the classes with most
    groups left: nearly every image is met once in an epoch. Where the classes are too few to fill a batch with
    ``per_class`` images each, a batch has more images of each, unless ``exactly``. A class with fewer images, at least
    two, gives those it has, so that no batch shows an image twice.

    >>> labels = np.arange(8) // 2
    >>> [sorted(labels[batch].tolist()) for batch in class_balanced_batches(labels, 8, 2, seed=0, epoch=0)]
    [[0, 0, 1, 1, 2, 2, 3, 3]]
    """
    members = classes_of(labels, f"a batch with {per_class} images per class").members
    if per_class < 1 or batch_size < 2 * per_class:
        raise InputError(
            f"Batches with {per_class} images per class need at least one of each and a batch size of at least "
            f"{max(2, 2 * per_class)}, for two classes; got {batch_size}."
        )
    classes = min(batch_size // per_class, len(members))
    size = per_class if exactly else max(per_class, batch_size // classes)
    rng = generator(seed, epoch)
    queues = [_groups(own, size, rng) for own in members]
    count = max(1, round(len(labels) / (classes * size)))
    return [_batch(members, queues, classes, size, rng) for _ in range(count)]


def classes_of(labels: Labels, purpose: str) -> Classes:
    """Return the classes of the labels; raise InputError unless there are two, with two examples each."""
    values = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    names, of, counts = np.unique(values, return_inverse=True, return_counts=True)
    alone = names[counts < 2]
    if len(alone):
        listed = ", ".join(str(c) for c in alone[:20]) + (", …" if len(alone) > 20 else "")
        raise InputError(
            f"Every class needs at least two images for {purpose}, but {len(alone)} of {len(names)} classes have "
            f"one: class {listed}. Add images to them or leave them out."
        )
    if len(names) < 2:
        raise InputError(f"At least two classes are needed for {purpose}, got {len(names)}.")
    order = np.argsort(of, kind="stable")
    return Classes(of.astype(np.int64), np.split(order, np.cumsum(counts)[:-1]))


def generator(seed: int, epoch: int) -> np.random.Generator:
    """Return the random numbers of one epoch."""
    return np.random.default_rng([seed, epoch])


def _groups(own: IntArray, size: int, rng: np.random.Generator) -> list[IntArray]:
    """Return a class's images, shuffled, in groups of ``size``; the last group is completed from the others."""
    order = rng.permutation(own)
    if len(order) <= size:
        return [order]
    short = -len(order) % size
    order = np.concatenate([order, rng.permutation(order[: len(order) - len(order) % size])[:short]])
    return list(order.reshape(-1, size))


def _batch(
    members: list[IntArray], queues: list[list[IntArray]], classes: int, size: int, rng: np.random.Generator
) -> torch.Tensor:
    """Return one group from each of the classes with most groups left; ties are broken at random."""
    left = np.array([len(queue) for queue in queues])
    chosen = np.lexsort([rng.random(len(queues)), -left])[:classes]
    groups = []
    for c in rng.permutation(chosen):
        if not queues[c]:
            queues[c] = _groups(members[c], size, rng)
        groups.append(queues[c].pop())
    return torch.from_numpy(np.concatenate(groups))
