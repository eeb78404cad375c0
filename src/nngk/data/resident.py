"""Decoded images kept in the memory of a GPU, or in pinned memory beside it: read once, then a batch is a gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nngk.data.flat_pictures import FlatPictures, places_of
from nngk.data.loading import BatchSource, batches
from nngk.device import placed

# Images read at a time while the memory is filled.
_STEP = 256
# The share of a GPU's free memory that images may take: the network and its activations come first.
_SHARE = 0.5


class Resident:
    """The images of any source in one tensor on ``device``; batches come from there, without a copy between memories.

    Images of different sizes lie one after the other, and a batch of them says where: its pixels are not moved. With
    ``device="cpu"`` and ``pin`` the tensor lies in pinned memory, and so do its batches, gathered for their journey.

    >>> class Grey:
    ...     def __len__(self):
    ...         return 3
    ...     def batch(self, indices):
    ...         return torch.full((len(indices), 3, 2, 2), 7, dtype=torch.uint8)
    >>> Resident(Grey(), "cpu").batch([2, 0]).shape
    torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self,
        images: BatchSource,
        device: torch.device | str,
        *,
        pin: bool = False,
        threads: int = 2,
        advance: Callable[[int], object] | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.pin = pin and self.device.type == "cpu"
        self.stacked = False  # whether the images have one size and come as a stack
        memory, done, sizes = self._memory(int(getattr(images, "nbytes", 0))), 0, []
        parts = torch.arange(len(images)).split(_STEP)
        for found, _, _ in batches(images, torch.zeros(len(images)), parts, None, threads=threads, prefetch=threads):
            self.stacked = isinstance(found, Tensor)
            part = FlatPictures.of(found) if isinstance(found, Tensor) else found.compact()
            end = done + len(part.pixels)
            if end > len(memory):  # the source's estimate was too low
                longer = self._memory(max(end, 3 * len(memory) // 2))
                longer[:done] = memory[:done]
                memory = longer
            memory[done:end].copy_(part.pixels)
            done = end
            sizes.append(part.places[:, 1:])
            if advance is not None:
                advance(len(part))
        self.pixels = memory[:done]
        self.places = places_of(torch.cat([torch.empty((0, 2), dtype=torch.int64), *sizes]))

    def _memory(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.uint8, device=self.device, pin_memory=self.pin)

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor | FlatPictures:
        """Return the images at ``indices`` (on the CPU), where the images are: a stack, or `FlatPictures`."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        if not self.stacked:
            found = FlatPictures(self.pixels, self.places[chosen])
            return found.pin_memory() if self.pin else found
        _, height, width = self.places[0].tolist()
        images = self.pixels.view(-1, 3, height, width)
        if self.pin:
            out = torch.empty((len(chosen), 3, height, width), dtype=torch.uint8, pin_memory=True)
            return torch.index_select(images, 0, chosen, out=out)
        return images.index_select(0, placed(chosen, self.device))


def kept(
    images: BatchSource,
    size: int,
    device: torch.device,
    limit: float,
    *,
    threads: int = 2,
    advance: Callable[[int], object] | None = None,
    free: Callable[[torch.device], int] | None = None,
) -> BatchSource:
    """Return the images in the GPU's memory if they fit ``limit`` bytes and half of what is free there.

    They are kept in pinned memory if they fit the limit alone, and otherwise returned as they are, to be read batch by
    batch. ``size`` is their side where they do not say themselves how many bytes they take (``nbytes``).

    >>> kept([], 8, torch.device("cpu"), 1e9)
    []
    """
    needed = getattr(images, "nbytes", len(images) * 3 * size * size)
    if device.type != "cuda" or not 0 < needed <= limit:
        return images
    there = (free or _free)(device)
    if needed <= _SHARE * there:
        return Resident(images, device, threads=threads, advance=advance)
    return Resident(images, "cpu", pin=True, threads=threads, advance=advance)


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]
