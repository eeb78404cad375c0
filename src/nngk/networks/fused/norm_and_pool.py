# mypy: disallow-untyped-defs=False
"""GoogLeNet's local response normalisation and max pooling as one pass over a channels-last map each.

PyTorch builds the normalisation out of a three-dimensional pooling, powers and copies, mostly in float32, and its
pooling writes an index of eight bytes beside every value: together they cost a refresh of the bank more than the
convolutions do. Triton is imported with this module: ask ``nngk.accel.usable`` before.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nngk.accel import device_of, launch, power_of_two

ELEMENTS = 2048  # that a program holds at once


@triton.jit
def _squares(x, row, channel, inside, C: tl.constexpr, HALF: tl.constexpr):
    """Return the sum of squares over the channels around each."""
    total = tl.zeros(channel.shape, tl.float32)
    for d in tl.static_range(-HALF, HALF + 1):
        near = channel + d
        value = tl.load(x + row * C + near, mask=inside & (near >= 0) & (near < C), other=0.0).to(tl.float32)
        total += value * value
    return total


@triton.jit(do_not_specialize=["rows"])
def _normalise(
    x, y, rows,
    C: tl.constexpr, HALF: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute y = x (k + α Σ x²)^-β over a window of channels."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, WIDTH)[None, :] + tl.zeros((ROWS, 1), tl.int32)
    inside = (row < rows) & (channel < C)
    scale = K + ALPHA * _squares(x, row, channel, row < rows, C, HALF)
    value = tl.load(x + row * C + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * C + channel, value * tl.exp2(-BETA * tl.log2(scale)), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _normalise_backward(
    x, gradient, out, rows,
    C: tl.constexpr, HALF: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute ∂x = g s^-β - 2αβ x Σ g x s^(-β-1) over the same window, where s = k + α Σ x² is computed anew."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, WIDTH)[None, :] + tl.zeros((ROWS, 1), tl.int32)
    inside = (row < rows) & (channel < C)
    own = tl.zeros((ROWS, WIDTH), tl.float32)
    around = tl.zeros((ROWS, WIDTH), tl.float32)
    for d in tl.static_range(-HALF, HALF + 1):
        near = channel + d
        there = (row < rows) & (near >= 0) & (near < C)
        g = tl.load(gradient + row * C + near, mask=there, other=0.0).to(tl.float32)
        value = tl.load(x + row * C + near, mask=there, other=0.0).to(tl.float32)
        scale = K + ALPHA * _squares(x, row, near, row < rows, C, HALF)
        g *= tl.exp2(-BETA * tl.log2(scale))
        around += g * value / scale
        if d == 0:
            own += g
    value = tl.load(x + row * C + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * C + channel, own - 2 * ALPHA * BETA * value * around, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _max_pool(
    x, y, rows,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the maxima of windows; a row is a pixel of the pooled map."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    top = row // OUT_WIDTH % OUT_HEIGHT * STRIDE - PADDING
    left = row % OUT_WIDTH * STRIDE - PADDING
    first = row // (OUT_WIDTH * OUT_HEIGHT) * HEIGHT
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    inside = (row < rows) & (channel < C)
    most = tl.full((ROWS, CHANNELS), float("-inf"), tl.float32)
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            there = inside & (top + i >= 0) & (top + i < HEIGHT) & (left + j >= 0) & (left + j < WIDTH)
            at = ((first + top + i) * WIDTH + left + j) * C + channel
            most = tl.maximum(most, tl.load(x + at, mask=there, other=float("-inf")).to(tl.float32))
    tl.store(y + row * C + channel, most, mask=inside)


class _LocalResponseNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.constants = (size // 2, alpha / size, beta, k)
        y = torch.empty_like(x)
        _over_pixels(_normalise, (x, y), ctx.constants)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        _over_pixels(_normalise_backward, (x, channels_last(gradients[0]), out), ctx.constants)
        return out, None, None, None, None


def local_response_norm(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Normalise like ``torch.nn.functional.local_response_norm`` with an odd size, with sums in float32."""
    return _LocalResponseNorm.apply(channels_last(x), size, alpha, beta, k)


def max_pool(x: Tensor, side: int, stride: int, padding: int, ceil_mode: bool) -> Tensor:
    """Pool like ``torch.nn.functional.max_pool2d``, without its gradient."""
    x = channels_last(x)
    n, channels, height, width = x.shape
    out_height, out_width = (pooled_size(s, side, stride, padding, ceil_mode) for s in (height, width))
    shape = (n, channels, out_height, out_width)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    wide = min(128, power_of_two(channels))
    rows, constants = ELEMENTS // wide, (channels, height, width, out_height, out_width, side, stride, padding)
    pixels = n * out_height * out_width
    with device_of(x):
        launch(_max_pool, (-(-pixels // rows), -(-channels // wide)), (x, y), (pixels,), (*constants, rows, wide))
    return y


def pooled_size(size: int, side: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Return a side of a pooled map; where it is rounded up, the last window still begins on the map.

    >>> pooled_size(112, 3, 2, 0, True), pooled_size(112, 3, 2, 0, False), pooled_size(7, 3, 1, 1, False)
    (56, 55, 7)
    """
    steps = -(-(size + 2 * padding - side) // stride) if ceil_mode else (size + 2 * padding - side) // stride
    return steps + (steps * stride < size + padding)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _over_pixels(kernel: Any, tensors: tuple[Tensor, ...], constants: tuple[int | float, ...]) -> None:
    channels = tensors[0].shape[1]
    pixels = tensors[0].numel() // channels
    wide = power_of_two(channels)
    rows = max(1, ELEMENTS // wide)
    with device_of(tensors[0]):
        launch(kernel, -(-pixels // rows), tensors, (pixels,), (channels, *constants, rows, wide))
