"""Exact search against plain float64 loops, on everything that could confuse it."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nngk.errors import InputError
from nngk.search import Exact
from nngk.search.exact import torch_nearest
from nngk.search.native import core

needs_core = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def brute_force(points: Tensor, queries: Tensor, k: int, own: bool) -> tuple[Tensor, Tensor]:
    """Distances in float64 and indices, ties by index."""
    d = (queries.double()[:, None, :] - points.double()[None, :, :]).square().sum(2)
    if own:
        d.fill_diagonal_(torch.inf)
    values, order = d.sort(dim=1, stable=True)
    found = min(k, len(points) - own)
    distances = torch.full((len(queries), k), torch.inf, dtype=torch.float64)
    indices = torch.full((len(queries), k), -1)
    distances[:, :found], indices[:, :found] = values[:, :found], order[:, :found]
    return distances, indices


def assert_same_answer(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], rtol: float = 2e-5) -> None:
    """Equal distances to float32 rounding; where the indices differ, the distances are tied to rounding."""
    torch.testing.assert_close(got[0].double(), wanted[0], rtol=rtol, atol=1e-12)
    assert (got[1] >= 0).eq(wanted[1] >= 0).all()
    assert all(len(set(row)) == len(row) for row in ([i for i in r if i >= 0] for r in got[1].tolist()))


@pytest.mark.parametrize(("n", "dim"), [(7, 3), (50, 32), (300, 33), (1000, 100), (700, 128), (333, 1), (2500, 20)])
@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.thorough
def test_all_neighbours_equal_brute_force(n: int, dim: int, k: int) -> None:
    k = min(k, n)
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(n + dim))
    got = Exact(x, threads=2).all_neighbours(k)
    assert_same_answer(got, brute_force(x, x, k, own=True))
    assert (got[1] != torch.arange(n)[:, None]).all()


@pytest.mark.parametrize("count", [1, 3, 20, 300])
@pytest.mark.thorough
def test_search_equals_brute_force(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x, q = torch.randn(5000, 24, generator=generator), torch.randn(count, 24, generator=generator)
    for threads in (1, 3):
        assert_same_answer(Exact(x, threads=threads).search(q, 12), brute_force(x, q, 12, own=False))


def test_far_from_the_origin_and_close_together() -> None:
    # Products of such vectors cancel nearly all their digits: only the second look at the candidates saves the answer.
    x = 1000 + torch.randn(400, 16, generator=torch.Generator().manual_seed(0)) * 0.01
    assert_same_answer(Exact(x).all_neighbours(20), brute_force(x, x, 20, own=True))


def test_tight_clusters_fall_back_to_every_point() -> None:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 8, generator=generator) * 100
    x = centres.repeat_interleave(100, 0) + 1e-4 * torch.randn(400, 8, generator=generator)
    assert_same_answer(Exact(x).all_neighbours(15), brute_force(x, x, 15, own=True))


def test_duplicates_stay_and_order_by_index() -> None:
    x = torch.zeros(200, 5)
    d, i = Exact(x).all_neighbours(4)
    assert (d == 0).all()
    assert i[0].tolist() == [1, 2, 3, 4] and i[2].tolist() == [0, 1, 3, 4] and i[150].tolist() == [0, 1, 2, 3]
    pairs = torch.randn(100, 6, generator=torch.Generator().manual_seed(2)).repeat(2, 1)
    d, i = Exact(pairs).all_neighbours(1)
    assert (d == 0).all() and i[:, 0].tolist() == [(j + 100) % 200 for j in range(200)]


def test_one_point_and_as_many_neighbours_as_points() -> None:
    one = Exact(torch.ones(1, 3))
    d, i = one.all_neighbours(1)
    assert i.tolist() == [[-1]] and torch.isinf(d).all()
    d, i = one.search(torch.zeros(1, 3), 1)
    assert i.tolist() == [[0]] and d[0, 0] == 3
    three = Exact(torch.tensor([[0.0], [1.0], [3.0]]))
    assert three.all_neighbours(3)[1].tolist() == [[1, 2, -1], [0, 2, -1], [1, 0, -1]]
    with pytest.raises(InputError, match="at most 3, the number of points"):
        three.search(torch.zeros(1, 1), 4)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.tensor([[0.0, float("nan")]]), "NaN or infinity, first in row 0"),
        (torch.zeros(3), "shape"),
        (torch.zeros(2, 5), "shape"),
    ],
)
def test_bad_queries_get_a_sentence(bad: Tensor, words: str) -> None:
    engine = Exact(torch.zeros(4, 2))
    with pytest.raises(InputError, match=words):
        engine.search(bad, 1)


def test_empty_engine_and_bad_k() -> None:
    with pytest.raises(InputError, match="no points yet"):
        Exact().all_neighbours(1)
    with pytest.raises(InputError, match="at least 1"):
        Exact(torch.zeros(2, 2)).all_neighbours(0)
    with pytest.raises(InputError, match="expects all 2 points"):
        Exact(torch.zeros(2, 2)).update(torch.zeros(3, 2))


def test_add_and_update_are_seen() -> None:
    engine = Exact(torch.tensor([[0.0], [1.0]]))
    assert engine.search(torch.tensor([[5.0]]), 1)[1].item() == 1
    assert engine.add(torch.tensor([[5.0]])).tolist() == [2]
    assert engine.search(torch.tensor([[5.0]]), 1)[1].item() == 2
    engine.update(torch.tensor([[5.0], [1.0], [0.0]]))
    assert engine.search(torch.tensor([[5.0]]), 1)[1].item() == 0


def test_half_precision_and_float64_points() -> None:
    x = torch.randn(300, 16, generator=torch.Generator().manual_seed(3))
    half = x.half()
    assert_same_answer(Exact(half).all_neighbours(5), brute_force(half.float(), half.float(), 5, own=True))
    double = Exact(x.double()).all_neighbours(5)
    assert double[0].dtype == torch.float64
    assert_same_answer(double, brute_force(x, x, 5, own=True), rtol=1e-12)


@needs_core
def test_threads_change_nothing() -> None:
    x = torch.randn(3000, 40, generator=torch.Generator().manual_seed(4))
    one, four = Exact(x, threads=1).all_neighbours(30), Exact(x, threads=4).all_neighbours(30)
    assert torch.equal(one[0], four[0]) and torch.equal(one[1], four[1])


@needs_core
def test_without_the_core_torch_answers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(500, 12, generator=torch.Generator().manual_seed(5))
    compiled = Exact(x).all_neighbours(7)
    monkeypatch.setenv("NNGK_NO_NATIVE", "1")
    by_torch = Exact(x).all_neighbours(7)
    assert (compiled[1] == by_torch[1]).double().mean() > 0.99  # two that are equally far may change places
    torch.testing.assert_close(compiled[0], by_torch[0], rtol=1e-4, atol=1e-6)


@needs_core
def test_a_huge_k_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(6))
    wanted = Exact(x).all_neighbours(150)
    monkeypatch.setattr("nngk.search.exact.LISTS", 100_000)
    got = Exact(x).all_neighbours(150)
    assert torch.equal(got[1], wanted[1])


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60), dim=st.integers(1, 5), k=st.integers(1, 12), seed=st.integers(0, 99), levels=st.integers(1, 4)
)
def test_coarse_grids_full_of_ties(n: int, dim: int, k: int, seed: int, levels: int) -> None:
    k = min(k, n)
    # Small whole numbers: float32 is exact, so order and ties must be exactly those of brute force.
    x = torch.randint(0, levels, (n, dim), generator=torch.Generator().manual_seed(seed)).float()
    wanted = brute_force(x, x, k, own=True)
    got = Exact(x).all_neighbours(k)
    assert torch.equal(got[0].double(), wanted[0])
    assert torch.equal(got[1], wanted[1])


def test_torch_path_orders_ties_by_index() -> None:
    x = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    assert torch_nearest(x, x, 3, exclude_own=True)[1].tolist() == [[1, 2, 3], [2, 0, 3], [1, 0, 3], [1, 2, 0]]


@needs_core
@pytest.mark.parametrize("kernels", ["plain", "avx2", "avx512"])
@pytest.mark.thorough
def test_every_instruction_set_gives_the_right_answers(kernels: str) -> None:
    native = core()
    assert native is not None
    if not native.has_kernels(kernels):
        pytest.skip(f"this processor has no {kernels}")
    program = (
        "import torch; from nngk.search import Exact, FANNG; from nngk.search.native import core\n"
        f"assert core().kernels == '{kernels}', core().kernels\n"
        "x = torch.randn(600, 45, generator=torch.Generator().manual_seed(0))\n"
        "d = torch.cdist(x.double(), x.double()).fill_diagonal_(torch.inf)\n"
        "truth = d.sort(1).indices[:, :9]\n"
        "assert (Exact(x).all_neighbours(9)[1] == truth).float().mean() > 0.999\n"
        "engine = FANNG(45); engine.build(x)\n"
        "assert (engine.all_neighbours(9, ef=600)[1] == truth).float().mean() > 0.999\n"
    )
    environment = {**os.environ, "NNGK_KERNELS": kernels}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)


@pytest.mark.parametrize("wide", [False, True])
def test_answers_do_not_depend_on_the_default_type(wide):
    """The core writes float32, whatever type torch gives to what is made without one."""
    x = torch.randn(300, 24, generator=torch.Generator().manual_seed(0))
    x = x.double() if wide else x
    expected = Exact(x).search(x[:50], 5), Exact(x).all_neighbours(5)
    torch.set_default_dtype(torch.float64)
    try:
        found = Exact(x).search(x[:50], 5), Exact(x).all_neighbours(5)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, expected):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
