"""Every engine keeps the same promises."""

import builtins
import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.search import ENGINES, Engine, Exact, choose, create_engine
from nngk.search.calibration import found_share
from nngk.search.checks import without_own
from nngk.search.native import core

PACKAGES = {
    "faiss-flat": "faiss",
    "faiss-hnsw": "faiss",
    "faiss-ivf": "faiss",
    "hnswlib": "hnswlib",
    "pynndescent": "pynndescent",
    "usearch": "usearch",
}


# pynndescent compiles itself for a minute before it answers.
PROMISED = [pytest.param(name, marks=pytest.mark.slow) if name == "pynndescent" else name for name in ENGINES]


def engine(name: str, dim: int, n: int) -> Engine:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    if name == "fanng" and core() is None:
        pytest.skip("the compiled core is not built")
    return create_engine(name, dim=dim, n=n, k=10, threads=1)


def points(n: int) -> Tensor:
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("name", PROMISED)
@pytest.mark.thorough
def test_protocol(name: str) -> None:
    x, q = points(1500), points(40)
    made = engine(name, 16, 1500)
    assert isinstance(made, Engine) and len(made) == 0
    assert made.add(x[:1000]).tolist() == list(range(1000))
    assert made.add(x[1000:]).tolist() == list(range(1000, 1500))
    truth = Exact(x)
    d, i = made.search(q, 10)
    wanted = truth.search(q, 10)
    assert found_share(i, wanted[1]) > 0.9
    torch.testing.assert_close(d, (x[i] - q[:, None]).square().sum(2), rtol=1e-3, atol=1e-4)
    d, i = made.all_neighbours(10)
    assert i.shape == (1500, 10) and (i != torch.arange(1500)[:, None]).all()
    assert found_share(i, truth.all_neighbours(10)[1]) > 0.9
    made.update(-x)
    assert found_share(made.search(-q, 10)[1], wanted[1]) > 0.9
    with pytest.raises(InputError, match="expects all"):
        made.update(x[:5])
    with pytest.raises(InputError, match="NaN"):
        made.search(torch.full((1, 16), torch.nan), 1)
    with pytest.raises(InputError, match="shape"):
        made.add(torch.zeros(3, 15))


@pytest.mark.parametrize("name", PROMISED)
def test_few_points_and_many_neighbours(name: str) -> None:
    made = engine(name, 16, 5)
    with pytest.raises(InputError, match="no points"):
        made.search(torch.zeros(1, 16), 1)
    made.add(points(5))
    assert (made.search(points(2), 5)[1].sort().values == torch.arange(5)).all()
    for ask in (lambda: made.search(points(2), 6), lambda: made.all_neighbours(6)):
        with pytest.raises(InputError, match="at most 5"):
            ask()
    d, i = made.all_neighbours(5)
    assert (i[:, 4] == -1).all() and torch.isinf(d[:, 4]).all()
    assert all(sorted(row[:4]) == [j for j in range(5) if j != own] for own, row in enumerate(i.tolist()))


def test_duplicates_are_other_points() -> None:
    for name in ENGINES:
        if name in PACKAGES:
            continue  # their ties are their own
        made = engine(name, 16, 20)
        made.add(points(10).repeat(2, 1))
        assert made.all_neighbours(1)[1][:, 0].tolist() == [(i + 10) % 20 for i in range(20)]


def test_own_index_goes_wherever_it_stands() -> None:
    d = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 2.0], [0.5, 1.0, 2.0]])
    i = torch.tensor([[0, 5, 6], [7, 1, 8], [5, 6, 7]])
    kept = without_own(d, i, torch.tensor([0, 1, 2]))
    assert kept[1].tolist() == [[5, 6], [7, 8], [5, 6]] and kept[0].tolist() == [[1.0, 2.0], [0.0, 2.0], [0.5, 1.0]]


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.split(".")[0] in PACKAGES.values():
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    for name, package in PACKAGES.items():
        with pytest.raises(MissingExtra, match=rf"nngk\[{package}\]"):
            create_engine(name, dim=4)


def test_choice_grows_from_exact_to_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = choose(5_000, 512, 100), choose(2_000_000, 128, 100)
    assert small.name == "exact" and small.recall == 1.0 and "s of one core" in small.reason
    if core() is not None:
        assert large.name == "fanng" and 0.9 < large.recall < 1 and "FANNG" in large.reason
    assert choose(2_000_000, 128, 100, "cuda").name == "exact"
    monkeypatch.setenv("NNGK_NO_NATIVE", "1")
    assert choose(2_000_000, 128, 100).name == "exact"


@pytest.mark.skipif(core() is None, reason="needs the compiled core")
def test_what_was_measured_to_be_slower_is_not_chosen() -> None:
    with (Path(__file__).parents[3] / "results" / "search_lists.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    slower = [row for row in rows if float(row["ratio"]) < 0.95 and row["n"] == "70000"]
    assert len({row["family"] for row in slower}) >= 2
    for row in slower:
        assert choose(int(row["n"]), int(row["dim"]), int(row["k"])).name == "exact", row


@pytest.mark.skipif(core() is None, reason="needs the compiled core")
@pytest.mark.parametrize("dim", [32, 128, 512, 2048])
def test_the_choice_changes_once_and_later_for_longer_lists(dim: int) -> None:
    sizes = [int(1000 * 1.2**step) for step in range(60)]
    first = []
    for k in (48, 100, 200, 400):
        names = [choose(n, dim, k).name for n in sizes]
        assert names == sorted(names) and {"exact", "fanng"} == set(names)
        first.append(names.index("fanng"))
    assert first == sorted(first) and first[0] < first[-1]


def test_unknown_names_and_sizes() -> None:
    with pytest.raises(InputError, match="no search engine 'annoy'"):
        create_engine("annoy", dim=4)
    with pytest.raises(InputError, match="give n"):
        create_engine("auto", dim=4)
    with pytest.raises(InputError, match="dim must be"):
        choose(10, 0, 5)
