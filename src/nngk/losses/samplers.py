"""Batches of training indices, as pure functions of labels, seed and epoch, so that a resumed run repeats them.

An epoch of every sampler shows the network about as many images as the training set has, whichever loss asks.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from nngk.data.sampling import random_batches
from nngk.errors import InputError


class Sampler(Protocol):
    """Index batches of an epoch."""

    def __call__(self, labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]: ...


IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Classes(NamedTuple):
    """Who belongs to which class: the class of every example, counted from 0, and the examples of every class."""

    of: IntArray
    members: list[IntArray]


def random(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """All examples in random order.

    >>> sorted(torch.cat(random(torch.zeros(5), 2, seed=0, epoch=0)).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_batches(labels, batch_size, seed, epoch)


def per_class(m: int, exactly: bool = False) -> Sampler:
    """A sampler of batches with ``m`` images of each of several classes.

    Where the classes are too few to fill a batch with ``m`` images each, a batch has more images of each, unless
    ``exactly``. A class with fewer images, at least two, gives those it has.

    >>> labels = torch.arange(8) // 2
    >>> [sorted(labels[batch].tolist()) for batch in per_class(2)(labels, 8, seed=0, epoch=0)]
    [[0, 0, 1, 1, 2, 2, 3, 3]]
    """

    def sampler(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        members = classes_of(labels, f"a batch with {m} images of a class").members
        if batch_size < 2 * m:
            raise InputError(
                f"Batches with {m} images of a class need a batch size of at least {2 * m}, for two classes; "
                f"got {batch_size}."
            )
        classes = min(batch_size // m, len(members))
        size = m if exactly else max(m, batch_size // classes)
        rng = generator(seed, epoch)
        queues = [_groups(own, size, rng) for own in members]
        count = max(1, round(len(labels) / (classes * size)))
        return [_batch(members, queues, classes, size, rng) for _ in range(count)]

    return sampler


def triplets(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Random (anchor, positive, negative), one after the other; a third of the examples are anchors in an epoch.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> batch = triplets(labels, 6, seed=0, epoch=0)[0].view(-1, 3)
    >>> bool((labels[batch[:, 0]] == labels[batch[:, 1]]).all() and (labels[batch[:, 0]] != labels[batch[:, 2]]).all())
    True
    """
    classes = classes_of(labels, "a triplet")
    rng = generator(seed, epoch)
    chosen = [(a, *random_pair(a, classes, rng)) for a in triplet_anchors(len(labels), rng)]
    return triplet_batches(torch.tensor(chosen), batch_size)


def triplet_anchors(examples: int, rng: np.random.Generator) -> list[int]:
    """The examples that are anchors in this epoch."""
    return rng.permutation(examples)[: -(-examples // 3)].tolist()


def triplet_batches(chosen: Tensor, batch_size: int) -> list[Tensor]:
    """Triplets (t, 3) as batches of at most ``batch_size`` images: anchor, positive, negative, anchor, …"""
    if batch_size < 3:
        raise InputError(f"Triplets need a batch size of at least 3, got {batch_size}.")
    return [part.flatten() for part in chosen.split(batch_size // 3)]


def random_pair(anchor: int, classes: Classes, rng: np.random.Generator) -> tuple[int, int]:
    """A random other example of the anchor's class and a random one of another class."""
    own = classes.members[classes.of[anchor]]
    positive = int(rng.choice(own[own != anchor]))
    while True:  # ends: there are two classes
        negative = int(rng.integers(len(classes.of)))
        if classes.of[negative] != classes.of[anchor]:
            return positive, negative


def classes_of(labels: Tensor, purpose: str) -> Classes:
    """The classes of the labels; there must be two, with two examples each."""
    names, of, counts = np.unique(labels.detach().cpu().numpy(), return_inverse=True, return_counts=True)
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
    """The random numbers of one epoch."""
    return np.random.default_rng([seed, epoch])


def _groups(own: IntArray, size: int, rng: np.random.Generator) -> list[IntArray]:
    """A class's images, shuffled, in groups of ``size``; the last group is completed from the others."""
    order = rng.permutation(own)
    if len(order) <= size:
        return [order]
    short = -len(order) % size
    order = np.concatenate([order, rng.permutation(order[: len(order) - len(order) % size])[:short]])
    return list(order.reshape(-1, size))


def _batch(
    members: list[IntArray], queues: list[list[IntArray]], classes: int, size: int, rng: np.random.Generator
) -> Tensor:
    """One group from each of the classes with most groups left; ties at random."""
    left = np.array([len(queue) for queue in queues])
    chosen = np.lexsort([rng.random(len(queues)), -left])[:classes]
    groups = []
    for c in rng.permutation(chosen):
        if not queues[c]:
            queues[c] = _groups(members[c], size, rng)
        groups.append(queues[c].pop())
    return torch.from_numpy(np.concatenate(groups))
