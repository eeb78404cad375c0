"""A network's answers as CUDA graphs: recorded for the shapes of batches that come again, then replayed.

With few images a GPU waits for the host, which launches hundreds of kernels one by one; a replay is one launch.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from nngk.accel import capturing

WARM_UP = 3  # passes before a recording, in which libraries choose their algorithms
MOST_PIXELS = 128 * 224**2  # of a batch: with more the host is ahead of the GPU, and a recording only holds memory
MOST_SHAPES = 8  # of batches, whose recordings are kept
SIGHTINGS = 2  # of a shape, before it is worth a recording

Replay = Callable[[Tensor], Tensor]


class Recording:
    """One shape's pass in evaluation mode. The weights may change in place between replays."""

    def __init__(self, network: nn.Module, images: Tensor, pool: Any = None) -> None:
        self.images = images.clone(memory_format=torch.channels_last if images.ndim == 4 else torch.preserve_format)
        amp = torch.is_autocast_enabled("cuda")
        stream = torch.cuda.current_stream()  # a refresh in the background has its own; the default one cannot record
        stream = torch.cuda.Stream() if stream == torch.cuda.default_stream() else stream
        self.graph = torch.cuda.CUDAGraph()
        # No cache of cast weights: a replay must cast them anew each time.
        with capturing(), torch.autocast("cuda", torch.bfloat16, enabled=amp, cache_enabled=False):
            for _ in range(WARM_UP):
                network(self.images)
            with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.out = network(self.images)

    def __call__(self, images: Tensor) -> Tensor:
        self.images.copy_(images)
        self.graph.replay()
        return self.out.clone()  # the next replay writes over its own result


class Recordings:
    """The recordings of one network, which share their memory: every result is copied before the next replay.

    Args:
        most_pixels: larger batches go through the network itself.
        sightings: how often a shape is seen before it is recorded.
        record: makes a recording of a network, an example of its batches and what the recordings share.
    """

    def __init__(
        self,
        most_pixels: float = MOST_PIXELS,
        sightings: int = SIGHTINGS,
        record: Callable[[nn.Module, Tensor, Any], Replay] = Recording,
    ) -> None:
        self.most_pixels, self.sightings, self.record = most_pixels, sightings, record
        self.kept: dict[Hashable, Replay] = {}  # the one that was used last is at the end
        self.seen: Counter[Hashable] = Counter()
        self.weights: list[int] = []  # where they are
        self.pool: Any = None
        self.possible = True
        self.lock = threading.Lock()

    def __call__(self, network: nn.Module, images: Tensor) -> Tensor:
        if self.possible and images.numel() <= 3 * self.most_pixels:
            with self.lock:
                replay = self._found(network, images)
                if replay is not None:
                    return replay(images)
        return network(images)

    def _found(self, network: nn.Module, images: Tensor) -> Replay | None:
        """Return the recording for such a batch, made now if the batch has been seen often enough."""
        where = [parameter.data_ptr() for parameter in network.parameters()]
        if where != self.weights:  # they were moved, and a recording knows them by their place
            self.weights = where
            self.kept.clear()
        modes = (torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled())
        key = (images.shape, images.dtype, modes, _stream(images))
        if key in self.kept:
            self.kept[key] = self.kept.pop(key)
            return self.kept[key]
        self.seen[key] += 1
        if self.seen[key] < self.sightings:
            return None
        if self.pool is None and images.is_cuda:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            made = self.record(network, images, self.pool)
        except RuntimeError:  # such as a network that asks the GPU for a value in between
            self.possible = False
            self.kept.clear()
            return None
        self.kept[key] = made
        if len(self.kept) > MOST_SHAPES:
            del self.kept[next(iter(self.kept))]
        return made


_RECORDED: "WeakKeyDictionary[nn.Module, Recordings]" = WeakKeyDictionary()
_lock = threading.Lock()


def answers(network: nn.Module, images: Tensor) -> Tensor:
    """Return what a network in evaluation mode says of a batch, replayed where a GPU would wait for the host."""
    if not images.is_cuda or network.training or torch.is_grad_enabled():
        return network(images)
    with _lock:
        recordings = _RECORDED.setdefault(network, Recordings())
    return recordings(network, images)


def always_recorded(network: nn.Module) -> nn.Module:
    """Return the network, from now on recorded for every batch that :func:`answers` is given.

    For a thread that should leave the host to others: launching kernels one by one would take it from them.
    """
    with _lock:
        _RECORDED[network] = Recordings(most_pixels=float("inf"), sightings=1)
    return network


def _stream(images: Tensor) -> int:
    """Return a number of the stream in use: what two streams replayed at once would write over each other's results."""
    return int(torch.cuda.current_stream(images.device).cuda_stream) if images.is_cuda else 0
