# mypy: disallow-untyped-defs=False
"""Triton kernels of the exact search: products that keep only what may be near.

Columns are points in a shuffled order; ``low`` and ``size`` are |c|² (rounded down) and |c| of each. For a query with
error factor α, the true squared distance less |q|² lies between L = low - 2s - α·size and U = L + 2 (α·size + β·size²),
where s is the product of the rounded vectors. A row's ``limit`` is a number that at least k upper bounds do not exceed,
so a column with L above it is not among the k nearest.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from nngk.search.cuda.candidates import Lists


class Tile(NamedTuple):
    """Queries, points and depth of a program's product, its warps and pipeline stages."""

    rows: int = 128
    columns: int = 128
    depth: int = 64
    warps: int = 4
    stages: int = 3
    tma: bool = False  # let the copy engine of a Hopper or later GPU fetch the tiles


@triton.jit
def _in_order(bits):
    """Bits of floats as integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["Q", "first", "last", "own"])
def _near_products(
    queries,
    points,
    low,
    size,
    alpha,
    limit,
    counts,
    values,
    columns,
    Q,
    first,
    last,
    own,
    D,
    CAPACITY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    TMA: tl.constexpr,
):
    """Multiply all queries with the points first..last and append the columns that may be near: few, and one at a time.

    A row gives up its near columns in as many turns as the row with the most of them needs. A lower bound and its
    column are one integer: the bits of the bound, rounded down, with the place in the tile for the last of them. So the
    next to go is a minimum, and it is marked as gone by a comparison.
    """
    down = tl.cdiv(Q, ROWS)
    across = tl.cdiv(last - first, COLUMNS)
    # Programs that run together share their points and queries in the cache: eight rows of tiles at a time.
    group = tl.program_id(0) // (8 * across)
    high = tl.minimum(down - group * 8, 8)
    inside = tl.program_id(0) % (8 * across)
    top = (group * 8 + inside % high) * ROWS
    left = first + (inside // high) * COLUMNS
    i = top + tl.arange(0, ROWS)
    j = left + tl.arange(0, COLUMNS)
    product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    if TMA:
        for start in range(0, D, DEPTH):
            product = tl.dot(queries.load([top, start]), points.load([left, start]).T, product)
    else:
        q = queries + tl.minimum(i, Q - 1).to(tl.int64)[:, None] * D
        c = points + tl.minimum(j, last - 1).to(tl.int64)[None, :] * D
        d = tl.arange(0, DEPTH)
        for start in range(0, D, DEPTH):
            product = tl.dot(tl.load(q + (start + d)[None, :]), tl.load(c + (start + d)[:, None]), product)
    a = tl.load(alpha + i, mask=i < Q, other=0.0)
    bound = tl.load(limit + i, mask=i < Q, other=float("-inf"))
    bound = _in_order(bound.to(tl.int32, bitcast=True)) | (COLUMNS - 1)
    # In this order each line takes the place of the last one: there is no register for a second such matrix.
    lower = tl.load(low + j, mask=j < last, other=float("inf"))[None, :] - 2.0 * product
    lower -= a[:, None] * tl.load(size + j, mask=j < last, other=0.0)[None, :]
    key = (_in_order(lower.to(tl.int32, bitcast=True)) & -COLUMNS) | tl.arange(0, COLUMNS)[None, :]
    key = tl.where(j[None, :] != (own + i)[:, None], key, 0x7FFFFFFF)
    found = tl.sum((key <= bound[:, None]).to(tl.int32), axis=1)
    turns = tl.max(found, axis=0)
    if turns > 0:
        slot = tl.atomic_add(counts + i, found, mask=found > 0, sem="relaxed")
        line = i.to(tl.int64) * CAPACITY
        for turn in range(0, turns):
            best = tl.min(key, axis=1)
            key = tl.where(key == best[:, None], 0x7FFFFFFF, key)
            fits = (turn < found) & (slot + turn < CAPACITY)
            value = _in_order(best & -COLUMNS).to(tl.float32, bitcast=True)
            tl.store(values + line + slot + turn, value, mask=fits)
            tl.store(columns + line + slot + turn, left + (best & (COLUMNS - 1)), mask=fits)


@triton.jit(do_not_specialize=["Q", "first", "last", "own"])
def _near_scores(
    scores,
    low,
    size,
    alpha,
    limit,
    counts,
    values,
    columns,
    Q,
    first,
    last,
    own,
    CAPACITY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The same of products already computed, (Q, last - first)."""
    across = tl.cdiv(last - first, COLUMNS)
    i = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    j = first + (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < Q)[:, None] & (j < last)[None, :]
    where = i.to(tl.int64)[:, None] * (last - first) + (j - first)[None, :]
    product = tl.load(scores + where, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(alpha + i, mask=i < Q, other=0.0)
    bound = tl.load(limit + i, mask=i < Q, other=float("-inf"))
    lower = tl.load(low + j, mask=j < last, other=float("inf"))[None, :] - 2.0 * product
    lower -= a[:, None] * tl.load(size + j, mask=j < last, other=0.0)[None, :]
    keep = inside & (lower <= bound[:, None]) & (j[None, :] != (own + i)[:, None])
    kept = keep.to(tl.int32)
    found = tl.sum(kept, axis=1)
    slot = tl.atomic_add(counts + i, found, mask=found > 0, sem="relaxed")[:, None] + tl.cumsum(kept, axis=1) - kept
    fits = keep & (slot < CAPACITY)
    line = i.to(tl.int64)[:, None] * CAPACITY
    tl.store(values + line + slot, lower, mask=fits)
    tl.store(columns + line + slot, tl.broadcast_to(j[None, :], [ROWS, COLUMNS]), mask=fits)


def near_products(
    queries: Tensor,
    points: Tensor,
    low: Tensor,
    size: Tensor,
    alpha: Tensor,
    lists: Lists,
    span: tuple[int, int],
    own: int,
    tile: Tile,
) -> None:
    """Append the columns of ``span`` that may be near; ``own`` is the column of the first query, or far below 0."""
    first, last = span
    grid = triton.cdiv(len(queries), tile.rows) * triton.cdiv(last - first, tile.columns)
    depth = min(tile.depth, queries.shape[1])
    _near_products[(grid,)](
        _fetched(queries, tile.rows, depth) if tile.tma else queries,
        _fetched(points, tile.columns, depth) if tile.tma else points,
        low,
        size,
        alpha,
        lists.limit,
        lists.counts,
        lists.values,
        lists.columns,
        len(queries),
        first,
        last,
        own,
        queries.shape[1],
        CAPACITY=lists.values.shape[1],
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=depth,
        TMA=tile.tma,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def near_scores(
    scores: Tensor, low: Tensor, size: Tensor, alpha: Tensor, lists: Lists, span: tuple[int, int], own: int
) -> None:
    """The same from a matrix of products."""
    first, last = span
    grid = triton.cdiv(len(scores), 8) * triton.cdiv(last - first, 512)
    _near_scores[(grid,)](
        scores,
        low,
        size,
        alpha,
        lists.limit,
        lists.counts,
        lists.values,
        lists.columns,
        len(scores),
        first,
        last,
        own,
        CAPACITY=lists.values.shape[1],
        ROWS=8,
        COLUMNS=512,
        num_warps=8,
    )


def _fetched(x: Tensor, rows: int, depth: int) -> Any:
    """A matrix as the copy engine wants it described."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, [rows, depth])
