"""Batches of training indices, as pure functions of labels, seed and epoch, so that a resumed run repeats them.

An epoch of every sampler shows the network about as many images as the training set has, whichever loss asks.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nngk.data.sampling import Classes, class_balanced_batches, classes_of, generator, random_batches
from nngk.errors import InputError


class Sampler(Protocol):
    """Something that gives the index batches of an epoch."""

    def __call__(self, labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]: ...


def random(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return all examples in random order.

    >>> sorted(torch.cat(random(torch.zeros(5), 2, seed=0, epoch=0)).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_batches(labels, batch_size, seed, epoch)


def even(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return examples in random order, in batches of one size; those left over after the last batch sit out.

    >>> [len(batch) for batch in even(torch.zeros(5), 2, seed=0, epoch=0)]
    [2, 2]
    """
    return random_batches(labels, batch_size, seed, epoch, drop_last=True)


def per_class(m: int, exactly: bool = False) -> Sampler:
    """Return a sampler of batches with ``m`` images of each of several classes.

    >>> labels = torch.arange(8) // 2
    >>> [sorted(labels[batch].tolist()) for batch in per_class(2)(labels, 8, seed=0, epoch=0)]
    [[0, 0, 1, 1, 2, 2, 3, 3]]
    """

    def sampler(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        return class_balanced_batches(labels, batch_size, m, seed, epoch, exactly)

    return sampler


def twice(sampler: Sampler) -> Sampler:
    """Return a sampler whose batches hold half as many images of another's, each of them twice.

    >>> twice(even)(torch.zeros(4), 4, seed=0, epoch=0)[0].view(2, 2).diff(dim=0).tolist()
    [[0, 0]]
    """

    def doubled(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        return [batch.repeat(2) for batch in sampler(labels, max(2, batch_size // 2), seed, epoch)]

    return doubled


def triplets(labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return random (anchor, positive, negative), one after the other; a third of the examples are anchors.

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
    """Return the examples that are anchors in this epoch."""
    return rng.permutation(examples)[: -(-examples // 3)].tolist()


def triplet_batches(chosen: Tensor, batch_size: int) -> list[Tensor]:
    """Return triplets (t, 3) as batches of at most ``batch_size`` images: anchor, positive, negative, anchor, …"""
    if batch_size < 3:
        raise InputError(f"Triplets need a batch size of at least 3, got {batch_size}.")
    return [part.flatten() for part in chosen.split(batch_size // 3)]


def random_pair(anchor: int, classes: Classes, rng: np.random.Generator) -> tuple[int, int]:
    """Return a random other example of the anchor's class and a random one of another class."""
    own = classes.members[classes.of[anchor]]
    positive = int(rng.choice(own[own != anchor]))
    while True:  # ends: there are two classes
        negative = int(rng.integers(len(classes.of)))
        if classes.of[negative] != classes.of[anchor]:
            return positive, negative
