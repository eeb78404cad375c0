# mypy: disallow-untyped-defs=False
"""Triton kernels of the exact search: products that keep only what may be near, and thinning.

Columns are points in a shuffled order; ``low`` and ``size`` are |c|² (rounded down) and |c| of each. For a query with
error factor α, the true squared distance less |q|² lies between L = low - 2s - α·size and U = L + 2 (α·size + β·size²),
where s is the product of the rounded vectors. A row's ``limit`` is a number that at least k upper bounds do not exceed,
so a column with L above it is not among the k nearest.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """Queries, points and depth of a program's product, its warps and pipeline stages."""

    rows: int = 128
    columns: int = 128
    depth: int = 64
    warps: int = 8
    stages: int = 3


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
):
    """Multiply all queries with the points first..last and append the columns that may be near: few, and one at a time.

    The products stay where the matrix units left them; a row gives up its near columns in as many turns as the row
    with the most of them needs, which takes fewer registers than a place for every element.
    """
    down = tl.cdiv(Q, ROWS)
    across = tl.cdiv(last - first, COLUMNS)
    # Programs that run together share their points and queries in the cache: eight rows of tiles at a time.
    group = tl.program_id(0) // (8 * across)
    high = tl.minimum(down - group * 8, 8)
    inside = tl.program_id(0) % (8 * across)
    i = (group * 8 + inside % high) * ROWS + tl.arange(0, ROWS)
    j = first + (inside // high) * COLUMNS + tl.arange(0, COLUMNS)
    q = queries + tl.minimum(i, Q - 1).to(tl.int64)[:, None] * D
    c = points + tl.minimum(j, last - 1).to(tl.int64)[None, :] * D
    d = tl.arange(0, DEPTH)
    product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(0, D, DEPTH):
        product = tl.dot(tl.load(q + (start + d)[None, :]), tl.load(c + (start + d)[:, None]), product)
    a = tl.load(alpha + i, mask=i < Q, other=0.0)
    bound = tl.load(limit + i, mask=i < Q, other=float("-inf"))[:, None]
    lower = tl.load(low + j, mask=j < last, other=float("inf"))[None, :] - 2.0 * product
    lower -= a[:, None] * tl.load(size + j, mask=j < last, other=0.0)[None, :]
    lower = tl.where(j[None, :] != (own + i)[:, None], lower, float("inf"))
    found = tl.sum((lower <= bound).to(tl.int32), axis=1)
    turns = tl.max(found, axis=0)
    if turns > 0:
        slot = tl.atomic_add(counts + i, found, mask=found > 0, sem="relaxed")
        line = i.to(tl.int64) * CAPACITY
        for turn in range(0, turns):
            column = tl.max(tl.where(lower <= bound, j[None, :], -1), axis=1)
            taken = j[None, :] == column[:, None]
            value = tl.sum(tl.where(taken, lower, 0.0), axis=1)
            lower = tl.where(taken, float("inf"), lower)
            fits = (turn < found) & (slot + turn < CAPACITY)
            tl.store(values + line + slot + turn, value, mask=fits)
            tl.store(columns + line + slot + turn, column, mask=fits)


@triton.jit(do_not_specialize=["Q", "own"])
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
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The same of products already computed, (Q, last - first), for the first points, of which many may be near."""
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
    line = i.to(tl.int64)[:, None] * CAPACITY
    column = tl.broadcast_to(j[None, :], [ROWS, COLUMNS])
    if FIRST:  # the first columns fill the lists: their places are known
        place = line + (column - first)
        tl.store(values + place, lower, mask=keep)
        tl.store(columns + place, column, mask=keep)
    else:
        counter = tl.broadcast_to(counts + i[:, None], [ROWS, COLUMNS])
        slot = tl.atomic_add(counter, 1, mask=keep, sem="relaxed")
        fits = keep & (slot < CAPACITY)
        tl.store(values + line + slot, lower, mask=fits)
        tl.store(columns + line + slot, column, mask=fits)


@triton.jit
def _thin(counts, values, columns, limit, overflow, alpha, size, K, beta, CAPACITY: tl.constexpr, STEPS: tl.constexpr):
    """Lower a row's limit to what its list shows, and drop the entries above it."""
    i = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, CAPACITY)
    count = tl.load(counts + i)
    if count > CAPACITY:  # some were lost: the row is searched again
        tl.store(overflow + i, 1)
    here = slot < count
    lower = tl.load(values + i * CAPACITY + slot, mask=here, other=float("inf"))
    here = here & (lower < float("inf"))
    column = tl.load(columns + i * CAPACITY + slot, mask=here, other=0)
    bound = tl.load(limit + i)
    norm = tl.load(size + column, mask=here, other=0.0)
    upper = lower + 2.0 * (tl.load(alpha + i) * norm + beta * norm * norm)
    upper = tl.where(here, upper, float("inf"))
    # Halving between the least upper bound and one that K of them reach; any such number is a valid limit.
    low_end = tl.min(upper, axis=0)
    high_end = tl.minimum(tl.max(tl.where(here, upper, float("-inf")), axis=0), bound)
    if tl.sum((upper <= high_end).to(tl.int32), axis=0) >= K:
        for _ in range(STEPS):
            middle = 0.5 * (low_end + high_end)
            enough = tl.sum((upper <= middle).to(tl.int32), axis=0) >= K
            high_end = tl.where(enough, middle, high_end)
            low_end = tl.where(enough, low_end, middle)
        bound = tl.minimum(bound, high_end)
    keep = here & (lower <= bound)
    kept = keep.to(tl.int32)
    place = tl.cumsum(kept, axis=0) - kept
    tl.debug_barrier()  # every entry is read before any is moved
    tl.store(values + i * CAPACITY + place, lower, mask=keep)
    tl.store(columns + i * CAPACITY + place, column, mask=keep)
    tl.store(counts + i, tl.sum(kept, axis=0))
    tl.store(limit + i, bound)


class Lists(NamedTuple):
    """The candidate lists of some queries: lower bounds and columns (Q, capacity), their numbers, limits, overflows."""

    values: Tensor
    columns: Tensor
    counts: Tensor
    limit: Tensor
    overflow: Tensor


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
    _near_products[(grid,)](
        queries,
        points,
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
        DEPTH=min(tile.depth, queries.shape[1]),
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
        FIRST=first == 0,
        ROWS=8,
        COLUMNS=512,
        num_warps=8,
    )


def thin(lists: Lists, alpha: Tensor, size: Tensor, k: int, beta: float, steps: int = 20) -> None:
    """Tighten every row's limit and drop what lies above it."""
    capacity = lists.values.shape[1]
    _thin[(len(lists.counts),)](
        lists.counts,
        lists.values,
        lists.columns,
        lists.limit,
        lists.overflow,
        alpha,
        size,
        k,
        beta,
        CAPACITY=capacity,
        STEPS=steps,
        num_warps=min(16, max(1, capacity // 256)),
    )
