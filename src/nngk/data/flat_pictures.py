"""Pictures of different sizes, one after the other in one flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FlatPictures:
    """RGB pictures in a flat uint8 tensor: each lies there channel by channel, row by row.

    `places` (B, 3) is always on the CPU, whatever the device of `pixels`, and holds the position of each picture's
    first value, its height and its width. Several batches may share their pixels, so that choosing pictures moves none.

    >>> both = FlatPictures.of([torch.zeros(3, 2, 4, dtype=torch.uint8), torch.ones(3, 5, 1, dtype=torch.uint8)])
    >>> both.places.tolist(), both[1].shape, both.select([1, 1]).compact().pixels.numel()
    ([[0, 2, 4], [24, 5, 1]], torch.Size([3, 5, 1]), 30)
    """

    pixels: Tensor  # (N,) uint8
    places: Tensor  # (B, 3) int64: offset, height, width

    @classmethod
    def of(cls, pictures: Sequence[Tensor] | Tensor) -> FlatPictures:
        """Return several pictures, each (3, height, width), or a stack of them, as one batch."""
        if isinstance(pictures, Tensor):
            return cls(pictures.reshape(-1), places_of(torch.tensor(pictures.shape[-2:]).expand(len(pictures), 2)))
        sizes = torch.tensor([picture.shape[-2:] for picture in pictures], dtype=torch.int64).reshape(-1, 2)
        flat = [picture.reshape(-1) for picture in pictures]
        return cls(torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8), places_of(sizes))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Tensor:
        """Return one picture, (3, height, width), without copying it."""
        offset, height, width = self.places[index].tolist()
        return self.pixels[offset : offset + 3 * height * width].view(3, height, width)

    @property
    def heights(self) -> Tensor:
        return self.places[:, 1]

    @property
    def widths(self) -> Tensor:
        return self.places[:, 2]

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    @property
    def is_cuda(self) -> bool:
        return self.pixels.is_cuda

    def is_pinned(self) -> bool:
        return self.pixels.is_pinned()

    def select(self, indices: Sequence[int] | np.ndarray | Tensor) -> FlatPictures:
        """Return some of the pictures; they share the pixels."""
        return FlatPictures(self.pixels, self.places[torch.as_tensor(indices, dtype=torch.int64)])

    def compact(self, pin: bool = False) -> FlatPictures:
        """Return the same pictures with no pixels but their own, in pinned memory where asked for."""
        places = places_of(self.places[:, 1:])
        total = int(counts(self.places).sum())
        if not pin and total == len(self.pixels) and torch.equal(places, self.places):
            return self
        pixels = torch.empty(total, dtype=torch.uint8, device=self.device, pin_memory=pin)
        if len(self):
            torch.cat([self[index].reshape(-1) for index in range(len(self))], out=pixels)
        return FlatPictures(pixels, places)

    def pin_memory(self) -> FlatPictures:
        """Return the same pictures in pinned memory."""
        return self.compact(pin=True)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FlatPictures:
        """Return the pictures on a device; pixels of other pictures stay behind."""
        if self.device == torch.device(device):
            return self
        own = self if self.is_pinned() else self.compact()
        return FlatPictures(own.pixels.to(device, non_blocking=non_blocking), own.places)


def places_of(sizes: Tensor) -> Tensor:
    """Return the places of pictures that lie one after the other, from their heights and widths (B, 2).

    >>> places_of(torch.tensor([[2, 4], [5, 1]])).tolist()
    [[0, 2, 4], [24, 5, 1]]
    """
    ends = (3 * sizes.prod(1)).cumsum(0)
    return torch.cat([(ends - 3 * sizes.prod(1))[:, None], sizes], dim=1)


def counts(places: Tensor) -> Tensor:
    """Return the number of values of each picture."""
    return 3 * places[:, 1] * places[:, 2]
