"""FANNG on points of every kind: what a search finds, also where classes lie apart and their graph would be islands."""

import os
import subprocess
import sys

import pytest
import torch

from nngk.experiments.bench.families import answered_share
from nngk.experiments.bench.points import FAMILIES, Family, family
from nngk.search import FANNG, Exact
from nngk.search.calibration import found_share
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def recall(engine: FANNG, data: Family, ef: int) -> float:
    truth = Exact(data.points).search(data.queries, 10)[0]
    return answered_share(engine.search(data.queries, 10, ef=ef)[1], data, truth)


@pytest.mark.parametrize("name", [*FAMILIES, "unseen"])
@pytest.mark.thorough
def test_every_family_is_found(name: str) -> None:
    data = family(name, 6000, 32, 200)
    engine = FANNG(32, threads=2)
    engine.build(data.points)
    stats = engine.stats()
    assert min(stats["min_degree"], stats["min_in_degree"]) >= 2
    assert recall(engine, data, 100) > (0.9 if name in ("unseen", "heavy tails") else 0.97)
    assert recall(engine, data, len(data.points)) == 1.0


@pytest.mark.parametrize("name", ["touching", "apart", "far apart"])
@pytest.mark.thorough
def test_classes_apart_are_not_islands(name: str) -> None:
    """A walk from anywhere finds its way to other classes; before the long edges one in twenty did."""
    data = family(name, 12_000, 48, 300)
    engine = FANNG(48, threads=2)
    engine.build(data.points)
    assert engine.stats()["walk_success"] > 0.3
    assert recall(engine, data, 40) > 0.95


def test_a_far_cluster_is_found_whole() -> None:
    """Codes that fit all other points would tell those of a cluster far away not apart; then vectors are walked."""
    data = family("far cluster", 6000, 32, 50)
    far = data.points.norm(dim=1) > 50
    engine = FANNG(32, threads=2)
    engine.build(data.points)
    assert (
        found_share(
            engine.search(data.points[far][:40] + 0.01, 10, ef=100)[1],
            Exact(data.points).search(data.points[far][:40] + 0.01, 10)[1],
        )
        > 0.95
    )


@pytest.mark.parametrize("effort", [{"ef": 30}, {"budget": 300}])
def test_queries_together_are_answered_as_one_by_one(effort: dict[str, int]) -> None:
    data = family("touching", 3000, 16, 70)
    engine = FANNG(16, threads=2)
    engine.build(data.points)
    engine.remove(range(100))
    together = engine.search(data.queries, 5, **effort)  # type: ignore[arg-type]
    alone = [engine.search(q[None], 5, **effort) for q in data.queries]  # type: ignore[arg-type]
    assert torch.equal(together[0], torch.cat([d for d, _ in alone]))
    assert torch.equal(together[1], torch.cat([i for _, i in alone]))


@pytest.mark.parametrize("kernels", ["plain", "avx2"])
@pytest.mark.thorough
def test_every_instruction_set_finds_the_same(kernels: str) -> None:
    if not core().has_kernels(kernels):  # type: ignore[union-attr]
        pytest.skip(f"this processor does not run {kernels}")
    program = (
        "import torch; from nngk.experiments.bench.points import family; from nngk.search import FANNG, Exact\n"
        "from nngk.search.calibration import found_share\n"
        "data = family('apart', 1500, 24, 40); engine = FANNG(24, threads=1); engine.build(data.points)\n"
        "truth = Exact(data.points).search(data.queries, 10)[1]\n"
        "print(found_share(engine.search(data.queries, 10, ef=200)[1], truth))"
    )
    environment = os.environ | {"NNGK_KERNELS": kernels}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.97


def test_a_class_that_is_added_is_found() -> None:
    data = family("apart", 6000, 32, 100)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, generator=generator) + 0.1 * torch.randn(80, 32, generator=generator)
    engine = FANNG(32, threads=2)
    engine.build(data.points)
    engine.add(x[:40])
    everything = Family(torch.cat([data.points, x[:40]]), x[40:])
    assert recall(engine, everything, 40) > 0.9
    assert recall(engine, everything._replace(queries=data.queries), 100) > 0.97


def test_long_edges_do_not_depend_on_the_threads() -> None:
    data = family("apart", 6000, 32, 50)
    answers = []
    for threads in (1, 3):
        engine = FANNG(32, threads=threads)
        engine.build(data.points)
        answers.append((engine.stats()["edges"], *engine.search(data.queries, 10, ef=15)))
    assert answers[0][0] == answers[1][0]
    assert torch.equal(answers[0][1], answers[1][1]) and torch.equal(answers[0][2], answers[1][2])
