"""Which engine for which size: a cost model with measured constants."""

from typing import NamedTuple

import torch

from nngk.errors import InputError
from nngk.search.adapters.faiss import Faiss
from nngk.search.adapters.hnswlib import Hnswlib
from nngk.search.adapters.pynndescent import PyNNDescent
from nngk.search.adapters.usearch import Usearch
from nngk.search.checks import whole
from nngk.search.engine import Engine
from nngk.search.exact import Exact
from nngk.search.fanng import FANNG
from nngk.search.native import core

ENGINES = ("auto", "exact", "fanng", "faiss-flat", "faiss-hnsw", "faiss-ivf", "hnswlib", "pynndescent", "usearch")
# Seconds of one core of an AMD EPYC of the fifth generation, fitted to trials of both engines on those families of
# benchmarks/search/lists.py for which FANNG gains least, of which only some became rows of results/search_lists.csv.
# Only their ratio decides. Its multiply-adds cost less than those of most processors, which favours exact search: on
# others FANNG is faster from fewer points on, and is not taken too early.
PAIR = {"exact": 4.5e-12, "fanng": 3.5e-12}  # for each of a point's n·dim products, of which FANNG computes a part
POINT = 2.4e-5  # what a point costs beside them
DIMENSION = {"exact": 0.0, "fanng": 4e-8}  # each of its dimensions, in finding out which of them can be dropped
NEIGHBOUR = {"exact": 1.6e-7, "fanng": 2.4e-7}  # and an entry of its list
EXACT_TORCH = 4.0  # how much slower exact search is without the compiled core
SHORTEST = 48  # entries of FANNG's lists, however few are asked for
FANNG_RECALL = 0.98
# Points up to which a GPU compares all pairs sooner than a CPU makes a graph.
GPU_POINTS = 20_000_000


class Choice(NamedTuple):
    """An engine's name, why, and the recall to expect of its lists, where that is known."""

    name: str
    reason: str
    recall: float | None


def choose(n: int, dim: int, k: int, device: str | torch.device = "cpu") -> Choice:
    """Return the engine that finds the k nearest neighbours of all n points first.

    Sizes alone decide, as if the points were of those kinds for which FANNG gains least, because it compares all pairs
    in fewer dimensions; of classes that lie apart it finds the lists far sooner than is foretold here.

    >>> choose(5_000, 512, 100).name
    'exact'
    """
    for name, value in (("n", n), ("dim", dim), ("k", k)):
        whole(value, name)
    if torch.device(device).type == "cuda" and n <= GPU_POINTS:
        return Choice("exact", f"exact: a GPU compares {n:,} points exhaustively", 1.0)
    exact, graph = (
        n * (POINT + NEIGHBOUR[engine] * max(k, least) + DIMENSION[engine] * dim + PAIR[engine] * n * dim)
        for engine, least in (("exact", 0), ("fanng", SHORTEST))
    )
    if core() is None:
        exact *= EXACT_TORCH
        return Choice("exact", f"exact, about {exact:.3g} s of one core: FANNG's compiled core is missing", 1.0)
    if exact <= graph:
        return Choice("exact", f"exact, about {exact:.3g} s of one core against {graph:.3g} s for FANNG", 1.0)
    reason = f"FANNG, about {graph:.3g} s of one core against {exact:.3g} s for exact search"
    return Choice("fanng", reason, FANNG_RECALL)


def require_engine(name: str) -> str:
    """Return the name itself, or raise InputError that lists the names there are."""
    if name not in ENGINES:
        raise InputError(f"There is no search engine {name!r}; take one of {', '.join(ENGINES)}.")
    return name


def create_engine(
    name: str = "auto",
    *,
    dim: int,
    n: int | None = None,
    k: int = 100,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    seed: int = 0,
    recall: float = FANNG_RECALL,
) -> Engine:
    """Return an empty engine by name; 'auto' needs ``n``, the number of points to come.

    ``k`` is how many neighbours of each point will be asked for.

    >>> len(create_engine("exact", dim=8))
    0
    """
    if require_engine(name) == "auto":
        if n is None:
            raise InputError("search='auto' chooses by the number of points: give n.")
        name = choose(n, dim, k, device).name
    if name == "exact":
        return Exact(threads=threads)
    if name == "fanng":
        # Lists as long as the neighbours that will be asked for: then all_neighbours only reads them.
        return FANNG(dim, neighbours=max(SHORTEST, k), seed=seed, recall=recall, threads=threads)
    if name.startswith("faiss"):
        return Faiss(dim, name.removeprefix("faiss-"), threads=threads)
    if name == "hnswlib":
        return Hnswlib(dim, seed=seed, threads=threads)
    if name == "usearch":
        return Usearch(dim, threads=threads)
    return PyNNDescent(dim, seed=seed, threads=threads)
