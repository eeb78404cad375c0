"""Decoded images kept in the memory of a GPU, or in pinned memory beside it: read once, then a batch is a gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nngk.data.loading import BatchSource, batches

# Images read at a time while the memory is filled.
_STEP = 256
# The share of a GPU's free memory that images may take: the network and its activations come first.
_SHARE = 0.5


class Resident:
    """The images of any source in one tensor on ``device``; batches come from there, without a copy between memories.

    With ``device="cpu"`` and ``pin`` the tensor lies in pinned memory, and so do its batches.

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
        self.pixels = torch.empty(0, dtype=torch.uint8, device=self.device)
        done = 0
        parts = torch.arange(len(images)).split(_STEP)
        for pixels, _, _ in batches(images, torch.zeros(len(images)), parts, None, threads=threads, prefetch=threads):
            if not done:
                shape = (len(images), *pixels.shape[1:])
                self.pixels = torch.empty(shape, dtype=pixels.dtype, device=self.device, pin_memory=self.pin)
            self.pixels[done : done + len(pixels)].copy_(pixels)
            done += len(pixels)
            if advance is not None:
                advance(len(pixels))

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Return the pictures at ``indices``, uint8 (B, 3, S, S), where the images are."""
        chosen = torch.as_tensor(indices).to(self.device, torch.int64)
        if self.pin:
            out = torch.empty((len(chosen), *self.pixels.shape[1:]), dtype=self.pixels.dtype, pin_memory=True)
            return torch.index_select(self.pixels, 0, chosen, out=out)
        return self.pixels.index_select(0, chosen)


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
    """Return the images, kept in memory where they fit.

    They are kept in the GPU's memory if they fit ``limit`` bytes and half of what is free there, and in pinned memory
    if they fit the limit alone. Otherwise they are returned as they are, to be read batch by batch.

    >>> kept([], 8, torch.device("cpu"), 1e9)
    []
    """
    needed = len(images) * 3 * size * size
    if device.type != "cuda" or not 0 < needed <= limit:
        return images
    there = (free or _free)(device)
    if needed <= _SHARE * there:
        return Resident(images, device, threads=threads, advance=advance)
    return Resident(images, "cpu", pin=True, threads=threads, advance=advance)


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]
