"""Exact nearest neighbours on a GPU: half-precision products, proven bounds, float64 distances of what is left.

The points are shuffled, centred, scaled and rounded to float16. The error of a product of rounded vectors is bounded
by the norms of what rounding took away, so every point gets a lower and an upper bound of its distance. A query keeps
the points whose lower bound is not above the k-th upper bound seen so far; the products of all others are forgotten as
soon as they are compared, in the kernel that computes them. What is kept, little more than k points, is measured again
in float64. Rows whose list overflowed (a query amid more equally near points than a list holds) are searched again,
all in float64.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nngk.accel import installed, interpreted
from nngk.errors import InputError
from nngk.search.certain import certain_nearest

if TYPE_CHECKING:
    from nngk.search.cuda.candidates import Lists
    from nngk.search.cuda.products import Tile

# Bytes of the candidate lists of a block of queries, and elements of a matrix of products where one is written.
LISTS = 1 << 29
PRODUCTS = 1 << 27
# Columns with which lists and limits are started: one program holds them in its registers.
FIRST = 4096
# The longest list a program can thin out in its registers holds eight times this k.
LARGEST_K = 2048
# Float32 arithmetic on the bounds themselves: added to the bound of a product, relative to |c|² and to |q||c|.
BETA = 2.0**-20


class Rounded(NamedTuple):
    """Vectors in float16 (n, padded dim), their true norms and the norms of what rounding took, in float64 (n,)."""

    half: Tensor
    norm: Tensor
    lost: Tensor


def cuda_nearest(
    points: Tensor,
    queries: Tensor,
    k: int,
    exclude_own: bool,
    *,
    fused_from: int | None = None,
    tile: "Tile | None" = None,
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Squared distances (n, k), increasing, and indices (n, k) of the k nearest points of each query.

    Exact to float64, ties by the lower index; -1 at distance infinity where there are fewer than ``k``. With
    ``exclude_own`` query i is point i, and is left out of its own answer. Memory beyond the answer and a float16 copy
    of the points is bounded. ``fused_from``, ``tile`` and ``capacity`` change the speed, not the answer: how many
    points go through library products before the fused kernel takes over, its blocks, the length of the lists (and
    how many points start them).

    >>> cuda_nearest(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.9]]), 2, exclude_own=False)[1]
    tensor([[2, 1]])
    """
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")
    if exclude_own and len(queries) != len(points):
        raise InputError(f"exclude_own needs query i to be point i: {len(queries)} and {len(points)} came.")
    wide = torch.float64 if points.dtype == torch.float64 else torch.float32
    distances = torch.full((len(queries), k), torch.inf, dtype=wide, device=points.device)
    indices = torch.full((len(queries), k), -1, dtype=torch.int64, device=points.device)
    found = min(k, len(points) - exclude_own)
    if found < 1 or not len(queries):
        return distances, indices
    points = points.contiguous()
    queries = points if exclude_own else queries.contiguous()
    if installed() and (points.is_cuda or interpreted()) and k <= LARGEST_K and points.shape[1]:
        with torch.cuda.device_of(points):
            again = _fill(points, queries, found, exclude_own, fused_from, tile, capacity, distances, indices)
    else:
        again = torch.arange(len(queries), device=points.device)
    if len(again):
        d, i = certain_nearest(points, queries[again], found, again if exclude_own else None)
        distances[again, :found] = d.to(wide)
        indices[again, :found] = i
    return distances, indices


def _fill(
    points: Tensor,
    queries: Tensor,
    k: int,
    exclude_own: bool,
    fused_from: int | None,
    tile: "Tile | None",
    capacity: int | None,
    distances: Tensor,
    indices: Tensor,
) -> Tensor:
    """Write the answers of all queries whose lists did not overflow; return the others."""
    from nngk.search.cuda import products as kernels
    from nngk.search.cuda.candidates import first_scores, thin
    from nngk.search.cuda.rank import rank

    m = len(points)
    first = min(m, capacity or max(FIRST, 1 << math.ceil(math.log2(4 * k))))
    capacity = capacity or max(1024, 1 << math.ceil(math.log2(8 * k)))
    fused_from = max(1, first if fused_from is None else fused_from)
    # In random order the number of points nearer than the k-th seen so far is known beforehand, whatever the order
    # in which they came: sorted by class, they would come all at once.
    generator = torch.Generator(points.device).manual_seed(0)
    order = torch.randperm(m, generator=generator, device=points.device, dtype=torch.int32)
    shift, factor = centring(points, queries)
    columns = rounded(points, shift, factor, order)
    rows = columns if exclude_own else rounded(queries, shift, factor, None)
    # Queries that are points walk in the same shuffled order, so that a query's own column is its row.
    places = order if exclude_own else torch.arange(len(queries), device=points.device, dtype=torch.int32)
    alpha = error_factors(rows, columns)
    size = (columns.norm * (1 + 2.0**-22)).float()
    low = (columns.norm.square() * (1 - BETA)).float()
    block = max(128, LISTS // (capacity * 16))
    exact = torch.empty(min(block, len(rows.half)), capacity, dtype=torch.float64, device=points.device)
    again = []
    for start in range(0, len(rows.half), block):
        part = slice(start, start + block)
        lists = empty_lists(rows.half[part], capacity)
        own = start if exclude_own else -(1 << 30)
        first_scores(multiply(rows.half[part], columns.half[:first]), low, size, alpha[part], lists, own, k, BETA)
        for span in spans(m, k, first, capacity, fused_from, PRODUCTS // len(lists.counts)):
            if span[0] < fused_from:
                scores = multiply(rows.half[part], columns.half[span[0] : span[1]])
                kernels.near_scores(scores, low, size, alpha[part], lists, span, own)
            else:
                given = (rows.half[part], columns.half, low, size, alpha[part])
                kernels.near_products(*given, lists, span, own, tile or kernels.Tile())
            thin(lists, alpha[part], size, k, BETA)
        rank(queries, points, order, places[part], lists, exact, k, distances, indices)
        again.append(places[part][lists.overflow.bool()])
    return torch.cat(again).long().sort().values


def centring(points: Tensor, queries: Tensor) -> tuple[Tensor, float]:
    """The mean of the points and a power of two that brings the largest component near 2^10, in float64."""
    shift = points.mean(0, dtype=torch.float64)
    largest = max(float((x - shift.to(x.dtype)).abs().max()) for x in {id(x): x for x in (points, queries)}.values())
    return shift, 2.0 ** (10 - math.ceil(math.log2(largest))) if largest > 0 else 1.0


def rounded(x: Tensor, shift: Tensor, factor: float, order: Tensor | None) -> Rounded:
    """Centred, scaled and rounded vectors in the given order, some at a time: they pass through float64."""
    n, dim = x.shape
    padded = max(16, 1 << (dim - 1).bit_length()) if dim <= 32 else math.ceil(dim / 64) * 64
    half = torch.zeros(n, padded, dtype=torch.float16, device=x.device)
    norm, lost = (torch.empty(n, dtype=torch.float64, device=x.device) for _ in range(2))
    step = max(1, (1 << 24) // dim)
    for start in range(0, n, step):
        part = slice(start, start + step)
        exact = ((x[part] if order is None else x[order[part]]).double() - shift) * factor
        half[part, :dim] = exact
        norm[part] = torch.linalg.vector_norm(exact, dim=1)
        lost[part] = torch.linalg.vector_norm(exact - half[part, :dim], dim=1)
    return Rounded(half, norm, lost)


def error_factors(rows: Rounded, columns: Rounded) -> Tensor:
    """α of each query: the error of -2 q·c from the rounded vectors is at most α |c|, for every c.

    q·c - q'·c' = (q - q')·c + q'·(c - c'), and adding up in float32, in any order and with truncation, errs by at most
    one part in 2^23 of Σ|q'_i c'_i| a term.
    """
    worst = (columns.lost / columns.norm.clamp(min=1e-300)).max()
    adding = columns.half.shape[1] * 2.0**-23
    near = rows.norm + rows.lost
    alpha = 2 * (rows.lost + near * (worst + adding * (1 + worst))) + BETA * rows.norm
    return (alpha * (1 + 2.0**-20)).float()


def spans(m: int, k: int, first: int, capacity: int, fused_from: int, widest: int) -> Iterator[tuple[int, int]]:
    """Runs of columns after the first ones: each is expected to add a quarter of the lists' length.

    Before ``fused_from`` the products are written to memory, so that a run has at most ``widest`` columns.
    """
    seen = first
    growth = capacity / (4 * k)
    while seen < m:
        width = int(seen * growth)
        if seen < fused_from:
            width = min(width, widest)
        width = max(128, width // 128 * 128)
        yield seen, min(m, seen + width)
        seen += width


def empty_lists(rows: Tensor, capacity: int) -> "Lists":
    """Room for the lists of these queries; the first columns write all of it that is ever read."""
    from nngk.search.cuda.candidates import Lists

    n, device = len(rows), rows.device
    return Lists(
        torch.empty(n, capacity, dtype=torch.float32, device=device),
        torch.empty(n, capacity, dtype=torch.int32, device=device),
        torch.empty(n, dtype=torch.int32, device=device),
        torch.empty(n, dtype=torch.float32, device=device),
        torch.empty(n, dtype=torch.int32, device=device),
    )


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ of float16 matrices, added up and returned in float32."""
    if a.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(a, b.T, out_dtype=torch.float32)
    return a.float() @ b.float().T  # eleven bits: exact products in TF32 as well, if it is allowed
