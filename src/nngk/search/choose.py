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
# Seconds of one core, measured with benchmarks/search/growth.py (results/search_crossing.csv, search_growth.csv) on a
# 2.6 GHz processor with AVX-512. Only their ratio decides, and it changes little from machine to machine: both engines
# live on the same multiply-adds and the same memory.
EXACT_PAIR = 1.13e-11  # a multiply-add of all-pairs exact search (each product serves two points)
EXACT_POINT = 2.8e-5  # what a point's list of 100 costs beside the products
EXACT_TORCH = 4.0  # how much slower exact search is without the compiled core
FANNG_POINT = 2.8e-5  # lists, graph and walks of a point among few
FANNG_VALUE = 2.0e-7  # the same, for each of its dimensions: between generated features (1.5) and real ones (3.1)
FANNG_NEIGHBOUR = 3.25e-7  # and for one entry of its list
FANNG_GROWTH = 0.38  # the power of n with which all of these grow
FANNG_FEW = 25_000  # points from which on they do
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

    Sizes alone decide, as if classes overlapped. Of points that fill many dimensions, or whose tails are heavy, FANNG
    finds the lists later than is foretold here, of classes that lie apart sooner.

    >>> choose(5_000, 512, 100).name
    'exact'
    """
    for name, value in (("n", n), ("dim", dim), ("k", k)):
        whole(value, name)
    if torch.device(device).type == "cuda" and n <= GPU_POINTS:
        return Choice("exact", f"exact: a GPU compares {n:,} points exhaustively", 1.0)
    exact = n * (EXACT_POINT + EXACT_PAIR * n * dim) * (1 if core() else EXACT_TORCH)
    if core() is None:
        return Choice("exact", f"exact, about {exact:.3g} s of one core: FANNG's compiled core is missing", 1.0)
    graph = n * (FANNG_POINT + FANNG_VALUE * dim + FANNG_NEIGHBOUR * k) * max(1.0, n / FANNG_FEW) ** FANNG_GROWTH
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
        return FANNG(dim, neighbours=max(48, k), seed=seed, recall=recall, threads=threads)
    if name.startswith("faiss"):
        return Faiss(dim, name.removeprefix("faiss-"), threads=threads)
    if name == "hnswlib":
        return Hnswlib(dim, seed=seed, threads=threads)
    if name == "usearch":
        return Usearch(dim, threads=threads)
    return PyNNDescent(dim, seed=seed, threads=threads)
