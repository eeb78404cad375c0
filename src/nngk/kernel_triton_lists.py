# mypy: disallow-untyped-defs=False
"""Triton kernels of the neighbour-list loss, and how they are launched.

Forward: one program an example takes the squared distance of every gathered row (the one pass that reads centres) and
then both softmaxes. Backward: one more pass over the gathered rows for ∂x, with ∂θ added up beside it. Nothing larger
than (batch, neighbours) is written. Sizes are constants of the kernels: a run has one of each.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nngk.kernel_triton_launch import launch


class Tiles(NamedTuple):
    """Gathered elements a program holds at once, and its warps; a row is cut into pieces of at most ``width``."""

    elements: int = 4096
    width: int = 512
    warps: int = 4


# A program's loads are all in flight together: 16 or 32 KiB each, some programs a multiprocessor, which is several
# times what keeps the memory of an H200 busy.
FORWARD = Tiles(8192, 512, 8)
BACKWARD = Tiles()
BACKWARD_HALF = Tiles(8192, 256, 4)  # of a bank in half precision
# One program an example takes the softmaxes too, up to this length of its list; longer ones leave them to a second.
ONE_PROGRAM = 2048


@triton.jit
def _row_distances(
    x,
    centres,
    neighbours,
    own,
    out,
    b,
    begin,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    C_ROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """|x_b - c|² of some neighbours of one example."""
    k = begin + tl.arange(0, BLOCK_K)
    index = tl.load(neighbours + b * K + k, mask=k < K, other=-1).to(tl.int64)
    present = (index >= 0) & (index != tl.load(own + b).to(tl.int64))
    rows = centres + index * C_ROW
    total = tl.zeros([BLOCK_K], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        c = tl.load(rows[:, None] + d[None, :], mask=present[:, None] & (d < D)[None, :], other=0.0)
        q = tl.load(x + b * X_ROW + d, mask=d < D, other=0.0)
        # Differences first: |x|² + |c|² - 2xc would cancel where it matters most, close to a centre.
        difference = c.to(tl.float32) - q.to(tl.float32)[None, :]
        total += tl.sum(difference * difference, axis=1)
    tl.store(out + b * K + k, tl.where(present, total, float("inf")), mask=k < K)


@triton.jit
def _row_softmaxes(
    squared,
    neighbours,
    theta,
    sigma,
    labels,
    centre_labels,
    loss,
    learns,
    by_sigma,
    b,
    K: tl.constexpr,
    LIST: tl.constexpr,
):
    """Loss, p - q (written over the distances) and the σ-derivative of one example."""
    k = tl.arange(0, LIST)
    d2 = tl.load(squared + b * K + k, mask=k < K, other=float("inf"))
    present = d2 < float("inf")
    index = tl.load(neighbours + b * K + k, mask=present, other=0).to(tl.int64)
    bias = tl.load(theta + index, mask=present, other=0.0).to(tl.float32)
    same = present & (tl.load(centre_labels + index, mask=present, other=0) == tl.load(labels + b))
    width = tl.load(sigma).to(tl.float32)
    # A width whose square underflows must not make 0 * inf of the nearest centre.
    inverse = tl.minimum(0.5 / (width * width), 3e38)
    # Each softmax is taken relative to its nearest centre: subtracted before the division, that costs no digits.
    nearest = tl.min(d2, axis=0)
    nearest_same = tl.min(tl.where(same, d2, float("inf")), axis=0)
    teaches = nearest_same < float("inf")
    beyond = tl.where(present, d2 - nearest, 0.0)
    beyond_same = tl.where(same, d2 - nearest_same, 0.0)
    value = tl.where(present, bias - beyond * inverse, float("-inf"))
    value_same = tl.where(same, bias - beyond_same * inverse, float("-inf"))
    # An example without entries has -inf tops; any finite number in their place keeps NaN out.
    top = tl.where(teaches, tl.max(value, axis=0), 0.0)
    top_same = tl.where(teaches, tl.max(value_same, axis=0), 0.0)
    e = tl.exp(value - top)
    e_same = tl.exp(value_same - top_same)
    total = tl.where(teaches, tl.sum(e, axis=0), 1.0)
    total_same = tl.where(teaches, tl.sum(e_same, axis=0), 1.0)
    weight = tl.where(teaches, e / total - e_same / total_same, 0.0)
    apart = tl.minimum(tl.where(teaches, nearest_same - nearest, 0.0) * inverse, 3e38)
    each = apart + (top - top_same) + (tl.log(total) - tl.log(total_same))
    tl.store(squared + b * K + k, weight, mask=k < K)
    tl.store(loss + b, tl.where(teaches, each, 0.0))
    tl.store(learns + b, teaches.to(tl.int8))
    # Σ (p - q) d² = Σ (p - q) (d² - nearest), as p and q both sum to one; zeros of underflow stay zeros.
    slope = tl.sum(weight * beyond, axis=0) / width / width / width
    # What leaves float32 stops at a number whose sum with others is still one, not inf - inf.
    tl.store(by_sigma + b, tl.minimum(tl.maximum(slope, -1e30), 1e30))


@triton.jit
def _forward(
    x,
    centres,
    neighbours,
    own,
    theta,
    sigma,
    labels,
    centre_labels,
    loss,
    learns,
    by_sigma,
    weights,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    C_ROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LIST: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    for begin in range(0, K, BLOCK_K):
        _row_distances(x, centres, neighbours, own, weights, b, begin, K, D, X_ROW, C_ROW, BLOCK_K, BLOCK_D)
    tl.debug_barrier()  # every distance is written before any is read
    _row_softmaxes(weights, neighbours, theta, sigma, labels, centre_labels, loss, learns, by_sigma, b, K, LIST)


@triton.jit
def _squared_distances(
    x,
    centres,
    neighbours,
    own,
    out,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    C_ROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    blocks: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    b = (tl.program_id(0) // blocks).to(tl.int64)
    begin = (tl.program_id(0) % blocks) * BLOCK_K
    _row_distances(x, centres, neighbours, own, out, b, begin, K, D, X_ROW, C_ROW, BLOCK_K, BLOCK_D)


@triton.jit
def _softmaxes(
    squared,
    neighbours,
    theta,
    sigma,
    labels,
    centre_labels,
    loss,
    learns,
    by_sigma,
    K: tl.constexpr,
    LIST: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    _row_softmaxes(squared, neighbours, theta, sigma, labels, centre_labels, loss, learns, by_sigma, b, K, LIST)


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


def blocks(tiles: Tiles, dim: int, count: int) -> tuple[int, int]:
    """Rows and columns of a program's tile of gathered rows, powers of two."""
    width = max(16, min(tiles.width, power_of_two(dim)))
    rows = max(1, min(tiles.elements // width, 128, power_of_two(count)))
    return rows, width


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def forward(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    neighbours: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
    tiles: Tiles = FORWARD,
    one_program: int = ONE_PROGRAM,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses (B,), whether each example has a same-class neighbour (B,), p - q (B, K) and ∂loss/∂σ (B,)."""
    (n, count), dim, device = neighbours.shape, x.shape[1], x.device
    weights = torch.empty(n, count, dtype=torch.float32, device=device)
    loss = torch.empty(n, dtype=torch.float32, device=device)
    by_sigma = torch.empty(n, dtype=torch.float32, device=device)
    learns = torch.empty(n, dtype=torch.bool, device=device)
    rows, width = blocks(tiles, dim, count)
    sizes = (count, dim, x.stride(0), centres.stride(0), rows, width)
    length = max(16, power_of_two(count))
    given = (theta, sigma, labels, centre_labels, loss, learns.view(torch.int8), by_sigma)
    if length <= one_program:
        launch(_forward, n, (x, centres, neighbours, own, *given, weights), (), (*sizes, length), tiles.warps)
    else:
        programs = n * -(-count // rows)
        launch(_squared_distances, programs, (x, centres, neighbours, own, weights), (), sizes, tiles.warps)
        warps = min(16, max(1, length // 256))
        launch(_softmaxes, n, (weights, neighbours, *given), (), (count, length), warps)
    return loss, learns, weights, by_sigma


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
    """∂x (B, D) and ∂θ (m,) from p - q and the gradient of each loss."""
    (n, count), dim, m = neighbours.shape, x.shape[1], len(theta)
    if tiles is None:
        tiles = BACKWARD if centres.dtype == torch.float32 else BACKWARD_HALF
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
