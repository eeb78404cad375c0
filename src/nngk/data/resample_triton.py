# mypy: disallow-untyped-defs=False
"""Windows of pictures of different sizes, resized and normalised by one kernel for the whole batch.

Pixels are read from where they lie, so that a batch of pictures in a GPU's memory is never gathered. Triton is
imported with this module: ask ``nngk.accel.installed`` before.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nngk.accel import device_of, launch
from nngk.data.flat_pictures import FlatPictures
from nngk.device import placed

BLOCK = 256  # new pixels that a program computes
# Of the table: a picture's offset, height and width, its window's four numbers, and whether it is mirrored.
COLUMNS = tl.constexpr(8)


@triton.jit
def _axis(extent, step, SIZE: tl.constexpr):
    """Return the first pixel of a window that counts for each new one, its distance from it, and the reach."""
    scale = extent.to(tl.float32) / SIZE
    centre = (step.to(tl.float32) + 0.5) * scale
    reach = tl.maximum(scale, 1.0)
    first = tl.floor(centre - reach + 0.5)
    return first.to(tl.int32), first + 0.5 - centre, reach


@triton.jit
def _weight(first, distance, reach, tap, extent):
    """Return the pixel of a tap and what it counts for; pixels outside of the window count for nothing."""
    pixel = first + tap
    weight = tl.maximum(1.0 - tl.abs(distance + tap) / reach, 0.0)
    return pixel, tl.where((pixel >= 0) & (pixel < extent), weight, 0.0)


@triton.jit
def _resample(
    pixels, table, out,
    SIZE: tl.constexpr, ACROSS: tl.constexpr, DOWN: tl.constexpr, BLOCK: tl.constexpr,
    MEAN0: tl.constexpr, MEAN1: tl.constexpr, MEAN2: tl.constexpr,
    STD0: tl.constexpr, STD1: tl.constexpr, STD2: tl.constexpr,
):  # fmt: skip
    """Compute a block of new pixels of one picture, all three channels."""
    picture = tl.program_id(1)
    row = table + picture * COLUMNS
    height, width = tl.load(row + 1), tl.load(row + 2)
    wide, tall = tl.load(row + 5), tl.load(row + 6)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < SIZE * SIZE
    x, y = position % SIZE, position // SIZE
    first_x, distance_x, reach_x = _axis(wide, tl.where(tl.load(row + 7) > 0, SIZE - 1 - x, x), SIZE)
    first_y, distance_y, reach_y = _axis(tall, y, SIZE)
    red = pixels + tl.load(row) + tl.load(row + 4) * width + tl.load(row + 3)
    green, blue = red + height * width, red + 2 * height * width
    sum_red = tl.zeros((BLOCK,), tl.float32)
    sum_green = tl.zeros((BLOCK,), tl.float32)
    sum_blue = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(DOWN):
        at_y, weight_y = _weight(first_y, distance_y, reach_y, i, tall)
        for j in range(ACROSS):
            at_x, weight_x = _weight(first_x, distance_x, reach_x, j, wide)
            weight = weight_y * weight_x
            at, wanted = at_y * width + at_x, inside & (weight > 0)
            sum_red += weight * tl.load(red + at, mask=wanted, other=0).to(tl.float32)
            sum_green += weight * tl.load(green + at, mask=wanted, other=0).to(tl.float32)
            sum_blue += weight * tl.load(blue + at, mask=wanted, other=0).to(tl.float32)
            total += weight
    to = out + picture.to(tl.int64) * (3 * SIZE * SIZE) + position
    tl.store(to, (sum_red / total / 255 - MEAN0) / STD0, mask=inside)
    tl.store(to + SIZE * SIZE, (sum_green / total / 255 - MEAN1) / STD1, mask=inside)
    tl.store(to + 2 * SIZE * SIZE, (sum_blue / total / 255 - MEAN2) / STD2, mask=inside)


def resample_flat(
    pictures: FlatPictures,
    windows: Tensor,
    mirrored: Tensor,
    taps: tuple[int, int],
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """Return windows of pictures, resized and normalised: see :func:`nngk.data.resample.resample`."""
    pixels = pictures.pixels
    out = torch.empty((len(pictures), 3, size, size), device=pixels.device)
    if len(pictures):
        table = torch.cat([pictures.places, windows, mirrored[:, None].long()], dim=1)
        programs = (-(-size * size // BLOCK), len(pictures))
        with device_of(pixels):
            there = placed(table, pixels.device)  # one small copy, which is not waited for
            launch(_resample, programs, (pixels, there, out), (), (size, *taps, BLOCK, *mean, *std))
    return out
