"""Measuring the search engines: recall against queries per second, build time, memory, all-pairs time."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.experiments.bench.curves import plot_queries
from nngk.experiments.bench.peers import PEERS, all_pairs, prepare
from nngk.experiments.bench.points import clustered_features
from nngk.experiments.record import append_rows, provenance
from nngk.search.calibration import found_share
from nngk.search.exact import Exact

QUERIES = 1000
ENOUGH = 0.997  # recall beyond which a sweep stops
Row = dict[str, Any]


def bench_search(
    n: int = 50_000,
    dim: int = 512,
    k: int | Sequence[int] = (10, 100),
    peers: Sequence[str] = ("exact", "fanng", "hnswlib", "faiss-flat", "faiss-hnsw", "pynndescent"),
    threads: int | None = None,
    out: str | Path | None = None,
    *,
    seed: int = 0,
    x: Tensor | None = None,
    pairs: bool = True,
    queries: bool = True,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Measure engines side by side in one run; returns the rows and, with ``out``, adds them to ``out``/search.csv.

    Every approximate engine is swept over its own knob, and for ``pairs`` the lists of all points (the largest k) are
    timed with the building in. ``x`` are points of your own in place of ``clustered_features(n, dim)``; a thousand of
    them are held out as queries. A plot, search_{n}x{dim}.png, is drawn beside the rows where matplotlib is installed.

    >>> rows = bench_search(600, 8, k=5, peers=["exact", "fanng"], threads=1, say=lambda line: None)
    >>> all(row["recall"] > 0.5 for row in rows)
    True
    """
    threads = threads or torch.get_num_threads()
    ks = [k] if isinstance(k, int) else list(k)
    if x is None:
        x = clustered_features(n + QUERIES, dim, seed=seed)
    if len(x) < 200:
        raise InputError(f"The benchmark needs at least 200 points, got {len(x)}.")
    held = min(QUERIES, len(x) // 2)
    points, q = x[:-held].contiguous(), x[-held:].contiguous()
    about = provenance() | {"seed": seed, "threads": threads} | {"n": len(points), "dim": points.shape[1]}
    rows: list[Row] = []
    if queries:
        truth = {size: Exact(points).search(q, size)[1] for size in ks}
        for name in peers:
            rows += sweep(name, points, q, truth, threads, seed, about, say)
    if pairs:
        rows += pairs_rows(peers, points, max(ks), threads, seed, about, say)
    if out is not None:
        folder = Path(out)
        append_rows(folder / "search.csv", rows)
        try:
            plot_queries(rows, folder / f"search_{len(points)}x{points.shape[1]}.png")
        except MissingExtra as error:
            say(str(error))
    return rows


def sweep(
    name: str,
    points: Tensor,
    q: Tensor,
    truth: dict[int, Tensor],
    threads: int,
    seed: int,
    about: Row,
    say: Callable[[str], None],
    share: Callable[[Tensor, Tensor], float] = found_share,
) -> list[Row]:
    """Return recall and queries per second of one engine over the values of its knob.

    One thread is timed by the processor's clock, which other work on the machine does not move.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    before = resident_bytes()
    try:
        prepared = prepare(name, points, threads, seed, clock)
    except MissingExtra as error:
        say(f"{name}: left out. {error}")
        return []
    memory = resident_bytes() - before
    say(f"{name:12} built in {prepared.seconds:.1f} s, {memory / 1e6:.0f} MB")
    rows = []
    for k, wanted in truth.items():
        for value in PEERS[name].values(k):
            times = []
            for _ in range(3):
                start = clock()
                found = prepared.search(q, k, value)
                times.append(clock() - start)
            row: Row = {"task": "queries", "engine": name, "k": k, "knob": PEERS[name].knob or "", "value": value}
            row |= {"recall": round(share(found, wanted), 5), "queries_per_second": round(len(q) / min(times), 1)}
            row |= {"build_seconds": round(prepared.seconds, 3), "memory_mb": round(memory / 1e6), **about}
            counted = prepared.distances(q, k, value)
            if counted is not None:
                row["distances_per_query"] = round(counted, 1)
            rows.append(row)
            say(f"{name:12} k={k:<4} {row['recall']:.4f} {row['queries_per_second']:>10.0f}/s")
            if row["recall"] >= ENOUGH:
                break
    return rows


def pairs_rows(
    peers: Sequence[str], x: Tensor, k: int, threads: int, seed: int, about: Row, say: Callable[[str], None]
) -> list[Row]:
    """Seconds and recall of the lists of all points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:500]
    exact = Exact(x).search(x[chosen], k + 1)[1]
    truth = torch.stack([row[row != own][:k] for row, own in zip(exact, chosen)])
    rows = []
    for name in peers:
        try:
            seconds, build, found = all_pairs(name, x, k, threads, seed)
        except MissingExtra as error:
            say(f"{name}: left out. {error}")
            continue
        recall = found_share(found[chosen], truth)
        rate = len(x) ** 2 * x.shape[1] / seconds
        row = {"task": "all pairs", "engine": name, "k": k, "recall": round(recall, 5), "seconds": round(seconds, 3)}
        row["build_seconds"] = round(build, 3)
        rows.append(
            row | {"gflops": round(rate / 1e9, 1), "sgemm_gflops": round(sgemm_rate(threads) / 1e9, 1), **about}
        )
        say(f"{name:12} all pairs k={k}: {seconds:.2f} s, recall {recall:.4f}")
    return rows


def at_recall(rows: list[Row], engine: str, k: int, recall: float) -> float | None:
    """Queries per second at a recall, between the two nearest points of the sweep; None where it is not reached."""
    line = sorted(
        (r["recall"], r["queries_per_second"])
        for r in rows
        if r.get("engine") == engine and r["k"] == k and r["task"] == "queries"
    )
    for (r0, q0), (r1, q1) in itertools.pairwise(line):
        if r0 < recall <= r1:
            return float(q0 + (q1 - q0) * (recall - r0) / (r1 - r0))
    return line[0][1] if line and line[0][0] >= recall else None


def sgemm_rate(threads: int, size: int = 2048) -> float:
    """Floating-point operations per second of torch's matrix product."""
    used = torch.get_num_threads()
    torch.set_num_threads(threads)
    a = torch.randn(size, size)
    seconds = min(timed(lambda: a @ a) for _ in range(4))
    torch.set_num_threads(used)
    return 2 * size**3 / seconds


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def resident_bytes() -> int:
    """Memory of this process, where the system tells."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0
