"""Augmentation of whole batches: crop, flip, resize and normalise, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from nngk.data.flat_pictures import FlatPictures
from nngk.data.levels import levelled
from nngk.data.resample import normalise, resample
from nngk.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_TRIES = 10  # a resized crop that does not fit is drawn again this often


@dataclass(frozen=True)
class Augmentation:
    """Turns uint8 images into normalised floats (B, 3, size, size), each image with its own luck.

    Images are `FlatPictures`, each of its own size, or a stack (B, 3, H, W). `crop` is 'resized' for a window of random
    area and shape that is resized, 'random' for a size×size window anywhere, 'centre' for the one in the middle. A
    generator on the CPU gives the same windows whatever the batch's device.

    >>> batch = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
    >>> Augmentation(size=24)(batch, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 24, 24])
    """

    size: int = 224
    crop: str = "resized"
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if self.crop not in ("resized", "random", "centre"):
            raise InputError(f"A crop is 'resized', 'random' or 'centre', not {self.crop!r}.")
        if self.size < 1:
            raise InputError(f"The crop has a size of at least one pixel, not {self.size}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale is a range of area shares, 0 < low <= high <= 1, not {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio is a range of width / height, 0 < low <= high, not {self.ratio}.")

    def __call__(
        self,
        batch: Tensor | FlatPictures,
        generator: torch.Generator | None = None,
        part: tuple[int, int] | None = None,
    ) -> Tensor:
        if isinstance(batch, Tensor) and batch.ndim == 3:
            return self(batch[None], generator)[0]
        if self._is_cut(batch):
            return levelled(batch, self.mean, self.std)
        pictures = batch if isinstance(batch, FlatPictures) else _stacked(batch)
        # A GPU is not waited for: what is drawn, and the sizes it depends on, are on the CPU.
        drawn = self.draw(len(pictures), pictures.heights, pictures.widths, generator, part)
        windows, mirrored = (each.cpu() for each in drawn)
        if self.crop == "centre" and not self.flip and not pictures.is_cuda:
            return self._cut(pictures, windows)
        return resample(pictures, windows, mirrored, self.size, self.mean, self.std)

    def _is_cut(self, batch: Tensor | FlatPictures) -> TypeGuard[Tensor]:
        """Return whether a batch is a stack, on a CPU, of all that a centre crop leaves."""
        if self.crop != "centre" or self.flip or not isinstance(batch, Tensor) or batch.dtype != torch.uint8:
            return False
        return batch.device.type == "cpu" and batch.shape[1:] == (3, self.size, self.size)

    def _cut(self, pictures: FlatPictures, windows: Tensor) -> Tensor:
        """Return windows that have the wanted size already: there is nothing to resize."""
        pixels = torch.empty((len(pictures), 3, self.size, self.size))
        for index, (left, top, wide, tall) in enumerate(windows.tolist()):
            pixels[index] = pictures[index][:, top : top + tall, left : left + wide]
        return normalise(pixels, self.mean, self.std)

    def draw(
        self,
        count: int,
        height: int | Tensor,
        width: int | Tensor,
        generator: torch.Generator | None = None,
        part: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return windows (count, 4) as left, top, width, height in whole pixels, and which are mirrored (count,).

        The sizes are the same for all images, or tensors (count,). ``part`` (first, total) says that the images are
        those from the first on of a batch of ``total``: each has the luck that it would have in the whole batch.
        """
        device = generator.device if generator is not None else torch.device("cpu")
        sides = (torch.as_tensor(side, device=device).double().expand(count) for side in (width, height))
        whole = torch.stack(list(sides), dim=1)  # (count, 2): width, height

        def uniform(*shape: int) -> Tensor:  # for each image
            # In float64 so that rounding cannot push a window out of its image.
            first, total = part or (0, count)
            luck = torch.rand((total, *shape), generator=generator, device=device, dtype=torch.float64)
            return luck[first : first + count]

        if self.crop == "resized":
            extent, fits = self._shapes(uniform(_TRIES, 2), whole)
        else:
            self._require_room(whole)
            extent, fits = torch.full_like(whole, self.size), torch.full_like(whole[:, :1], self.crop == "random")
        room = whole - extent
        corner = (room / 2).floor()
        if self.crop != "centre":
            corner = torch.where(fits.bool(), (uniform(2) * (room + 1)).floor().minimum(room), corner)
        mirrored = uniform() < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool, device=device)
        return torch.cat([corner, extent], dim=1).long(), mirrored

    def _shapes(self, luck: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Return widths and heights of random windows, as torchvision's RandomResizedCrop draws them.

        The first of several draws that fits an image is taken. Where none does, which the second result tells, it is
        the largest window of an allowed shape, for the middle of the image.
        """
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * luck[..., 0]) * whole.prod(1, keepdim=True)
        aspect = torch.exp(low + (high - low) * luck[..., 1])
        drawn = torch.stack([torch.sqrt(area * aspect), torch.sqrt(area / aspect)], dim=2).round().clamp(min=1)
        fits = (drawn <= whole[:, None]).all(dim=2)  # (count, tries)
        first = drawn[torch.arange(len(drawn)), fits.int().argmax(dim=1)]
        width, height = whole.unbind(1)
        shape = (width / height).clamp(*self.ratio)
        largest = torch.stack([width.minimum(height * shape), height.minimum(width / shape)], dim=1)
        found = fits.any(dim=1, keepdim=True)
        return torch.where(found, first, largest.round().clamp(min=1)), found

    def _require_room(self, whole: Tensor) -> None:
        """Raise InputError if a window of the wanted size does not fit an image."""
        small = (whole < self.size).any(dim=1).nonzero().flatten().tolist()
        if small:
            width, height = whole[small[0]].long().tolist()
            raise InputError(
                f"A crop of {self.size} pixels does not fit images of {height}×{width}: make the images larger, "
                "the crop smaller, or use crop='resized'."
            )


def centre_crop(
    size: int, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD
) -> Augmentation:
    """Return the centre crop without a flip: what embeddings are computed from.

    >>> centre_crop(8)(torch.zeros((1, 3, 10, 10), dtype=torch.uint8)).shape
    torch.Size([1, 3, 8, 8])
    """
    return Augmentation(size=size, crop="centre", flip=False, mean=tuple(mean), std=tuple(std))


def _stacked(batch: Tensor) -> FlatPictures:
    """Return a stack of images of one size as pictures; raise InputError if it is none."""
    if batch.ndim != 4 or batch.dtype != torch.uint8:
        raise InputError(
            f"Expected uint8 images of shape (B, 3, H, W), got {batch.dtype} of shape {tuple(batch.shape)}."
        )
    return FlatPictures.of(batch)
