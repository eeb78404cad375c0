"""Augmentation of whole batches: crop, flip and normalise in one sampling of the pixels, on any device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from nngk.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_TRIES = 10  # a resized crop that does not fit is drawn again this often


@dataclass(frozen=True)
class Augmentation:
    """Turns uint8 images (B, 3, S, S) into normalised floats (B, 3, size, size), each image with its own luck.

    crop: 'resized' takes a window of random area and shape and resizes it, 'random' a size×size window anywhere,
    'centre' the one in the middle. A generator on the CPU gives the same windows whatever the batch's device.

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

    def __call__(self, batch: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        if batch.ndim == 3:
            return self(batch[None], generator)[0]
        if batch.ndim != 4 or batch.dtype != torch.uint8:
            raise InputError(
                f"Expected uint8 images of shape (B, 3, S, S), got {batch.dtype} of shape {tuple(batch.shape)}."
            )
        count, _, height, width = batch.shape
        if self.crop == "centre" and not self.flip and self.size <= min(height, width):
            # The middle as it lies there: nothing is drawn and nothing sampled.
            top, left = (height - self.size) // 2, (width - self.size) // 2
            pixels = batch[..., top : top + self.size, left : left + self.size].float()
        else:
            windows, flipped = self.draw(count, height, width, generator)
            # One small copy, which a GPU does not have to be waited for.
            luck = _placed(torch.cat([windows.float(), flipped[:, None].float()], dim=1), batch.device)
            pixels = _sample(batch, luck[:, :4], luck[:, 4] > 0, self.size)
        return pixels.div_(255).sub_(_channels(self.mean, batch.device)).div_(_channels(self.std, batch.device))

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw windows (count, 4) as left, top, width, height in pixels, and which images are mirrored (count,)."""
        device = generator.device if generator is not None else torch.device("cpu")

        def uniform(*shape: int) -> torch.Tensor:
            # In float64 so that rounding cannot push a window out of its image.
            return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)

        if self.crop == "resized":
            windows = self._resized(uniform(count, _TRIES, 2), uniform(count, 2), height, width)
        else:
            if self.size > min(height, width):
                raise InputError(
                    f"A crop of {self.size} pixels does not fit images of {height}×{width}: make the images larger, "
                    "the crop smaller, or use crop='resized'."
                )
            room = torch.tensor([width - self.size, height - self.size], dtype=torch.float64, device=device)
            # Whole pixels: then sampling copies them instead of blurring.
            if self.crop == "random":
                corner = (uniform(count, 2) * (room + 1)).floor().minimum(room)
            else:
                corner = (room / 2).floor().expand(count, 2)
            windows = torch.cat([corner, torch.full_like(corner, self.size)], dim=1)
        flipped = uniform(count) < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool, device=device)
        return windows, flipped

    def _resized(self, shape_luck: torch.Tensor, place_luck: torch.Tensor, height: int, width: int) -> torch.Tensor:
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * shape_luck[..., 0]) * (height * width)
        aspect = torch.exp(low + (high - low) * shape_luck[..., 1])
        wide, tall = torch.sqrt(area * aspect), torch.sqrt(area / aspect)  # (count, tries)
        fits = (wide <= width) & (tall <= height)
        first = fits.int().argmax(dim=1, keepdim=True)  # the first that fits, or 0 when none does
        wide, tall = wide.gather(1, first), tall.gather(1, first)
        # When none fits, the first is cut down to the image.
        extent = torch.cat([wide.clamp(max=width), tall.clamp(max=height)], dim=1)
        whole = torch.tensor([width, height], dtype=extent.dtype, device=extent.device)
        return torch.cat([place_luck * (whole - extent), extent], dim=1)


def centre_crop(
    size: int, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD
) -> Augmentation:
    """Return the centre crop without a flip: what embeddings are computed from.

    >>> centre_crop(8)(torch.zeros((1, 3, 10, 10), dtype=torch.uint8)).shape
    torch.Size([1, 3, 8, 8])
    """
    return Augmentation(size=size, crop="centre", flip=False, mean=tuple(mean), std=tuple(std))


def _placed(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a small tensor on the device of the images."""
    if device.type == "cuda" and numbers.device.type == "cpu":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


@functools.lru_cache(maxsize=64)
def _channels(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return a number for each channel, copied to a device once."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(-1, 1, 1)


def _sample(batch: torch.Tensor, windows: torch.Tensor, flipped: torch.Tensor, size: int) -> torch.Tensor:
    """Return bilinear samples at the centres of a size×size grid laid over each window, float32."""
    height, width = batch.shape[-2:]
    left, top, wide, tall = windows.unbind(1)
    steps = (torch.arange(size, device=batch.device) + 0.5) / size  # (size,) of the way across a window
    across = torch.where(flipped[:, None], 1 - steps, steps)
    # In grid_sample's frame the image spans -1 to 1, pixel borders included.
    grid = torch.empty((len(batch), size, size, 2), device=batch.device)
    grid[..., 0] = ((left[:, None] + wide[:, None] * across) * (2 / width) - 1)[:, None, :]
    grid[..., 1] = ((top[:, None] + tall[:, None] * steps) * (2 / height) - 1)[:, :, None]
    # The border is held so that an enlarged crop at the edge does not fade to black.
    return F.grid_sample(batch.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
