"""Batches on the device, decoded ahead of time in threads, in an order that does not depend on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from nngk.data.flat_pictures import FlatPictures
from nngk.device import placed
from nngk.errors import InputError

Batch = torch.Tensor | FlatPictures  # images of one size, or rows of features; or images of different sizes
Transform = Callable[[Any, torch.Generator | None], torch.Tensor]


class BatchSource(Protocol):
    """Anything of a known length that gives a batch by its indices: decoded images, or rows of cached features.

    Indices are on the CPU. A source whose batches are on a GPU already says so by a `device`, one whose batches are
    at hand, without reading or decoding, by `at_hand`.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: torch.Tensor, /) -> Batch: ...


class Selected:
    """Some rows of a source, in an order of one's own.

    >>> class Tens:
    ...     def batch(self, indices):
    ...         return indices * 10
    >>> numbers = Selected(Tens(), torch.tensor([3, 1, 2]))
    >>> len(numbers), numbers.batch(torch.tensor([0, 2])).tolist()
    (3, [30, 20])
    """

    def __init__(self, source: BatchSource, rows: torch.Tensor | np.ndarray) -> None:
        self.source, self.rows = source, torch.as_tensor(rows).cpu()
        self.device = getattr(source, "device", torch.device("cpu"))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return the batch of some of these rows."""
        return self.source.batch(self.rows[torch.as_tensor(indices)])


def batches(
    images: BatchSource,
    labels: Sequence[int] | np.ndarray | torch.Tensor,
    index_batches: Iterable[torch.Tensor],
    transform: Transform | None,
    *,
    device: str | torch.device = "cpu",
    generator: torch.Generator | None = None,
    threads: int = 2,
    prefetch: int = 2,
) -> Generator[tuple[Any, torch.Tensor, torch.Tensor], None, None]:
    """Yield (images, labels, indices) on `device` for every index batch, in order.

    Reading happens `prefetch` batches ahead in threads; the transform runs here, on the device, one batch after the
    other, so that the generator's numbers fall the same way however the threads are scheduled. Images that are on a
    GPU already (their source has a `device`) are gathered there instead, in the stream of whoever asks. On a GPU
    nothing here waits for it: what comes from the CPU comes from pinned memory.

    >>> class Blank:
    ...     def __len__(self):
    ...         return 3
    ...     def batch(self, indices):
    ...         return torch.zeros((len(indices), 3, 4, 4), dtype=torch.uint8)
    >>> [(x.shape[0], y.tolist(), i.tolist()) for x, y, i in batches(Blank(), [5, 6, 7], [torch.tensor([2, 0])], None)]
    [(2, [7, 5], [2, 0])]
    """
    if threads < 1 or prefetch < 1:
        raise InputError(f"Loading needs at least one thread and one batch ahead, not {threads} and {prefetch}.")
    return _batches(images, labels, index_batches, transform, torch.device(device), generator, threads, prefetch)


def _batches(
    images: BatchSource,
    labels: Sequence[int] | np.ndarray | torch.Tensor,
    index_batches: Iterable[torch.Tensor],
    transform: Transform | None,
    device: torch.device,
    generator: torch.Generator | None,
    threads: int,
    prefetch: int,
) -> Generator[tuple[Any, torch.Tensor, torch.Tensor], None, None]:
    all_labels = torch.as_tensor(labels).to(device, torch.int64)
    pin = device.type == "cuda"

    def read(indices: torch.Tensor) -> Batch:
        found = images.batch(indices)
        return found.pin_memory() if pin and not (found.is_cuda or found.is_pinned()) else found

    here = _on_gpu(images) or (not pin and getattr(images, "at_hand", False))
    reading = _inline(images, index_batches) if here else _ahead(read, index_batches, threads, prefetch)
    try:
        for indices, found in reading:
            chosen, there = placed(indices, device), found.to(device, non_blocking=pin)
            yield there if transform is None else transform(there, generator), all_labels[chosen], chosen
    finally:
        reading.close()


def _on_gpu(images: BatchSource) -> bool:
    place = getattr(images, "device", None)
    return isinstance(place, torch.device) and place.type == "cuda"


def _inline(
    images: BatchSource, index_batches: Iterable[torch.Tensor]
) -> Generator[tuple[torch.Tensor, Batch], None, None]:
    for indices in index_batches:
        yield indices, images.batch(indices)


def _ahead(
    read: Callable[[torch.Tensor], Batch], index_batches: Iterable[torch.Tensor], threads: int, prefetch: int
) -> Generator[tuple[torch.Tensor, Batch], None, None]:
    """Yield index batches with what was read for them, in threads, before it is asked for."""
    upcoming = iter(index_batches)
    waiting: deque[tuple[torch.Tensor, Future[Batch]]] = deque()
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
            yield indices, pixels
    finally:
        # Reached at the end, on an error and when the consumer closes the iterator early.
        pool.shutdown(wait=True, cancel_futures=True)
