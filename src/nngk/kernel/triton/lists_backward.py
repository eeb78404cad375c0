# mypy: disallow-untyped-defs=False
"""Triton kernels of the neighbour-list loss, and how they are launched: the backward pass.

One more pass over the gathered rows for ∂x, with ∂θ added up beside it in integers, whose sum does not depend on the
order in which programs come to it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nngk.accel import Tiles, blocks, launch

TILES = Tiles()
HALF_TILES = Tiles(8192, 256, 4)  # of a bank in half precision
NAN_BITS: tl.constexpr = tl.constexpr(0x7FF8000000000000)  # of a float64


@triton.jit(do_not_specialize=["M", "B"])
def _zero_and_scale(sums, grad, M, B, BLOCK: tl.constexpr):
    """Zero the integer sums; the first program also chooses their unit from the largest gradient.

    The bits of 1 / unit and of the unit lie behind the M sums, so that all of it is one piece of memory.
    """
    pid = tl.program_id(0)
    j = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + j, tl.zeros([BLOCK], dtype=tl.int64), mask=j < M)
    if pid == 0:
        largest = tl.zeros([BLOCK], dtype=tl.float32)
        poison = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, B, BLOCK):
            i = start + tl.arange(0, BLOCK)
            g = tl.load(grad + i, mask=i < B, other=0.0).to(tl.float32)
            poison += g * 0.0  # NaN where g is NaN or infinite
            largest = tl.maximum(largest, tl.abs(g))
        top = tl.max(largest, axis=0).to(tl.float64)
        top = tl.where(top > 0, top, 1.0)
        # A row's |p - q| sum to at most 2, so no column sum exceeds 2 B top: 2^61 is out of reach of none of them.
        unit = (2.0 * B) * top / 2305843009213693952.0
        bad = tl.sum(poison, axis=0).to(tl.float64)
        tl.store(sums + M, (1.0 / unit).to(tl.int64, bitcast=True))
        tl.store(sums + M + 1, (unit + bad).to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=["M"])
def _backward(
    x,
    centres,
    neighbours,
    weights,
    grad,
    sigma,
    grad_x,
    sums,
    M,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    C_ROW: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_THETA: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    slabs: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D if NEED_X else 1
    b = (tl.program_id(0) // slabs).to(tl.int64)
    slab = tl.program_id(0) % slabs
    g = tl.load(grad + b).to(tl.float32)
    if NEED_X:
        d = slab * BLOCK_D + tl.arange(0, BLOCK_D)
        q = tl.load(x + b * X_ROW + d, mask=d < D, other=0.0).to(tl.float32)
        total = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
        for start in range(0, K, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            w = tl.load(weights + b * K + k, mask=k < K, other=0.0)
            index = tl.load(neighbours + b * K + k, mask=k < K, other=-1).to(tl.int64)
            # A missing neighbour has weight 0, and so has one too far away to count: neither is read.
            rows = centres + index * C_ROW
            c = tl.load(rows[:, None] + d[None, :], mask=(w != 0)[:, None] & (d < D)[None, :], other=0.0)
            # Σ (p - q) c = Σ (p - q) (c - x); the differences are the smaller numbers.
            total += w[:, None] * (c.to(tl.float32) - q[None, :])
        width = tl.load(sigma).to(tl.float32)
        result = tl.sum(total, axis=0) * g / width / width
        tl.store(grad_x + b * D + d, result.to(grad_x.dtype.element_ty), mask=d < D)
    if NEED_THETA:  # noqa: SIM102 (decided when the kernel is compiled, the inner one when it runs)
        if slab == 0:
            factor = g.to(tl.float64) * tl.load(sums + M).to(tl.float64, bitcast=True)
            for start in range(0, K, BLOCK_K):
                k = start + tl.arange(0, BLOCK_K)
                w = tl.load(weights + b * K + k, mask=k < K, other=0.0)
                index = tl.load(neighbours + b * K + k, mask=k < K, other=0).to(tl.int64)
                # A weight that is NaN has no place in an integer: the unit of the sums, which no program of this kernel
                # reads, becomes NaN instead, and with it all of them. Every program that does so writes the same bits.
                lost = w != w
                tl.store(sums + M + 1 + 0 * k, tl.full([BLOCK_K], NAN_BITS, tl.int64), mask=lost)
                w = tl.where(lost, 0.0, w)
                share = w.to(tl.float64) * factor
                # Integers add up to the same sum in any order, so the result is the same in every run.
                share = share + tl.where(share >= 0, 0.5, -0.5)
                tl.atomic_add(sums + index, share.to(tl.int64), mask=w != 0, sem="relaxed")


@triton.jit(do_not_specialize=["M"])
def _sums_to_float(sums, out, M, BLOCK: tl.constexpr):
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    unit = tl.load(sums + M + 1).to(tl.float64, bitcast=True)
    value = tl.load(sums + j, mask=j < M, other=0).to(tl.float64) * unit
    tl.store(out + j, value.to(out.dtype.element_ty), mask=j < M)


def backward(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    neighbours: Tensor,
    weights: Tensor,
    grad: Tensor,
    *,
    need_x: bool,
    need_theta: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return ∂x (B, D) and ∂θ (m,) from p - q and the gradient of each loss."""
    (n, count), dim, m = neighbours.shape, x.shape[1], len(theta)
    if tiles is None:
        tiles = TILES if centres.dtype == torch.float32 else HALF_TILES
    grad_x = torch.empty(n, dim, dtype=x.dtype, device=x.device) if need_x else None
    sums, grad_theta = weights, None
    if need_theta:
        sums = torch.empty(m + 2, dtype=torch.int64, device=x.device)
        grad_theta = torch.empty_like(theta)
        launch(_zero_and_scale, -(-m // 2048), (sums, grad), (m, n), (2048,))
    rows, width = blocks(tiles, dim, count)
    programs = n * (-(-dim // width) if need_x else 1)
    given = (x, centres, neighbours, weights, grad, sigma, weights if grad_x is None else grad_x, sums)
    sizes = (count, dim, x.stride(0), centres.stride(0), need_x, need_theta, rows, width)
    launch(_backward, programs, given, (m,), sizes, tiles.warps)
    if grad_theta is not None:
        launch(_sums_to_float, -(-m // 2048), (sums, grad_theta), (m,), (2048,))
    return grad_x, grad_theta
