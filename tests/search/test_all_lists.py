"""The lists of all points on points of every kind: which way they are found, what they hold, and what judges them."""

import pytest
import torch
from torch import Tensor

from nngk.experiments.bench.points import FAMILIES, family
from nngk.search import FANNG, Exact
from nngk.search.calibration import found_share, sample_truth
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")

# A surface of five dimensions needs few cells. What fills 48 of 128 dimensions is told by 64 of them, and what
# fills all of them by none.
WAYS = {"low dimension": "cells", "high dimension": "fewer", "random": "all"}


def points(name: str, n: int, dim: int) -> Tensor:
    if name == "random":
        return torch.randn(n, dim, generator=torch.Generator().manual_seed(0))
    return family(name, n, dim, 10).points


def built(x: Tensor, k: int, threads: int = 2, recall: float = 0.98) -> FANNG:
    engine = FANNG(x.shape[1], neighbours=k, threads=threads, recall=recall)
    engine.build(x)
    return engine


@pytest.mark.parametrize("name", [*FAMILIES, "random"])
@pytest.mark.parametrize("k", [20, 100])
@pytest.mark.thorough
def test_lists_of_every_family_reach_the_recall(name: str, k: int) -> None:
    x = points(name, 7000, 64)
    distances, found = built(x, k).all_neighbours(k)
    truth = Exact(x).all_neighbours(k)
    same = found_share(found, truth[1])
    # Equally far duplicates stand for each other.
    as_near = float((distances <= truth[0] * (1 + 1e-4) + 1e-6).float().mean())
    assert max(same, as_near) > 0.965
    assert (found >= 0).all() and (found != torch.arange(len(x))[:, None]).all()
    torch.testing.assert_close(distances, (x[found] - x[:, None]).square().sum(2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "way"), WAYS.items())
@pytest.mark.thorough
def test_the_cheapest_way_is_taken(name: str, way: str) -> None:
    x = points(name, 16_000, 128)
    engine = built(x, 20)
    assert engine._index.found_by == way
    truth = Exact(x).all_neighbours(20)[1]
    assert found_share(engine.all_neighbours(20)[1], truth) > (0.97 if way == "cells" else 0.99)


def test_points_that_find_their_cells_full_go_to_a_near_one() -> None:
    """Half of the points are in eight tight classes of far more than a cell holds."""
    generator = torch.Generator().manual_seed(2)
    classes = torch.randn(8, 32, generator=generator).repeat(400, 1) + 0.01 * torch.randn(3200, 32, generator=generator)
    x = torch.cat([classes, torch.randn(3200, 32, generator=generator)])
    found = torch.empty(len(x), 20, dtype=torch.long)
    core().cell_neighbours(x, 12, 2, found)  # type: ignore[union-attr]
    inside = found[: len(classes)]
    assert (inside % 8 == torch.arange(len(classes))[:, None] % 8).float().mean() > 0.99


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.thorough
def test_no_way_depends_on_the_threads(name: str) -> None:
    x = points(name, 9000, 128)
    one, three = (built(x, 20, threads).all_neighbours(20) for threads in (1, 3))
    assert torch.equal(one[0], three[0]) and torch.equal(one[1], three[1])


def test_a_recall_of_one_and_few_points_are_exact() -> None:
    x = points("high dimension", 5000, 96)
    engine = built(x, 10, recall=1.0)
    assert engine._index.found_by == "all"
    assert torch.equal(engine.all_neighbours(10)[1], Exact(x).all_neighbours(10)[1])
    assert built(x[:3000], 10)._index.found_by == "all"


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_sample_that_judges_lists_is_exact(storage: str, threads: int) -> None:
    x = torch.randn(1500, 40, generator=torch.Generator().manual_seed(1))
    engine = FANNG(40, storage=storage, threads=threads)
    engine.build(x)
    engine.remove(range(100, 200))
    stored = x if storage == "float32" else x.to(getattr(torch, storage)).float()
    ids, truth = sample_truth(engine._index, 12, threads)
    d = (stored[ids].double()[:, None] - stored.double()[None]).square().sum(2)
    d[torch.arange(len(ids)), ids] = torch.inf
    d[:, 100:200] = torch.inf
    assert found_share(truth, d.topk(12, largest=False).indices) > 0.9999
    assert (truth[:, 0] == d.argmin(1)).all()


def test_a_sample_of_more_than_there_are_ends_in_nothing() -> None:
    engine = FANNG(3)
    engine.build(torch.eye(3))
    engine.remove([1])
    d, i = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.long)
    engine._index.scan_points(torch.tensor([0, 1]), 3, 2, d, i)
    assert i.tolist() == [[2, -1, -1], [-1, -1, -1]]
    assert d[0, 0] == 2 and torch.isinf(d[0, 1:]).all() and torch.isinf(d[1]).all()
