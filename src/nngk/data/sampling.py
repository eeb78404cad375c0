"""The batches of an epoch as pure functions of (seed, epoch), so that a resumed run meets the same ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nngk.errors import InputError

Labels = Sequence[int] | np.ndarray | torch.Tensor


def random_batches(
    labels: Labels, batch_size: int, seed: int, epoch: int, drop_last: bool = False
) -> list[torch.Tensor]:
    """Return batches with every index once, in an order of its own for each epoch.

    >>> [len(batch) for batch in random_batches([0] * 10, 4, seed=0, epoch=0)]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise InputError(f"A batch has at least one image, not {batch_size}.")
    order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(labels)))
    batches = list(order.split(batch_size)) if len(order) else []
    # Fewer images than a batch: one small batch is better than an epoch of none.
    if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size:
        batches.pop()
    return batches


def class_balanced_batches(
    labels: Labels, batch_size: int, per_class: int, seed: int, epoch: int
) -> list[torch.Tensor]:
    """Return batches of batch_size / per_class different classes with `per_class` images each.

    Every class's images are dealt into groups of `per_class` (the last one filled up with others of the class), and
    batches draw groups until too few classes have one left: nearly every image is met once per epoch.

    >>> batch, *_ = class_balanced_batches([0] * 4 + [1] * 4 + [2] * 4, 4, 2, seed=0, epoch=0)
    >>> sorted((batch // 4).unique(return_counts=True)[1].tolist())
    [2, 2]
    """
    values = np.asarray(labels, dtype=np.int64)
    if per_class < 1 or batch_size < per_class or batch_size % per_class:
        raise InputError(
            f"A batch of {batch_size} images cannot be made of {per_class} images per class: the batch size must "
            "be a multiple of the images per class."
        )
    classes = np.unique(values)
    needed = batch_size // per_class
    if len(classes) < needed:
        raise InputError(
            f"A batch of {batch_size} images, {per_class} per class, needs {needed} classes, but there are "
            f"{len(classes)}: use smaller batches or more images per class."
        )
    rng = np.random.default_rng([seed, epoch])
    groups = [_deal(np.flatnonzero(values == label), per_class, rng) for label in classes]
    left = np.array([len(group) for group in groups])
    batches = []
    while (left > 0).sum() >= needed:
        # The largest keys of log(left) + Gumbel noise are a draw without replacement in proportion to what is left,
        # so that large classes are spread over the epoch instead of being left over at its end.
        with np.errstate(divide="ignore"):
            keys = np.log(left) + rng.gumbel(size=len(left))
        chosen = np.argpartition(-keys, needed - 1)[:needed]
        left[chosen] -= 1
        batches.append(torch.from_numpy(np.concatenate([groups[c][left[c]] for c in chosen])))
    return batches


def _deal(members: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Return a class's indices in random groups, (groups, per_class)."""
    order = rng.permutation(members)
    short = -len(order) % per_class
    if short:
        # Fill with images that are not in the last group already, where the class has enough of them.
        whole = len(order) - (per_class - short)
        others = order[:whole] if whole >= short else order
        order = np.concatenate([order, rng.choice(others, short, replace=len(others) < short)])
    return order.reshape(-1, per_class)
