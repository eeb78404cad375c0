"""Search engines side by side on points of every kind."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nngk.errors import MissingExtra
from nngk.experiments.bench.memory import memory_of
from nngk.experiments.bench.peers import PEERS, Prepared, alone, built, warm_up
from nngk.experiments.bench.points import Family
from nngk.experiments.bench.search import Row
from nngk.experiments.record import append_rows, provenance
from nngk.search.adapters.adapter import Adapter
from nngk.search.exact import Exact
from nngk.search.native import core

COMPARED = ("fanng", "hnswlib", "faiss-hnsw", "faiss-hnsw-sq8", "pynndescent", "usearch")
RECALLS = (0.95, 0.99)
RIVAL = "hnswlib"  # whose rate the others' are divided by
TIE = 1e-5  # relative difference of squared distances below which rounding decides
ROUNDS = 7  # in which the engines take turns
VALUES = 1 << 24  # that are gathered at once to measure answers


def answered_share(found: Tensor, data: Family, truth: Tensor) -> float:
    """Return the share of true neighbours that was found, where any of equally far points is as good as another.

    ``found`` are indices (n, k) and ``truth`` the exact squared distances (n, k).
    """
    limit = truth[:, -1:] * (1 + TIE) + 1e-12 * data.queries.square().sum(1, keepdim=True)
    right = 0
    for part in torch.arange(len(found)).split(max(1, VALUES // (found.shape[1] * data.points.shape[1]))):
        near = data.points[found[part].clamp(min=0)]
        distances = (near - data.queries[part, None]).square().sum(2).masked_fill(found[part] < 0, torch.inf)
        right += int((distances <= limit[part]).sum())
    return right / found.numel()


class Setting(NamedTuple):
    """The least value of an engine's knob that was found to reach a recall, and what it reaches."""

    value: float
    recall: float


def least_setting(values: Sequence[float], recall_of: Callable[[float], float], wanted: float) -> Setting | None:
    """Return the least value that reaches a recall, between the first of the values that does and the one before.

    >>> least_setting([10, 20, 40], lambda value: value / 100, 0.25)
    Setting(value=25, recall=0.25)
    """
    low = None
    for high in values:
        reached = recall_of(high)
        if reached >= wanted:
            break
        low = high
    else:
        return None
    whole = all(float(value).is_integer() for value in values)
    while low is not None and high - low > (max(1, low / 32) if whole else 0.005):
        middle = (low + high) // 2 if whole else (low + high) / 2
        share = recall_of(middle)
        low, high, reached = (low, middle, share) if share >= wanted else (middle, high, reached)
    return Setting(high, reached)


def bench_families(
    families: Iterable[tuple[str, Family]],
    ks: Sequence[int] = (10, 100),
    peers: Sequence[str] = COMPARED,
    out: str | Path | None = None,
    *,
    seed: int = 0,
    build_threads: int = 1,
    commit: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Compare engines on every family with one thread, at equal recall; return the rows and, with ``out``, add them.

    For each recall every engine gets the least pool that reaches it; then the engines take turns, and medians of the
    processor's time are compared, so that other work on the machine meets all of them alike. ``ratio`` is how many
    times as many queries an engine answers as hnswlib. With more ``build_threads`` only the building uses them, and is
    timed by the clock. ``commit`` is that of the source, where git is not there to ask.

    >>> from nngk.experiments.bench.points import family
    >>> data = [("apart", family("apart", 600, 8, 50))]
    >>> rows = bench_families(data, [5], ["fanng"], say=lambda line: None)
    >>> [row["recall"] >= row["wanted"] for row in rows]
    [True, True]
    """
    rows: list[Row] = []
    for name, data in families:
        about: Row = {"family": name, "n": len(data.points), "dim": data.points.shape[1], "threads": 1, "seed": seed}
        native = core()
        about["kernels"] = native.kernels if native else ""
        about["build_threads"] = build_threads
        engines, taken = _built(data, peers, build_threads, seed, say)
        for k in ks:
            truth = Exact(data.points).search(data.queries, k)[0]
            for wanted in RECALLS:
                found = _equal_recall(engines, data, truth, wanted)
                fresh = [about | row | taken[row["engine"]] | provenance(commit=commit) for row in found]
                if out is not None:
                    append_rows(Path(out), fresh)
                for line in summary(fresh):
                    say(line)
                rows += fresh
    return rows


def _built(
    data: Family, peers: Sequence[str], threads: int, seed: int, say: Callable[[str], None]
) -> tuple[dict[str, Prepared], dict[str, Row]]:
    """Return the engines, and what each one's building took of the memory."""
    clock = time.process_time if threads == 1 else time.perf_counter
    engines: dict[str, Prepared] = {}
    taken: dict[str, Row] = {}
    for peer in peers:
        try:
            warm_up(peer, data.points, threads)
            engines[peer], memory = memory_of(partial(built, peer, data.points, threads, seed, clock))
        except MissingExtra as error:
            say(f"{peer}: left out. {error}")
            continue
        engine = engines[peer].engine
        alone(engine)
        # An adapter keeps the points a second time, which its package does not ask for.
        copied = engine.points.nbytes / 2**30 if isinstance(engine, Adapter) else 0.0
        taken[peer] = {}
        if memory is not None:
            taken[peer] |= {"index_gib": round(memory.held - copied, 3), "build_gib": round(memory.peak - copied, 3)}
        say(f"{peer}: built in {engines[peer].seconds:.1f} s")
    return engines, taken


def _equal_recall(engines: dict[str, Prepared], data: Family, truth: Tensor, wanted: float) -> list[Row]:
    """Return one row per engine at one recall; without a rate where an engine does not reach it."""
    k = truth.shape[1]
    settings: dict[str, Setting] = {}
    for name, engine in engines.items():

        def recall_of(value: float, engine: Prepared = engine) -> float:
            return answered_share(engine.search(data.queries, k, value), data, truth)

        setting = least_setting(PEERS[name].values(k), recall_of, wanted)
        if setting is not None:
            settings[name] = setting
    times: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(ROUNDS):
        for name, setting in settings.items():
            start = time.process_time()
            engines[name].search(data.queries, k, setting.value)
            times[name].append(time.process_time() - start)
    rows = []
    for name, engine in engines.items():
        row: Row = {"k": k, "wanted": wanted, "engine": name, "build_seconds": round(engine.seconds, 3)}
        if name in settings:
            row |= {"knob": PEERS[name].knob, "value": settings[name].value, "recall": round(settings[name].recall, 5)}
            row["queries_per_second"] = round(len(data.queries) / statistics.median(times[name]), 1)
            if RIVAL in settings:
                row["ratio"] = round(statistics.median(b / a for a, b in zip(times[name], times[RIVAL])), 3)
            counted = engine.distances(data.queries, k, settings[name].value)
            if counted is not None:
                row["distances_per_query"] = round(counted, 1)
        rows.append(row)
    return rows


def summary(rows: Sequence[Row]) -> list[str]:
    """Return one line per family, k and recall: each engine's rate, over hnswlib's where that was measured."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        if "queries_per_second" not in row:
            word = "not reached"
        else:
            word = f"{row['queries_per_second']:.0f}/s" + (f" ({row['ratio']:.2f})" if "ratio" in row else "")
        lines.setdefault(f"{row['family']:14} k={row['k']:<3} {row['wanted']}", []).append(f"{row['engine']} {word}")
    return [f"{head}: {', '.join(words)}" for head, words in lines.items()]
