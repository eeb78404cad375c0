# mypy: disallow-untyped-defs=False
"""Triton kernels that measure the candidates of the exact search in float64 and put them in order."""

import triton
import triton.language as tl
from torch import Tensor

from nngk.search.cuda.candidates import Lists


@triton.jit
def _rescore(
    queries,
    points,
    order,
    rows,
    counts,
    columns,
    exact,
    D,
    CAPACITY: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Squared distances in float64 of a row's candidates; their columns become indices of points."""
    i = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts + i), CAPACITY)
    query = queries + tl.load(rows + i).to(tl.int64) * D
    for begin in range(0, count, BLOCK_K):
        slot = begin + tl.arange(0, BLOCK_K)
        here = slot < count
        column = tl.load(columns + i * CAPACITY + slot, mask=here, other=0)
        index = tl.load(order + column, mask=here, other=0)
        total = tl.zeros([BLOCK_K], dtype=tl.float64)
        for start in range(0, D, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            c = tl.load(
                points + index.to(tl.int64)[:, None] * D + d[None, :],
                mask=here[:, None] & (d < D)[None, :],
                other=0.0,
            )
            q = tl.load(query + d, mask=d < D, other=0.0)
            difference = c.to(tl.float64) - q.to(tl.float64)[None, :]
            total += tl.sum(tl.where(here[:, None], difference * difference, 0.0), axis=1)
        tl.store(exact + i * CAPACITY + slot, total, mask=here)
        tl.store(columns + i * CAPACITY + slot, index, mask=here)


@triton.jit
def _rank(
    counts,
    columns,
    exact,
    rows,
    distances,
    indices,
    K,
    width,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The K nearest candidates of a row in order: a candidate's rank is the number of those before it."""
    i = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts + i), CAPACITY)
    row = tl.load(rows + i).to(tl.int64)
    for begin in range(0, count, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        d = tl.load(exact + i * CAPACITY + slot, mask=slot < count, other=float("inf"))
        index = tl.load(columns + i * CAPACITY + slot, mask=slot < count, other=0)
        rank = tl.zeros([BLOCK], dtype=tl.int32)
        for start in range(0, count, BLOCK):
            other = start + tl.arange(0, BLOCK)
            e = tl.load(exact + i * CAPACITY + other, mask=other < count, other=float("inf"))
            their = tl.load(columns + i * CAPACITY + other, mask=other < count, other=2147483647)
            before = (e[None, :] < d[:, None]) | ((e[None, :] == d[:, None]) & (their[None, :] < index[:, None]))
            rank += tl.sum(before.to(tl.int32), axis=1)
        chosen = (slot < count) & (rank < K)
        tl.store(distances + row * width + rank, d.to(distances.dtype.element_ty), mask=chosen)
        tl.store(indices + row * width + rank, index.to(tl.int64), mask=chosen)


def rank(
    queries: Tensor,
    points: Tensor,
    order: Tensor,
    rows: Tensor,
    lists: Lists,
    exact: Tensor,
    k: int,
    distances: Tensor,
    indices: Tensor,
) -> None:
    """Re-score the candidates in float64 and write the k nearest of each into its row of the answer."""
    capacity, dim = lists.values.shape[1], points.shape[1]
    width = max(16, min(512, triton.next_power_of_2(dim)))
    _rescore[(len(rows),)](
        queries,
        points,
        order,
        rows,
        lists.counts,
        lists.columns,
        exact,
        dim,
        CAPACITY=capacity,
        BLOCK_K=max(8, min(64, 4096 // width)),
        BLOCK_D=width,
        num_warps=4,
    )
    _rank[(len(rows),)](
        lists.counts,
        lists.columns,
        exact,
        rows,
        distances,
        indices,
        k,
        distances.shape[1],
        CAPACITY=capacity,
        BLOCK=64,
        num_warps=4,
    )
