"""Neighbour lists of all points: the steps they are made of, and what FANNG makes of them."""

import pytest
import torch
from torch import Tensor

from nngk.experiments.bench.points import clustered_features
from nngk.search import FANNG, Exact
from nngk.search.calibration import found_share
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def through_cells(x: Tensor, keep: int, probes: int, threads: int = 2) -> tuple[Tensor, int]:
    found = torch.empty(len(x), keep, dtype=torch.long)
    cells = core().cell_neighbours(x, probes, threads, found)  # type: ignore[union-attr]
    return found, cells


def points(kind: str, n: int, dim: int) -> Tensor:
    if kind == "random":
        return torch.randn(n, dim, generator=torch.Generator().manual_seed(0))
    return clustered_features(n, dim)


@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_looking_at_all_cells_is_exact(kind: str) -> None:
    x = points(kind, 2000, 32)
    found, cells = through_cells(x, 30, 10**6)
    assert cells == 50  # 48 slots each, 85 in a hundred of them filled
    assert found_share(found, Exact(x).all_neighbours(30)[1]) > 0.9999


@pytest.mark.parametrize("kind", ["random", "clustered"])
@pytest.mark.thorough
def test_looking_at_more_cells_finds_more(kind: str) -> None:
    x = points(kind, 5000, 64)
    truth = Exact(x).all_neighbours(20)[1]
    shares = [found_share(through_cells(x, 20, probes)[0], truth) for probes in (1, 8, 40)]
    assert shares[0] < shares[1] < shares[2] and shares[2] > 0.9
    # A pair is compared if either looks at the other, so that a few cells of 123 do for most.
    assert shares[1] > (0.25 if kind == "random" else 0.5)


@pytest.mark.parametrize("probes", [1, 5, 1000])
def test_no_point_is_its_own_neighbour_or_comes_twice(probes: int) -> None:
    x = points("clustered", 3000, 32)
    found = through_cells(x, 40, probes)[0]
    assert (found != torch.arange(3000)[:, None]).all()
    for row in found.tolist():
        kept = [i for i in row if i >= 0]
        assert len(set(kept)) == len(kept)


def test_lists_do_not_depend_on_the_threads() -> None:
    x = points("clustered", 4000, 32)
    one, three = (through_cells(x, 20, 10, threads)[0] for threads in (1, 3))
    assert torch.equal(one, three)


@pytest.mark.parametrize("n", [1, 2, 47, 49, 500])
def test_few_points_and_equal_points(n: int) -> None:
    found = through_cells(torch.randn(n, 32), 5, 3)[0]
    assert ((found >= -1) & (found < n)).all()
    same = through_cells(torch.ones(n, 32), 5, 3)[0]
    assert (same[:, 0] >= 0).all() if n > 1 else (same == -1).all()


def test_dropped_dimensions_cost_nothing_where_points_do_not_vary_in_them() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 10, generator=generator) @ torch.randn(10, 64, generator=generator) + 3
    estimated = torch.empty(300, 300)
    core().reduced_distances(x, 16, 2, estimated)  # type: ignore[union-attr]
    torch.testing.assert_close(estimated, torch.cdist(x.double(), x.double()).square().float(), rtol=1e-3, atol=1e-2)


def test_dropped_dimensions_are_estimated_without_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(2, 0.2, 96)
    x = torch.randn(400, 96, generator=generator) * scale
    exact = torch.cdist(x, x).square()
    estimated = torch.empty(400, 400)
    core().reduced_distances(x, 48, 2, estimated)  # type: ignore[union-attr]
    apart = ~torch.eye(400, dtype=torch.bool)
    error = (estimated - exact)[apart]
    assert error.mean().abs() < 0.01 * exact[apart].mean()
    assert error.std() < 0.5 * exact[apart].std()


@pytest.mark.parametrize(("kind", "dim"), [("random", 12), ("clustered", 48), ("clustered", 160)])
@pytest.mark.parametrize("recall", [0.9, 0.98, 1.0])
@pytest.mark.thorough
def test_lists_reach_the_wanted_recall(kind: str, dim: int, recall: float) -> None:
    x = points(kind, 8000, dim)
    engine = FANNG(dim, neighbours=20, recall=recall, threads=2)
    engine.build(x)
    d, i = engine.all_neighbours(20)
    truth = Exact(x).all_neighbours(20)
    assert found_share(i, truth[1]) > (recall - 0.015 if recall < 1 else 0.99999)
    assert engine.list_recall >= recall
    torch.testing.assert_close(d, (x[i] - x[:, None]).square().sum(2), rtol=1e-4, atol=1e-5)


def test_duplicates_find_each_other() -> None:
    x = points("clustered", 4500, 64)
    twice = torch.cat([x, x])
    engine = FANNG(64, neighbours=10)
    engine.build(twice)
    d, i = engine.all_neighbours(10)
    assert (d[:, 0] < 1e-9).float().mean() > 0.98
    assert (i != torch.arange(9000)[:, None]).all()


def test_all_equal_points_beyond_the_small_sizes() -> None:
    engine = FANNG(8, neighbours=5)
    engine.build(torch.ones(6000, 8))
    d, i = engine.all_neighbours(5)
    assert (d == 0).all() and (i >= 0).all() and (i != torch.arange(6000)[:, None]).all()


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.thorough
def test_lists_are_the_same_whatever_the_threads(storage: str) -> None:
    x = points("clustered", 9000, 64)
    answers = []
    for threads in (1, 2, 2):
        engine = FANNG(64, neighbours=20, recall=0.9, seed=3, storage=storage, threads=threads)
        engine.build(x)
        answers.append(engine.all_neighbours(20))
    for other in answers[1:]:
        assert torch.equal(answers[0][0], other[0]) and torch.equal(answers[0][1], other[1])


@pytest.mark.thorough
def test_a_small_move_leaves_the_lists_as_good_as_built_ones() -> None:
    x = points("clustered", 10000, 64)
    moved = torch.nn.functional.normalize(
        x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) / 8
    )
    engine = FANNG(64, neighbours=50)
    engine.build(x)
    engine.update(moved)
    truth = Exact(moved).all_neighbours(50)[1]
    assert found_share(engine.all_neighbours(50, recall=0.01)[1], truth) > 0.975
