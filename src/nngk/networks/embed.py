"""Embeddings of many images, in evaluation mode."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from nngk.data import BatchSource, batches
from nngk.device import placed
from nngk.networks.recorded import answers
from nngk.networks.workers import threads_here, workers_with
from nngk.ranks import ALONE, Ranks

MOST_WORKERS = 8  # passes side by side on a CPU: more would wait for Python's lock


class Rows:
    """Cached features as a source of batches: what a frozen network said of each image, once and for all.

    >>> Rows(torch.eye(3)).batch(torch.tensor([2]))
    tensor([[0., 0., 1.]])
    """

    at_hand = True  # nothing is read or decoded

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Any) -> Tensor:
        # Not an index in brackets: on a CPU that is several times as slow, and copies bytes one by one.
        return self.rows.index_select(0, placed(torch.as_tensor(indices), self.device))


def untransformed(
    batch: Tensor, generator: torch.Generator | None = None, part: tuple[int, int] | None = None
) -> Tensor:
    """Return cached features as they are: they need no transform."""
    return batch


def at_once(device: torch.device, side: int | None) -> int:
    """Return how many images of a side, or cached features (None), are embedded fastest together.

    A GPU wants many. On a CPU large maps are given back to the system after every layer and fetched again: few images
    at a time are faster.

    >>> cpu = torch.device("cpu")
    >>> at_once(cpu, 224), at_once(cpu, 32), at_once(cpu, None), at_once(torch.device("cuda"), 448)
    (8, 256, 4096, 128)
    """
    if side is None:
        return 4096
    few, many = (512, 512) if device.type == "cuda" else (8, 256)
    return max(1, min(many, few * 224**2 // side**2))


def embed(
    network: nn.Module,
    source: BatchSource,
    transform: Callable[..., Tensor],
    *,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    amp: bool = False,
    advance: Callable[[int], object] | None = None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return embeddings (n, dim) in float32, in evaluation mode: no dropout. The network's own mode is put back.

    Several ranks share out the images, and each returns all embeddings.
    """
    wide: list[Tensor] = []
    span = ranks.span(len(source))
    how: dict[str, Any] = {"batch_size": batch_size, "device": device, "amp": amp}
    for part in embed_parts(network, source, transform, **how, first=span.start, last=span.stop):
        wide.append(part)
        if advance is not None:
            advance(len(part))
    # A clone outside inference mode: an inference tensor could not take part in training later.
    own = torch.cat(wide).clone() if wide else torch.empty(0, 0, dtype=torch.float32)
    return own if ranks.count == 1 else _gathered(own, len(source), torch.device(device), ranks)


def _gathered(own: Tensor, n: int, device: torch.device, ranks: Ranks) -> Tensor:
    """Return the rows of all ranks; one that had no image learns from the first how wide they are."""
    width = ranks.told(own.shape[1])
    return ranks.gather(own if len(own) else torch.empty(0, width, dtype=torch.float32, device=device), n)


def embed_parts(
    network: nn.Module,
    source: BatchSource,
    transform: Callable[..., Tensor],
    *,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    amp: bool = False,
    first: int = 0,
    last: int | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of some images at a time, in order from ``first`` to before ``last``, as :func:`embed`.

    On a CPU further parts are computed while the caller holds one: weights must stay as they are until the last.
    """
    stop = len(source) if last is None else last
    side = getattr(transform, "size", None)
    if getattr(transform, "crop", None) == "centre" and hasattr(source, "middles"):
        source = source.middles(side)  # nothing else is read
    workers = _workers(network, torch.device(device), source, side, stop - first)
    many = batch_size or min(at_once(torch.device(device), side), -(-(stop - first) // workers))
    training = network.training
    network.eval()

    def passed(images: Tensor) -> Tensor:
        # Not around the loop: whoever takes a part would be in inference mode too.
        with torch.inference_mode(), torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp):
            return answers(network, images).float()

    try:
        parts = list(torch.arange(first, stop).split(many)) if first < stop else []
        if min(workers, len(parts)) > 1:
            yield from _side_by_side(lambda part: passed(transform(source.batch(part))), parts, workers)
            return
        coming = batches(source, torch.zeros(len(source)).long(), parts, transform, device=device)
        with closing(coming):
            for images, _, _ in coming:
                yield passed(images)
    finally:
        network.train(training)


def _workers(network: nn.Module, device: torch.device, source: BatchSource, side: int | None, count: int) -> int:
    """Return how many passes go side by side: on a CPU one per core, each of which asks for its own images.

    Cores that work on one pass together wait for each other after every layer, and much longer while other threads
    decode on the same cores. Where images are at hand nothing is decoded, and who asks may have passes side by side
    already, as the server has. A network that is sharded over processes speaks to them in its passes, in one order.
    """
    if device.type != "cpu" or side is None or getattr(source, "at_hand", False):
        return 1
    if any(hasattr(module, "unshard") for module in network.modules()):
        return 1
    return max(1, min(threads_here(), MOST_WORKERS, count))


def _side_by_side(work: Callable[[Tensor], Tensor], parts: list[Tensor], workers: int) -> Iterator[Tensor]:
    """Yield what ``work`` makes of each part, in order; each worker has its share of PyTorch's threads."""
    workers = min(workers, len(parts))
    coming, waiting = iter(parts), deque[Future[Tensor]]()
    pool = workers_with(workers, max(1, torch.get_num_threads() // workers))
    try:
        waiting.extend(pool.submit(work, part) for part in islice(coming, 2 * workers))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, part) for part in islice(coming, 1))
            yield done
    finally:  # reached on an error too, and when the consumer closes the iterator early
        pool.shutdown(cancel_futures=True)
