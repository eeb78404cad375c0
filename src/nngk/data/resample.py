"""Windows of pictures brought to one size: cut out, then resized as Pillow and torchvision do, for a whole batch.

Each new pixel is a mean of the window's pixels around it with weights that fall off linearly: over two of them each way
where the window is enlarged, over more where it is reduced, so that nothing is skipped.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nngk.accel import installed
from nngk.data.flat_pictures import FlatPictures

Triple = tuple[float, ...]


def resample(pictures: FlatPictures, windows: Tensor, mirrored: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """Return windows of pictures, resized and normalised, float32 (B, 3, size, size).

    `windows` (B, 4) are left, top, width and height in whole pixels, and are on the CPU like `mirrored` (B,).

    >>> black = FlatPictures.of([torch.zeros(3, 4, 6, dtype=torch.uint8)])
    >>> resample(black, torch.tensor([[1, 0, 4, 4]]), torch.tensor([False]), 2, (0.5,) * 3, (0.5,) * 3).unique()
    tensor([-1.])
    """
    if pictures.is_cuda and installed():
        # Triton is imported with that module.
        from nngk.data.resample_triton import resample_flat

        return resample_flat(pictures, windows, mirrored, taps(windows, size), size, mean, std)
    out = torch.empty((len(pictures), 3, size, size), device=pictures.device)
    for index, ((left, top, wide, tall), turned) in enumerate(zip(windows.tolist(), mirrored.tolist())):
        window = pictures[index][None, :, top : top + tall, left : left + wide].float()
        new = interpolate(window, size=(size, size), mode="bilinear", antialias=True)[0]
        out[index] = new.flip(2) if turned else new
    return normalise(out, mean, std)


def normalise(pixels: Tensor, mean: Triple, std: Triple) -> Tensor:
    """Bring values of 0 to 255 to the scale that a network expects, in place."""
    return pixels.div_(255).sub_(_channels(mean, pixels.device)).div_(_channels(std, pixels.device))


def taps(windows: Tensor, size: int) -> tuple[int, int]:
    """Return how many columns and rows at most a new pixel is made of, rounded up so that few numbers occur.

    >>> taps(torch.tensor([[0, 0, 8, 20]]), 8)
    (2, 6)
    """
    across, down = windows[:, 2:].amax(0).tolist() if len(windows) else (1, 1)
    return 2 * math.ceil(across / size), 2 * math.ceil(down / size)


@functools.lru_cache(maxsize=64)
def _channels(values: Triple, device: torch.device) -> Tensor:
    """Return one number per channel, copied to a device once."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(-1, 1, 1)
