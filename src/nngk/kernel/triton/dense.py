# mypy: disallow-untyped-defs=False
"""Triton kernels of the all-centres loss, and how they are launched: a difference of two attentions.

With μ the mean centre, l_ij = θ_j - |x_i - c_j|² / 2σ² equals ((x_i - μ)·c_j - |c_j - μ|² / 2) / σ² + θ_j up to a
term of the row alone, which cancels from the loss. So the keys are the centres as they stand in the bank, and no
shifted copy of them is made. The forward pass keeps running log-sum-exps and writes two numbers per example and split;
the backward pass writes p - q for some thousand centres at a time and multiplies it with them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of p - q held at a time in the backward pass: 64 MiB of float32.
TILE = 1 << 24
# Rows and columns of a program's tile, depth of one step of the product, warps, stages: (float32, half precision).
BLOCKS = {True: (128, 64, 32, 4, 3), False: (64, 128, 64, 4, 3)}


@triton.jit
def _norms(centres, mean, out, M, D, c_row, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write |c_j - μ|², a row at a time."""
    j = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = (j < M)[:, None] & (d < D)[None, :]
        c = tl.load(centres + j[:, None] * c_row + d[None, :], mask=inside, other=0.0).to(tl.float32)
        c = tl.where(inside, c - tl.load(mean + d, mask=d < D, other=0.0)[None, :], 0.0)
        total += tl.sum(c * c, axis=1)
    tl.store(out + j, total, mask=j < M)


@triton.jit
def _scores(
    x,
    centres,
    norms,
    i,
    j,
    B,
    M,
    D,
    x_row,
    c_row,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return (x - μ)·c - |c - μ|² / 2 of the rows i and columns j."""
    product = tl.zeros([BLOCK_B, BLOCK_M], dtype=tl.float32)
    queries = x + i.to(tl.int64)[:, None] * x_row
    keys = centres + j.to(tl.int64)[None, :] * c_row
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        q = tl.load(queries + d[None, :], mask=(i < B)[:, None] & (d < D)[None, :], other=0.0)
        c = tl.load(keys + d[:, None], mask=(d < D)[:, None] & (j < M)[None, :], other=0.0)
        # Equal types where the bank is kept in half precision: the queries were rounded to it beforehand.
        product = tl.dot(q, c.to(q.dtype), product, input_precision=PRECISION)
    return product - 0.5 * tl.load(norms + j, mask=j < M, other=0.0)[None, :]


@triton.jit
def _log_sums(
    x,
    centres,
    norms,
    theta,
    sigma,
    labels,
    centre_labels,
    own,
    out,
    B,
    M,
    D,
    x_row,
    c_row,
    span,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write both log-sum-exps of some examples over one span of the centres."""
    rows = tl.cdiv(B, BLOCK_B)
    split = tl.program_id(0) // rows
    i = (tl.program_id(0) % rows) * BLOCK_B + tl.arange(0, BLOCK_B)
    label = tl.load(labels + i, mask=i < B, other=-1)
    self_index = tl.load(own + i, mask=i < B, other=-1)
    width = tl.load(sigma).to(tl.float32)
    top = tl.full([BLOCK_B], float("-inf"), dtype=tl.float32)
    top_same = tl.full([BLOCK_B], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_B], dtype=tl.float32)
    total_same = tl.zeros([BLOCK_B], dtype=tl.float32)
    for start in range(split * span, tl.minimum((split + 1) * span, M), BLOCK_M):
        j = start + tl.arange(0, BLOCK_M)
        s = _scores(x, centres, norms, i, j, B, M, D, x_row, c_row, BLOCK_B, BLOCK_M, BLOCK_D, PRECISION)
        value = s / width / width + tl.load(theta + j, mask=j < M, other=0.0).to(tl.float32)[None, :]
        present = (j < M)[None, :] & (j[None, :] != self_index[:, None])
        same = present & (tl.load(centre_labels + j, mask=j < M, other=-2)[None, :] == label[:, None])
        value = tl.where(present, value, float("-inf"))
        value_same = tl.where(same, value, float("-inf"))
        higher = tl.maximum(top, tl.max(value, axis=1))
        higher_same = tl.maximum(top_same, tl.max(value_same, axis=1))
        # Nothing seen yet: subtract 0 instead of -inf, and exp(-inf) adds nothing.
        base = tl.where(higher > float("-inf"), higher, 0.0)
        base_same = tl.where(higher_same > float("-inf"), higher_same, 0.0)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(value - base[:, None]), axis=1)
        total_same = total_same * tl.exp(top_same - base_same)
        total_same += tl.sum(tl.exp(value_same - base_same[:, None]), axis=1)
        top = higher
        top_same = higher_same
    tl.store(out + split * 2 * B + i, top + tl.log(total), mask=i < B)
    tl.store(out + split * 2 * B + B + i, top_same + tl.log(total_same), mask=i < B)


@triton.jit
def _differences(
    x,
    centres,
    norms,
    theta,
    sigma,
    labels,
    centre_labels,
    own,
    log_sums,
    grad,
    out,
    by_sigma,
    first,
    columns,
    B,
    M,
    D,
    x_row,
    c_row,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write (p - q) ∂loss for the centres from ``first`` on, and each program's share of ∂σ."""
    rows = tl.cdiv(B, BLOCK_B)
    i = (tl.program_id(0) % rows) * BLOCK_B + tl.arange(0, BLOCK_B)
    place = (tl.program_id(0) // rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = first + place
    s = _scores(x, centres, norms, i, j, B, M, D, x_row, c_row, BLOCK_B, BLOCK_M, BLOCK_D, PRECISION)
    width = tl.load(sigma).to(tl.float32)
    value = s / width / width + tl.load(theta + j, mask=j < M, other=0.0).to(tl.float32)[None, :]
    label = tl.load(labels + i, mask=i < B, other=-1)
    self_index = tl.load(own + i, mask=i < B, other=-1)
    present = (j < M)[None, :] & (j[None, :] != self_index[:, None]) & (i < B)[:, None]
    same = present & (tl.load(centre_labels + j, mask=j < M, other=-2)[None, :] == label[:, None])
    everything = tl.load(log_sums + i, mask=i < B, other=0.0)
    own_class = tl.load(log_sums + B + i, mask=i < B, other=0.0)
    teaches = own_class != float("-inf")  # NaN does: what is not finite must not be silent
    own_class = tl.where(teaches, own_class, 0.0)
    p = tl.where(present & teaches[:, None], tl.exp(value - everything[:, None]), 0.0)
    q = tl.where(same, tl.exp(value - own_class[:, None]), 0.0)
    weight = (p - q) * tl.load(grad + i, mask=i < B, other=0.0).to(tl.float32)[:, None]
    inside = (i < B)[:, None] & (place < columns)[None, :]
    where = i.to(tl.int64)[:, None] * columns + place[None, :]
    tl.store(out + where, weight.to(out.dtype.element_ty), mask=inside)
    # d² is -2s up to a term of the row, and the rows of p - q sum to zero.
    tl.store(by_sigma + tl.program_id(0), tl.sum(tl.where(present, weight * s, 0.0)) * -2 / width / width / width)


def blocks_for(x: Tensor) -> tuple[int, int, int, int, int]:
    """Return the blocks of a batch's type; a small batch takes no more rows than it has."""
    rows, *others = BLOCKS[x.dtype == torch.float32]
    return (min(rows, max(16, triton.next_power_of_2(len(x)))), *others)


def norms_around(centres: Tensor, mean: Tensor) -> Tensor:
    """Return |c_j - μ|² (m,) without a shifted copy of the centres."""
    m, dim = centres.shape
    out = torch.empty(m, dtype=torch.float32, device=centres.device)
    width = max(16, min(512, triton.next_power_of_2(dim)))
    rows = max(1, 8192 // width)
    _norms[(triton.cdiv(m, rows),)](centres, mean, out, m, dim, centres.stride(0), BLOCK_M=rows, BLOCK_D=width)
    return out


def log_sums(
    x: Tensor,
    centres: Tensor,
    norms: Tensor,
    theta: Tensor,
    sigma: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
    precision: str,
    programs: int = 528,
) -> Tensor:
    """Return log-sum-exps (2, B) over all centres and over the same-class ones. ``x`` is (x - μ)."""
    (n, dim), m = x.shape, len(centres)
    block_b, block_m, block_d, warps, stages = blocks_for(x)
    rows = triton.cdiv(n, block_b)
    # Enough spans of centres to fill the device (four programs on each of 132 multiprocessors) with a small batch.
    splits = max(1, min(triton.cdiv(programs, rows), triton.cdiv(m, block_m)))
    span = triton.cdiv(triton.cdiv(m, splits), block_m) * block_m
    splits = triton.cdiv(m, span)
    out = torch.empty(splits, 2, n, dtype=torch.float32, device=x.device)
    _log_sums[(rows * splits,)](
        x,
        centres,
        norms,
        theta,
        sigma,
        labels,
        centre_labels,
        own,
        out,
        n,
        m,
        dim,
        x.stride(0),
        centres.stride(0),
        span,
        BLOCK_B=block_b,
        BLOCK_M=block_m,
        BLOCK_D=block_d,
        PRECISION=precision,
        num_warps=warps,
        num_stages=stages,
    )
    return out.logsumexp(0)


def differences(
    x: Tensor,
    centres: Tensor,
    norms: Tensor,
    theta: Tensor,
    sigma: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
    sums: Tensor,
    grad: Tensor,
    first: int,
    columns: int,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Return (p - q) times the gradient of each loss for some centres, (B, columns), and the sum of ∂σ over them."""
    (n, dim), m = x.shape, len(centres)
    block_b, block_m, block_d, warps, stages = blocks_for(x)
    programs = triton.cdiv(n, block_b) * triton.cdiv(columns, block_m)
    out = torch.empty(n, columns, dtype=x.dtype, device=x.device)
    by_sigma = torch.empty(programs, dtype=torch.float32, device=x.device)
    _differences[(programs,)](
        x,
        centres,
        norms,
        theta,
        sigma,
        labels,
        centre_labels,
        own,
        sums,
        grad,
        out,
        by_sigma,
        first,
        columns,
        n,
        m,
        dim,
        x.stride(0),
        centres.stride(0),
        BLOCK_B=block_b,
        BLOCK_M=block_m,
        BLOCK_D=block_d,
        PRECISION=precision,
        num_warps=warps,
        num_stages=stages,
    )
    return out, by_sigma.sum()
