"""The GPU search against sorted float64 distances: its kernels through Triton's interpreter, the rest directly."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interpreter import interpreted
from nngk.errors import InputError
from nngk.search.certain import certain_nearest
from nngk.search.cuda.nearest import centring, cuda_nearest, error_factors, multiply, rounded, spans


def by_sorting(points, queries, k, exclude_own):
    """Float64 distances of all pairs, sorted; ties by index."""
    d = (queries.double()[:, None] - points.double()).square().sum(2)
    if exclude_own:
        d.fill_diagonal_(torch.inf)
    nearest, order = d.sort(dim=1, stable=True)
    return nearest[:, :k], order[:, :k]


def data(kind, n=25, dim=7):
    if kind == "clusters":
        return torch.randn(5, dim).repeat_interleave(n // 5, 0) * 5 + torch.randn(n, dim) * 1e-3
    if kind == "far":
        return torch.randn(n, dim) + 1000
    if kind == "duplicates":
        return torch.randn(3, dim).repeat(n // 3 + 1, 1)[:n]
    if kind == "same":
        return torch.ones(n, dim)
    return torch.randn(n, dim)


KINDS = ["gaussian", "clusters", "far", "duplicates", "same"]


# All kinds of points through one way, two of them through the others; the rest is slow.
WAYS = {"fused": (1, False), "by descriptors": (1, True), "in two steps": (10**9, False)}
PAIRS = [
    pytest.param(kind, way, marks=[] if way == "fused" or kind in ("gaussian", "duplicates") else pytest.mark.slow)
    for way in WAYS
    for kind in KINDS
]


@interpreted
@pytest.mark.parametrize(("kind", "way"), PAIRS)
def test_all_pairs_are_exact(kind, way):
    from nngk.search.cuda.products import Tile

    fused_from, tma = WAYS[way]
    x, tile = data(kind), Tile(16, 16, 16, tma=tma)
    d, i = cuda_nearest(x, x, 3, exclude_own=True, fused_from=fused_from, tile=tile, capacity=16)
    expected, order = by_sorting(x, x, 3, True)
    assert torch.equal(i, order)
    torch.testing.assert_close(d, expected.float(), rtol=1e-6, atol=0)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 40])
def test_queries_are_exact(dtype, dim):
    x, q = torch.randn(150, dim).to(dtype), torch.randn(2, dim).to(dtype)
    d, i = cuda_nearest(x, q, 4, exclude_own=False, capacity=32)
    expected, order = by_sorting(x, q, 4, False)
    assert torch.equal(i, order)
    torch.testing.assert_close(d.double(), expected, rtol=1e-6, atol=0)


@interpreted
def test_a_list_that_overflows_is_searched_again(monkeypatch):
    from nngk.search.cuda import nearest as cuda

    again = []

    def watched(points, queries, k, own):
        again.append(len(queries))
        return certain_nearest(points, queries, k, own)

    monkeypatch.setattr(cuda, "certain_nearest", watched)
    x = torch.cat([torch.ones(60, 3), torch.randn(10, 3)])
    d, i = cuda_nearest(x, torch.ones(2, 3), 2, exclude_own=False, capacity=16, fused_from=1)
    assert again == [2] and i.tolist() == [[0, 1]] * 2 and not d.any()


def test_fewer_points_than_asked_for():
    x = torch.tensor([[0.0], [1.0], [3.0]])
    d, i = cuda_nearest(x, x, 4, exclude_own=True)
    assert i.tolist() == [[1, 2, -1, -1], [0, 2, -1, -1], [1, 0, -1, -1]]
    assert d[0].tolist() == [1, 9, torch.inf, torch.inf]
    assert cuda_nearest(x[:1], x[:1], 1, exclude_own=True)[1].tolist() == [[-1]]
    assert cuda_nearest(x, x[:0], 2, exclude_own=False)[1].shape == (0, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exclude_own", [True, False])
def test_certain_search(kind, exclude_own, monkeypatch):
    from nngk.search import certain

    monkeypatch.setitem(certain.TILE, "cpu", 200)  # several pieces in every direction
    x = data(kind)
    own = torch.arange(len(x)) if exclude_own else None
    d, i = certain_nearest(x, x, 5, own)
    expected, order = by_sorting(x, x, 5, exclude_own)
    assert torch.equal(i, order)
    torch.testing.assert_close(d, expected, rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    dim=st.integers(1, 70),
    spread=st.sampled_from([1e-6, 1e-2, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1.0, 1e3]),
)
def test_the_bound_holds(seed, dim, spread, offset):
    """No product of rounded vectors is farther from the true one than the error factor says."""
    g = torch.Generator().manual_seed(seed)
    points = torch.randn(30, dim, generator=g) * spread + offset
    queries = torch.randn(8, dim, generator=g) * spread * 3 + offset
    shift, factor = centring(points, queries)
    rows, columns = rounded(queries, shift, factor, None), rounded(points, shift, factor, torch.arange(30))
    assert torch.isfinite(rows.half).all() and torch.isfinite(columns.half).all()
    truth = ((queries.double() - shift) * factor) @ ((points.double() - shift) * factor).T
    found = multiply(rows.half, columns.half).double()
    bound = error_factors(rows, columns).double()[:, None] * columns.norm
    assert (2 * (truth - found).abs() <= bound).all()


@given(m=st.integers(1, 5000), k=st.integers(1, 40), fused_from=st.integers(1, 6000))
def test_spans_cover_every_column_once(m, k, fused_from):
    first = min(m, 512)
    runs = [(0, first), *spans(m, k, first, 512, fused_from, 256)]
    assert runs[-1][1] == m
    assert all(a[1] == b[0] and b[1] > b[0] for a, b in itertools.pairwise(runs))
    assert all(b - a <= 512 for a, b in runs if a < fused_from)


def test_bad_calls_are_refused():
    with pytest.raises(InputError, match="k must be"):
        cuda_nearest(torch.ones(2, 2), torch.ones(2, 2), 0, exclude_own=False)
    with pytest.raises(InputError, match="exclude_own"):
        cuda_nearest(torch.ones(2, 2), torch.ones(1, 2), 1, exclude_own=True)
