"""The batches of training steps: each step with luck of its own, and shared out over the ranks."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from nngk.data import batches
from nngk.device import placed
from nngk.training.distributed import first_of_share, mixed, share_of
from nngk.training.feed import Transform
from nngk.training.run import Run

Batches = Generator[tuple[Any, Tensor, Tensor], None, None]


def step_batches(run: Run, upcoming: Sequence[Tensor]) -> Batches:
    """Yield (images, labels, indices) of the steps to come, given their batches of training indices.

    Labels and indices are those of the whole batch; the images those of this rank's share of it. Every image is
    augmented as it would be in one process, and in a run that was not stopped.
    """
    feed, ranks = run.feed, run.ranks
    shares, parts = upcoming, None
    if ranks.count > 1:
        shares = [share_of(batch, ranks) for batch in upcoming]
        parts = [(first_of_share(len(batch), ranks), len(batch)) for batch in upcoming]
    coming = batches(
        feed.train.source if feed.detailed is None else feed.detailed,
        feed.train.labels,
        shares,
        seeded(feed.augment, run.settings.seed, run.at.step, parts),
        device=run.device,
        threads=run.settings.threads,
    )
    return coming if ranks.count == 1 else _whole(run, coming, upcoming)


def _whole(run: Run, coming: Batches, upcoming: Sequence[Tensor]) -> Batches:
    """Yield the images of a share with the labels and indices of its whole batch; the run knows those that follow."""
    labels = run.feed.train.labels.to(run.device)
    all_indices = (placed(batch, labels.device) for batch in upcoming)
    with closing(coming):
        for (images, _, _), (indices, following) in zip(coming, pairwise(chain(all_indices, [None]))):
            assert indices is not None  # only the last has none after it
            run.coming = following
            yield images, labels[indices], indices


def seeded(transform: Transform, seed: int, step: int, parts: Iterable[tuple[int, int]] | None = None) -> Transform:
    """Return the transform with randomness of the step alone, so that a resumed run sees the same crops.

    ``parts`` say of each batch to come which part of a whole one it is.
    """
    generator = torch.Generator()
    places = None if parts is None else iter(parts)

    def with_luck(batch: Tensor, _: torch.Generator | None) -> Tensor:
        nonlocal step
        generator.manual_seed(mixed(seed, step) + 1)
        step += 1
        return transform(batch, generator) if places is None else transform(batch, generator, next(places))

    return with_luck
