# mypy: disallow-untyped-defs=False
"""Triton kernels of the neighbour-list loss, and how they are launched: the forward pass.

One program per example takes the squared distance of every gathered row (the one pass that reads centres) and then both
softmaxes. Nothing larger than (batch, neighbours) is written. Sizes are constants of the kernels, one set per run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nngk.accel import Tiles, blocks, launch, power_of_two

# A program's loads are all in flight together: 16 or 32 KiB each, some programs per multiprocessor, which is several
# times what keeps the memory of an H200 busy.
FORWARD = Tiles(8192, 512, 8)
# One program per example takes the softmaxes too, up to this length of its list; longer ones leave them to a second.
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
    """Write |x_b - c|² of some neighbours of one example."""
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
def _poison(x, b, D: tl.constexpr, X_ROW: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return 0, or NaN where the embedding of an example is not finite."""
    total = tl.zeros([BLOCK_D], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        total += tl.load(x + b * X_ROW + d, mask=d < D, other=0.0).to(tl.float32) * 0.0
    return tl.sum(total, axis=0)


@triton.jit
def _row_softmaxes(
    x,
    squared,
    neighbours,
    own,
    theta,
    sigma,
    labels,
    centre_labels,
    loss,
    learns,
    by_sigma,
    b,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LIST: tl.constexpr,
):
    """Write loss, p - q (over the distances) and the σ-derivative of one example."""
    k = tl.arange(0, LIST)
    d2 = tl.load(squared + b * K + k, mask=k < K, other=float("inf"))
    index = tl.load(neighbours + b * K + k, mask=k < K, other=-1).to(tl.int64)
    # By the index, not by the distance: one that is not finite must not look like a neighbour that is missing.
    present = (index >= 0) & (index != tl.load(own + b).to(tl.int64))
    poison = _poison(x, b, D, X_ROW, BLOCK_D)
    bias = tl.load(theta + index, mask=present, other=0.0).to(tl.float32)
    same = present & (tl.load(centre_labels + index, mask=present, other=0) == tl.load(labels + b))
    width = tl.load(sigma).to(tl.float32)
    # A width whose square underflows must not make 0 * inf of the nearest centre.
    inverse = tl.minimum(0.5 / (width * width), 3e38)
    # Each softmax is taken relative to its nearest centre: subtracted before the division, that costs no digits.
    nearest = tl.min(d2, axis=0)
    nearest_same = tl.min(tl.where(same, d2, float("inf")), axis=0)
    teaches = tl.max(same.to(tl.int32), axis=0) > 0
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
    weight = tl.where(present, weight + poison, 0.0)
    apart = tl.minimum(tl.where(teaches, nearest_same - nearest, 0.0) * inverse, 3e38)
    each = apart + (top - top_same) + (tl.log(total) - tl.log(total_same))
    tl.store(squared + b * K + k, weight, mask=k < K)
    tl.store(loss + b, tl.where(teaches, each, 0.0) + poison)
    tl.store(learns + b, teaches.to(tl.int8))
    # Σ (p - q) d² = Σ (p - q) (d² - nearest), as p and q both sum to one; zeros of underflow stay zeros.
    slope = tl.sum(weight * beyond, axis=0) / width / width / width
    # What leaves float32 stops at a number whose sum with others is still one, not inf - inf.
    tl.store(by_sigma + b, tl.minimum(tl.maximum(slope, -1e30), 1e30) + poison)


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
    _row_softmaxes(
        x,
        weights,
        neighbours,
        own,
        theta,
        sigma,
        labels,
        centre_labels,
        loss,
        learns,
        by_sigma,
        b,
        K,
        D,
        X_ROW,
        BLOCK_D,
        LIST,
    )


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
    x,
    squared,
    neighbours,
    own,
    theta,
    sigma,
    labels,
    centre_labels,
    loss,
    learns,
    by_sigma,
    K: tl.constexpr,
    D: tl.constexpr,
    X_ROW: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LIST: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    _row_softmaxes(
        x,
        squared,
        neighbours,
        own,
        theta,
        sigma,
        labels,
        centre_labels,
        loss,
        learns,
        by_sigma,
        b,
        K,
        D,
        X_ROW,
        BLOCK_D,
        LIST,
    )


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
    """Return losses (B,), whether each example has a same-class neighbour (B,), p - q (B, K) and ∂loss/∂σ (B,)."""
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
        last = (count, dim, x.stride(0), width, length)
        launch(_softmaxes, n, (x, weights, neighbours, own, *given), (), last, warps)
    return loss, learns, weights, by_sigma
