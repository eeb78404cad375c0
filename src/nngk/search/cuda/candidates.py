# mypy: disallow-untyped-defs=False
"""Triton kernels that start the candidate lists of the exact search and thin them; bounds as in ``products``."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

# Halvings of the range in which a limit lies; after these less than an entry of a list is at stake.
STEPS = 14
FIRST_STEPS = 10  # of a limit that the next run of columns lowers anyway


class Lists(NamedTuple):
    """The candidate lists of some queries: lower bounds and columns (Q, capacity), their numbers, limits, overflows."""

    values: Tensor
    columns: Tensor
    counts: Tensor
    limit: Tensor
    overflow: Tensor


@triton.jit
def _tightened(upper, here, bound, K, STEPS: tl.constexpr):
    """A number not above ``bound`` that at least K of the upper bounds do not exceed, nearly the least.

    Halving between the least upper bound and one that K of them reach; any such number is a valid limit.
    """
    low_end = tl.min(upper, axis=0)
    high_end = tl.minimum(tl.max(tl.where(here, upper, float("-inf")), axis=0), bound)
    if tl.sum((upper <= high_end).to(tl.int32), axis=0) >= K:
        for _ in range(STEPS):
            middle = 0.5 * (low_end + high_end)
            enough = tl.sum((upper <= middle).to(tl.int32), axis=0) >= K
            high_end = tl.where(enough, middle, high_end)
            low_end = tl.where(enough, low_end, middle)
        bound = tl.minimum(bound, high_end)
    return bound


@triton.jit(do_not_specialize=["last", "own", "K"])
def _first_scores(
    scores,
    low,
    size,
    alpha,
    limit,
    counts,
    values,
    columns,
    overflow,
    last,
    own,
    K,
    beta,
    CAPACITY: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Start a row's list and limit with the products of the first columns, (Q, last): one program sees them all."""
    i = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, COLUMNS)
    here = (j < last) & (j != own + tl.program_id(0))
    product = tl.load(scores + i * last + j, mask=here, other=0.0).to(tl.float32)
    norm = tl.load(size + j, mask=here, other=0.0)
    error = tl.load(alpha + i) * norm
    lower = tl.load(low + j, mask=here, other=float("inf")) - 2.0 * product - error
    upper = tl.where(here, lower + 2.0 * (error + beta * norm * norm), float("inf"))
    bound = _tightened(upper, here, tl.full([], float("inf"), dtype=tl.float32), K, STEPS)
    keep = here & (lower <= bound)
    kept = keep.to(tl.int32)
    place = tl.cumsum(kept, axis=0) - kept
    total = tl.sum(kept, axis=0)
    tl.store(values + i * CAPACITY + place, lower, mask=keep & (place < CAPACITY))
    tl.store(columns + i * CAPACITY + place, j, mask=keep & (place < CAPACITY))
    tl.store(counts + i, tl.minimum(total, CAPACITY))
    tl.store(overflow + i, (total > CAPACITY).to(tl.int32))
    tl.store(limit + i, bound)


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
    norm = tl.load(size + column, mask=here, other=0.0)
    upper = lower + 2.0 * (tl.load(alpha + i) * norm + beta * norm * norm)
    bound = _tightened(tl.where(here, upper, float("inf")), here, tl.load(limit + i), K, STEPS)
    keep = here & (lower <= bound)
    kept = keep.to(tl.int32)
    place = tl.cumsum(kept, axis=0) - kept
    tl.debug_barrier()  # every entry is read before any is moved
    tl.store(values + i * CAPACITY + place, lower, mask=keep)
    tl.store(columns + i * CAPACITY + place, column, mask=keep)
    tl.store(counts + i, tl.sum(kept, axis=0))
    tl.store(limit + i, bound)


def first_scores(
    scores: Tensor, low: Tensor, size: Tensor, alpha: Tensor, lists: Lists, own: int, k: int, beta: float
) -> None:
    """Start all lists and limits with a matrix of products of the first columns."""
    columns = max(16, triton.next_power_of_2(scores.shape[1]))
    _first_scores[(len(scores),)](
        scores,
        low,
        size,
        alpha,
        lists.limit,
        lists.counts,
        lists.values,
        lists.columns,
        lists.overflow,
        scores.shape[1],
        own,
        k,
        beta,
        CAPACITY=lists.values.shape[1],
        COLUMNS=columns,
        STEPS=FIRST_STEPS,
        num_warps=min(16, max(1, columns // 1024)),
    )


def thin(lists: Lists, alpha: Tensor, size: Tensor, k: int, beta: float) -> None:
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
        STEPS=STEPS,
        # One warp keeps a list of the usual length in its registers and need not wait for others.
        num_warps=min(16, max(1, capacity // 1024)),
    )
