"""FANNG: what it finds, how it changes, and what it refuses."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search import FANNG, Engine, Exact
from nngk.search.calibration import found_share
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def features(n: int, dim: int, seed: int = 0, classes: int = 20) -> Tensor:
    """Clustered points on a sphere, of about ten dimensions, as networks give them."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(10, dim, generator=torch.Generator().manual_seed(99))
    centres = torch.randn(classes, 10, generator=torch.Generator().manual_seed(98))
    labels = torch.randint(classes, (n,), generator=generator)
    low = centres[labels] + 0.4 * torch.randn(n, 10, generator=generator)
    return torch.nn.functional.normalize(low @ basis + 0.02 * torch.randn(n, dim, generator=generator))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return features(6000, 48)


@pytest.fixture(scope="module")
def queries() -> Tensor:
    return features(200, 48, seed=1)


@pytest.fixture(scope="module")
def index(x: Tensor) -> FANNG:
    engine = FANNG(48, threads=2)
    engine.build(x)
    return engine


def test_is_an_engine(index: FANNG) -> None:
    assert isinstance(index, Engine) and len(index) == 6000


@pytest.mark.parametrize(("k", "least"), [(1, 0.55), (10, 0.9), (100, 0.97)])  # 0.70 to 0.76 for one, over eight seeds
@pytest.mark.thorough
def test_recall_of_best_first_grows_to_one(index: FANNG, x: Tensor, queries: Tensor, k: int, least: float) -> None:
    wanted = Exact(x).search(queries, k)
    shares = [found_share(index.search(queries, k, ef=ef)[1], wanted[1]) for ef in (k, 4 * k + 40, 6000)]
    assert shares[0] > least and shares[1] > 0.98 and shares[2] == 1.0
    d, i = index.search(queries, k, ef=6000)
    torch.testing.assert_close(d, wanted[0], rtol=1e-5, atol=1e-7)
    assert torch.equal(i, wanted[1])


@pytest.mark.thorough
def test_recall_of_backtracking_grows_to_one_with_its_budget(index: FANNG, x: Tensor, queries: Tensor) -> None:
    truth = Exact(x).search(queries, 10)[1]
    shares = [found_share(index.search(queries, 10, budget=b)[1], truth) for b in (30, 100, 6000)]
    assert shares[0] < shares[1] <= shares[2] == 1.0 and shares[1] > 0.8


def test_a_budget_is_kept(index: FANNG, queries: Tensor) -> None:
    before = index.stats()
    index.search(queries, 10, budget=123)
    after = index.stats()
    assert after["queries"] - before["queries"] == 200
    assert after["distances"] - before["distances"] <= 123 * 200


@pytest.mark.parametrize("recall", [0.8, 0.95, 0.99])
def test_wanted_recall_is_reached_on_new_queries(index: FANNG, x: Tensor, queries: Tensor, recall: float) -> None:
    truth = Exact(x).search(queries, 10)[1]
    assert found_share(index.search(queries, 10, recall=recall)[1], truth) > recall - 0.03
    assert index.effort(10, 0.8).ef <= index.effort(10, 0.99).ef


@pytest.mark.parametrize("how", [{}, {"ef": 60}, {"budget": 2000}, {"recall": 0.99}])
@pytest.mark.thorough
def test_all_neighbours(index: FANNG, x: Tensor, how: dict[str, float]) -> None:
    d, i = index.all_neighbours(20, **how)  # type: ignore[arg-type]
    truth = Exact(x).all_neighbours(20)
    assert (i != torch.arange(len(x))[:, None]).all()
    assert found_share(i, truth[1]) > 0.975
    assert (d.diff(dim=1) >= 0).all()
    torch.testing.assert_close(d, (x[i] - x[:, None]).square().sum(2), rtol=1e-4, atol=1e-6)


def test_longer_lists_than_the_graph_was_made_from(x: Tensor) -> None:
    engine = FANNG(48, neighbours=16)
    engine.build(x)
    assert found_share(engine.all_neighbours(60, recall=0.97)[1], Exact(x).all_neighbours(60)[1]) > 0.95


@pytest.mark.thorough
def test_same_seed_same_graph_whatever_the_threads(x: Tensor, queries: Tensor) -> None:
    answers = []
    for threads in (1, 1, 3):
        engine = FANNG(48, seed=5, threads=threads)
        engine.build(x[:5000])
        engine.add(x[5000:])
        engine.remove(torch.arange(0, 2000, 2))
        answers.append((*engine.search(queries, 10, ef=20), engine.stats()["edges"]))
    for other in answers[1:]:
        assert (
            torch.equal(answers[0][0], other[0]) and torch.equal(answers[0][1], other[1]) and answers[0][2] == other[2]
        )


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
@pytest.mark.thorough
def test_half_precision_storage(x: Tensor, queries: Tensor, storage: str) -> None:
    engine = FANNG(48, storage=storage)
    engine.build(x)
    stored = x.to(getattr(torch, storage)).float()
    assert torch.equal(engine.vectors(torch.arange(len(x))), stored)
    d, i = engine.search(queries, 10, ef=200)
    truth = Exact(stored).search(queries, 10)
    assert found_share(i, truth[1]) > 0.98
    torch.testing.assert_close(d, (stored[i] - queries[:, None]).square().sum(2), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_add_finds_the_new_and_the_old(x: Tensor, queries: Tensor) -> None:
    engine = FANNG(48)
    assert engine.add(x[:3000]).tolist() == list(range(3000))
    assert engine.add(x[3000:3001]).tolist() == [3000]
    assert engine.add(x[3001:]).tolist() == list(range(3001, 6000))
    truth = Exact(x)
    assert found_share(engine.search(queries, 10, ef=100)[1], truth.search(queries, 10)[1]) > 0.97
    assert found_share(engine.all_neighbours(10)[1], truth.all_neighbours(10)[1]) > 0.96
    assert found_share(engine.search(queries, 10, ef=6000)[1], truth.search(queries, 10)[1]) == 1.0


@pytest.mark.parametrize("count", [1, 200, 3000, 5999])
@pytest.mark.thorough
def test_removed_points_are_never_found(x: Tensor, queries: Tensor, count: int) -> None:
    engine = FANNG(48)
    engine.build(x)
    # The nearest of one query go first: a whole neighbourhood vanishes, as when a class is removed.
    gone = Exact(x).search(queries[:1], count)[1][0]
    engine.remove(gone)
    kept = torch.ones(6000, dtype=torch.bool)
    kept[gone] = False
    names = kept.nonzero()[:, 0]
    assert len(engine) == 6000 - count
    k = min(10, len(engine))
    i = engine.search(queries, k, ef=300)[1]
    truth = Exact(x[kept]).search(queries, k)
    wanted = torch.where(truth[1] >= 0, names[truth[1].clamp(min=0)], -1)
    assert not torch.isin(i, gone).any()
    assert found_share(i, wanted) > 0.98
    k = min(5, k)
    for own in (engine.all_neighbours(k)[1], engine.all_neighbours(k, ef=20)[1]):
        assert (own[gone] == -1).all() and not torch.isin(own, gone).any()
    more = engine.add(x[gone[:7]])
    assert more.tolist() == list(range(6000, 6000 + min(7, count)))
    assert (engine.search(x[gone[:1]], 1, ef=100)[0] == 0).all()


def test_everything_removed_and_begun_again(x: Tensor) -> None:
    engine = FANNG(48)
    engine.build(x[:50])
    engine.remove(range(50))
    assert len(engine) == 0
    with pytest.raises(InputError, match="no points"):
        engine.search(x[:1], 1)
    assert engine.add(x[50:60]).tolist() == list(range(50, 60))
    assert engine.search(x[55:56], 1)[1].item() == 55
    assert engine.all_neighbours(1)[1].shape == (60, 1)


@pytest.mark.thorough
def test_update_follows_points_that_moved(x: Tensor, queries: Tensor) -> None:
    engine = FANNG(48, neighbours=32)
    engine.build(x)
    for step in range(3):
        moved = torch.nn.functional.normalize(
            x + 0.02 * (step + 1) * torch.randn(x.shape, generator=torch.Generator().manual_seed(step))
        )
        engine.update(moved)
    truth = Exact(moved)
    assert found_share(engine.search(queries, 10, ef=100)[1], truth.search(queries, 10)[1]) > 0.97
    assert found_share(engine.all_neighbours(20, recall=0.97)[1], truth.all_neighbours(20)[1]) > 0.95


def test_update_after_remove_takes_the_points_that_are_left(x: Tensor) -> None:
    engine = FANNG(48)
    engine.build(x[:100])
    engine.remove([3, 50])
    left = torch.tensor([i for i in range(100) if i not in (3, 50)])
    engine.update(x[1000:1098])
    assert torch.equal(engine.vectors(left), x[1000:1098])
    assert engine.search(x[1003:1004], 1, ef=50)[1].item() == 4


def test_degenerate_points() -> None:
    same = FANNG(3)
    same.build(torch.ones(500, 3))
    d, i = same.all_neighbours(7)
    assert (d == 0).all() and all(len(set(row)) == 7 for row in i.tolist())
    assert (same.search(torch.ones(2, 3), 500, ef=500)[1].sort().values == torch.arange(500)).all()
    one = FANNG(2)
    one.build(torch.zeros(1, 2))
    assert one.search(torch.ones(1, 2), 1)[1].tolist() == [[0]]
    assert one.all_neighbours(1)[1].tolist() == [[-1]]
    pairs = FANNG(4)
    points = features(3000, 4).repeat(2, 1)
    pairs.build(points)
    d = pairs.all_neighbours(1)[0]
    assert (d == 0).float().mean() > 0.99
    few = FANNG(1)
    few.build(torch.tensor([[0.0], [1.0], [3.0]]))
    assert few.search(torch.tensor([[2.9]]), 3)[1].tolist() == [[2, 1, 0]]
    assert few.all_neighbours(3)[1].tolist() == [[1, 2, -1], [0, 2, -1], [1, 0, -1]]


def test_points_whose_codes_are_useless_are_walked_on_vectors() -> None:
    # Tight groups far apart: a byte cannot tell the members of one group from each other.
    generator = torch.Generator().manual_seed(0)
    x = 1000 * torch.randn(10, 16, generator=generator).repeat_interleave(500, 0) + 0.01 * torch.randn(
        5000, 16, generator=generator
    )
    engine = FANNG(16)
    engine.build(x)
    assert not engine.stats()["codes"]
    assert found_share(engine.search(x[::50], 10, ef=100)[1], Exact(x).search(x[::50], 10)[1]) > 0.95


def test_outliers_do_not_spoil_the_rest(x: Tensor, queries: Tensor) -> None:
    spoiled = x.clone()
    spoiled[0] = 1e6
    engine = FANNG(48)
    engine.build(spoiled)
    truth = Exact(spoiled).search(queries, 10)[1]
    assert found_share(engine.search(queries, 10, ef=100)[1], truth) > 0.97
    assert engine.search(spoiled[:1], 1, ef=100)[1].item() == 0


def test_walks_reach_their_targets(index: FANNG) -> None:
    stats = index.stats()
    assert stats["walk_success"] > 0.5 and stats["walks"] > 0
    assert 2 <= stats["min_degree"] <= stats["mean_degree"] <= 32 + 15


@pytest.mark.parametrize("kind", ["line", "pairs", "equal", "star", "classes", "few"])
@pytest.mark.thorough
def test_no_vertex_hangs_by_a_single_edge(kind: str) -> None:
    """Every vertex keeps two edges out and two in, whatever the occlusion rule leaves, through every change."""
    generator = torch.Generator().manual_seed(0)
    x = {
        "line": 1.5 ** torch.arange(0, 100.0, 0.1)[:, None].double().expand(-1, 2).float(),  # each occludes all beyond
        "pairs": features(1000, 2).repeat(2, 1),
        "equal": torch.ones(700, 2),
        "star": torch.cat([torch.zeros(1, 2), torch.randn(900, 2, generator=generator)]),
        "classes": 1000 * torch.randn(10, 2, generator=generator).repeat_interleave(90, 0)
        + torch.randn(900, 2, generator=generator),
        "few": torch.randn(3, 2, generator=generator),
    }[kind]
    x = x * min(1.0, 1e12 / float(x.abs().max()))
    engine = FANNG(2, degree=6, threads=2)
    engine.build(x)

    def degrees() -> tuple[float, float]:
        stats = engine.stats()
        return stats["min_degree"], stats["min_in_degree"]

    assert min(degrees()) >= 2
    engine.add(x[:1] + 0.5)  # one alone, then many
    assert min(degrees()) >= 2
    engine.add(x[: len(x) // 2] * 1.01)
    assert min(degrees()) >= 2
    engine.remove(range(0, len(x), 2))
    assert min(degrees()) >= 2
    engine.update(engine.vectors([i for i in range(len(x)) if i % 2] + list(range(len(x), len(x) * 3 // 2 + 1))) + 0.1)
    assert min(degrees()) >= 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.search(torch.full((1, 48), float("nan")), 1), "NaN"),
        (lambda e: e.search(torch.zeros(1, 47), 1), r"shape \(n, 48\)"),
        (lambda e: e.search(torch.zeros(48), 1), "shape"),
        (lambda e: e.search(torch.zeros(1, 48), 0), "at least 1"),
        (lambda e: e.search(torch.zeros(1, 48), 1, ef=5, budget=9), "exclude each other"),
        (lambda e: e.search(torch.zeros(1, 48), 1, ef=0), "ef must be at least 1"),
        (lambda e: e.search(torch.zeros(1, 48), 1, recall=1.5), "recall"),
        (lambda e: e.add(torch.full((1, 48), torch.inf)), "infinity"),
        (lambda e: e.update(torch.zeros(5, 48)), "expects all 6000"),
        (lambda e: e.remove([6000]), "No point has the index 6000"),
        (lambda e: e.remove([-1]), "No point has the index -1"),
        (lambda e: e.build(torch.zeros(0, 48)), "at least one point"),
        (lambda e: FANNG(0), "dim"),
        (lambda e: FANNG(8, storage="int3"), "storage"),
        (lambda e: FANNG(8, alpha=0.5), "alpha"),
        (lambda e: FANNG(8, threads=0).build(torch.zeros(2, 8)), "threads"),
        (lambda e: e.vectors(torch.tensor([99999])), "no point"),
    ],
)
def test_mistakes_get_sentences(index: FANNG, call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(index)  # type: ignore[operator]


def test_without_the_core_fanng_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNGK_NO_NATIVE", "1")
    with pytest.raises(InputError, match="compiler"):
        FANNG(8)


def test_saved_index_answers_the_same(index: FANNG, queries: Tensor, x: Tensor, tmp_path: Path) -> None:
    index.save(tmp_path / "index.fanng")
    loaded = FANNG.load(tmp_path / "index.fanng")
    for got, wanted in zip(loaded.search(queries, 10, ef=40), index.search(queries, 10, ef=40)):
        assert torch.equal(got, wanted)
    # A loaded index can be changed; the file stays as it was.
    before = (tmp_path / "index.fanng").read_bytes()
    loaded.add(x[:10] + 0.001)
    loaded.remove(range(1000))
    loaded.update(
        x[1000:6000].flip(0)[: len(loaded)] if len(loaded) <= 5000 else x[torch.randperm(6000)][: len(loaded)]
    )
    assert (tmp_path / "index.fanng").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "index.fanng"]


def test_saved_after_removal(x: Tensor, queries: Tensor, tmp_path: Path) -> None:
    engine = FANNG(48, storage="float16")
    engine.build(x[:1000])
    engine.remove(range(5))
    engine.save(tmp_path / "a")
    loaded = FANNG.load(tmp_path / "a")
    assert len(loaded) == 995 and torch.equal(loaded.search(queries, 5, ef=50)[1], engine.search(queries, 5, ef=50)[1])


def test_damaged_files_are_refused(x: Tensor, tmp_path: Path) -> None:
    engine = FANNG(48)
    engine.build(x[:500])
    path = tmp_path / "index"
    engine.save(path)
    good = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = [0, 9, 30, 100, 200, *torch.randint(len(good), (60,), generator=generator).tolist()]
    refused = 0
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 0x41
        path.write_bytes(bad)
        try:
            FANNG.load(path)
        except InputError:
            refused += 1
    # Only the padding between sections may be changed unnoticed.
    assert refused >= len(places) - 3
    for cut in (0, 7, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(InputError):
            FANNG.load(path)
    path.write_bytes(good + b"x")
    with pytest.raises(InputError, match="damaged"):
        FANNG.load(path)
    with pytest.raises(InputError, match="cannot be opened"):
        FANNG.load(tmp_path / "nothing")
    (tmp_path / "taken").mkdir()
    for place in (path / "folder", tmp_path / "taken"):  # a file is no folder, and a folder no file
        with pytest.raises(InputError, match="cannot be written"):
            engine.save(place)
    assert not list(tmp_path.glob(".*"))


def test_two_threads_save_under_one_name(x: Tensor, tmp_path: Path) -> None:
    first, second = FANNG(48), FANNG(48)
    first.build(x[:50])
    second.build(x[:60])
    left, living = tmp_path / ".index.1-ab.part", tmp_path / ".index.2-cd.part"
    left.touch(), living.touch()
    os.utime(left, (0, 0))  # of a writer that was killed long ago
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            list(pool.map(lambda engine: engine.save(tmp_path / "index"), (first, second)))
            assert len(FANNG.load(tmp_path / "index")) in (50, 60)
    assert {path.name for path in tmp_path.iterdir()} == {"index", living.name}


def test_walks_go_on_until_the_wanted_share_arrives(x: Tensor) -> None:
    shares = []
    for rounds in (0, None):
        engine = FANNG(48, success=0.98, walk_rounds=rounds)
        engine.build(x[:2000])
        shares.append(engine.stats()["walk_success"])
    assert shares[0] < 0.98 <= shares[1]


def test_of_few_points_none_is_missed():
    """Also for queries unlike the points, and after they moved."""
    generator = torch.Generator().manual_seed(0)
    for n in (2, 9, 60, 200):
        x, queries = (torch.randn(n, 6, generator=generator) for _ in range(2))
        engine = FANNG(dim=6)
        engine.add(x)
        for _ in range(3):
            truth = Exact(x).search(queries + 1, 2)[1]
            assert torch.equal(engine.search(queries + 1, 2)[1], truth)
            x = x + torch.randn(n, 6, generator=generator)
            engine.update(x)
