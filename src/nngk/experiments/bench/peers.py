"""Engines under measurement: how each is built, and the knob that trades its speed for recall."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from nngk.errors import InputError
from nngk.search.adapters.faiss import Faiss
from nngk.search.adapters.hnswlib import Hnswlib
from nngk.search.adapters.pynndescent import PyNNDescent
from nngk.search.adapters.usearch import Usearch
from nngk.search.engine import Engine
from nngk.search.exact import Exact
from nngk.search.fanng import FANNG

WARM = 20_000  # points on which pynndescent compiles all that it compiles for more: with 500 a part of it is left


class Peer(NamedTuple):
    """An engine's maker, the attribute of the engine that is swept, and its values for k neighbours."""

    make: Callable[[int, int, int, int], Any]  # dim, k (0: queries only), threads, seed
    knob: str | None
    values: Callable[[int], list[float]]
    approximate: bool = True


def pools(k: int) -> list[float]:
    """Sizes of the pool of a graph search."""
    return sorted({max(k, round(k + step)) for step in (0, 5, 10, 20, 40, 70, 110, 160, 250, 400, 700, 1200, 2000)})


PEERS = {
    "exact": Peer(lambda d, k, t, s: Exact(threads=t), None, lambda k: [0], approximate=False),
    "fanng": Peer(lambda d, k, t, s: FANNG(d, neighbours=max(48, k), seed=s, threads=t), "ef", pools),
    "faiss-flat": Peer(lambda d, k, t, s: Faiss(d, "flat", threads=t), None, lambda k: [0], approximate=False),
    "faiss-hnsw": Peer(lambda d, k, t, s: Faiss(d, "hnsw", threads=t), "ef", pools),
    "faiss-hnsw-sq8": Peer(lambda d, k, t, s: Faiss(d, "hnsw-sq8", threads=t), "ef", pools),
    "faiss-ivf": Peer(lambda d, k, t, s: Faiss(d, "ivf", threads=t), "probes", lambda k: [4, 8, 16, 32, 64, 128, 256]),
    "hnswlib": Peer(lambda d, k, t, s: Hnswlib(d, seed=s, threads=t), "ef", pools),
    "pynndescent": Peer(
        lambda d, k, t, s: PyNNDescent(d, seed=s, threads=t),
        "epsilon",
        lambda k: [0.0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5],
    ),
    "usearch": Peer(lambda d, k, t, s: Usearch(d, threads=t), "ef", pools),
}


class Prepared(NamedTuple):
    """A built engine, the seconds that took, and how a batch is searched at a knob's value."""

    engine: Engine
    seconds: float
    search: Callable[[Tensor, int, float], Tensor]

    def distances(self, q: Tensor, k: int, value: float) -> float | None:
        """Return the distance computations of one query on average, where the engine counts them."""
        if isinstance(self.engine, FANNG):
            before = self.engine.stats()
            self.search(q, k, value)
            after = self.engine.stats()
            return (after["distances"] - before["distances"]) / (after["queries"] - before["queries"])
        if isinstance(self.engine, Faiss) and self.engine.kind.startswith("hnsw"):
            counter = self.engine.faiss.cvar.hnsw_stats
            counter.reset()
            self.search(q, k, value)
            return float(counter.ndis) / len(q)
        return None


def warm_up(name: str, x: Tensor, threads: int) -> None:
    """Have an engine compiled, where it is compiled as it runs: before the clock starts."""
    if name == "pynndescent":
        warm = PyNNDescent(x.shape[1], threads=threads)
        warm.add(x[:WARM])
        warm.index(min(warm.neighbours, len(warm) - 1)).prepare()


def prepare(name: str, x: Tensor, threads: int, seed: int, clock: Callable[[], float] = time.perf_counter) -> Prepared:
    """Build one engine for queries, timed by a clock, after it was compiled."""
    warm_up(name, x, threads)
    return built(name, x, threads, seed, clock)


def built(name: str, x: Tensor, threads: int, seed: int, clock: Callable[[], float] = time.perf_counter) -> Prepared:
    """Build one engine for queries, timed by a clock; one that is compiled as it runs was warmed up before."""
    if name not in PEERS:
        raise InputError(f"There is no peer {name!r}; take some of {', '.join(PEERS)}.")
    peer = PEERS[name]
    start = clock()
    engine = peer.make(x.shape[1], 0, threads, seed)
    engine.add(x)
    if name == "pynndescent":
        engine.index(engine.neighbours).prepare()
    if name == "fanng":  # its graph, which queries need
        engine.prepare()
    seconds = clock() - start

    def search(q: Tensor, k: int, value: float) -> Tensor:
        if name == "fanng":
            found: Tensor = engine.search(q, k, ef=int(value))[1]
            return found
        if peer.knob:
            setattr(engine, peer.knob, value if peer.knob == "epsilon" else int(value))
        answer: Tensor = engine.search(q, k)[1]
        return answer

    search(x[:64], 10, peer.values(10)[0])  # compiles, and touches the memory
    return Prepared(engine, seconds, search)


def alone(engine: Engine) -> None:
    """Let an engine answer queries with one thread, whatever it was built with."""
    engine.threads = 1  # type: ignore[attr-defined]
    if isinstance(engine, PyNNDescent):
        engine.index(engine.neighbours).n_jobs = 1


class Pairs(NamedTuple):
    """The lists of all points, the seconds they took with the building in, and the building alone."""

    seconds: float
    build_seconds: float
    found: Tensor


def all_pairs(name: str, x: Tensor, k: int, threads: int, seed: int) -> Pairs:
    """The k nearest others of all points, by one engine."""
    warm_up(name, x, threads)
    start = time.perf_counter()
    engine = PEERS[name].make(x.shape[1], k, threads, seed)
    engine.add(x)
    if name in ("hnswlib", "faiss-hnsw"):
        engine.ef = max(2 * k, 128)
    built = time.perf_counter()
    found: Tensor = engine.all_neighbours(k)[1]
    return Pairs(time.perf_counter() - start, built - start, found)
