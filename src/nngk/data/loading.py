"""Batches on the device, decoded ahead of time in threads, in an order that does not depend on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np
import torch

from nngk.errors import InputError

Transform = Callable[[torch.Tensor, torch.Generator | None], torch.Tensor]


class HasBatches(Protocol):
    """Anything that gives the uint8 images at some indices."""

    def batch(self, indices: torch.Tensor, /) -> torch.Tensor: ...


def batches(
    images: HasBatches,
    labels: Sequence[int] | np.ndarray | torch.Tensor,
    index_batches: Iterable[torch.Tensor],
    transform: Transform | None,
    *,
    device: str | torch.device = "cpu",
    generator: torch.Generator | None = None,
    threads: int = 2,
    prefetch: int = 2,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield (images, labels, indices) on `device` for every index batch, in order.

    Reading happens `prefetch` batches ahead in threads; the transform runs here, on the device, one batch after the
    other, so that the generator's numbers fall the same way however the threads are scheduled.

    >>> class Blank:
    ...     def batch(self, indices):
    ...         return torch.zeros((len(indices), 3, 4, 4), dtype=torch.uint8)
    >>> [(x.shape[0], y.tolist(), i.tolist()) for x, y, i in batches(Blank(), [5, 6, 7], [torch.tensor([2, 0])], None)]
    [(2, [7, 5], [2, 0])]
    """
    if threads < 1 or prefetch < 1:
        raise InputError(f"Loading needs at least one thread and one batch ahead, not {threads} and {prefetch}.")
    return _batches(images, labels, index_batches, transform, torch.device(device), generator, threads, prefetch)


def _batches(
    images: HasBatches,
    labels: Sequence[int] | np.ndarray | torch.Tensor,
    index_batches: Iterable[torch.Tensor],
    transform: Transform | None,
    device: torch.device,
    generator: torch.Generator | None,
    threads: int,
    prefetch: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    all_labels = torch.as_tensor(labels).to("cpu", torch.int64)
    pin = device.type == "cuda"

    def read(indices: torch.Tensor) -> torch.Tensor:
        pixels = images.batch(indices)
        return pixels.pin_memory() if pin else pixels

    upcoming = iter(index_batches)
    waiting: deque[tuple[torch.Tensor, Future[torch.Tensor]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="nngk-load")
    try:
        while True:
            for indices in islice(upcoming, prefetch - len(waiting)):
                waiting.append((indices, pool.submit(read, indices)))
            if not waiting:
                return
            indices, future = waiting.popleft()
            pixels = future.result()
            # One more starts before the consumer takes over, so that threads work while it does.
            for following in islice(upcoming, 1):
                waiting.append((following, pool.submit(read, following)))
            pixels = pixels.to(device, non_blocking=pin)
            if transform is not None:
                pixels = transform(pixels, generator)
            yield pixels, all_labels[indices].to(device), indices.to(device)
    finally:
        # Reached at the end, on an error and when the consumer closes the iterator early.
        pool.shutdown(wait=True, cancel_futures=True)
