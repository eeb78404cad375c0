"""Search engines side by side on points of every kind."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nngk.experiments.bench.points import FAMILIES, Family, family
from nngk.experiments.bench.search import Row, at_recall, sweep
from nngk.experiments.record import append_rows, provenance
from nngk.search.exact import Exact

PEERS = ("fanng", "hnswlib", "faiss-hnsw", "faiss-hnsw-sq8", "pynndescent")
TIE = 1e-5  # relative difference of squared distances below which rounding decides


def answered_share(found: Tensor, data: Family, truth: Tensor) -> float:
    """Return the share of true neighbours that was found, where any of equally far points is as good as another.

    ``found`` are indices (n, k) and ``truth`` the exact squared distances (n, k).
    """
    near = data.points[found.clamp(min=0)]
    distances = (near - data.queries[:, None]).square().sum(2).masked_fill(found < 0, torch.inf)
    limit = truth[:, -1:] * (1 + TIE) + 1e-12 * data.queries.square().sum(1, keepdim=True)
    return float((distances <= limit).float().mean())


def bench_families(
    n: int = 50_000,
    dim: int = 128,
    k: int = 10,
    names: Sequence[str] = (*FAMILIES, "unseen"),
    peers: Sequence[str] = PEERS,
    out: str | Path | None = None,
    *,
    queries: int = 1000,
    seed: int = 0,
    commit: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Sweep engines over every family with one thread; return the rows and, with ``out``, add them to that CSV file.

    Times are of the processor, so that other work on the machine changes them little. ``commit`` is that of the source,
    where git is not there to ask.

    >>> rows = bench_families(600, 8, 5, ["apart"], ["fanng"], queries=50, say=lambda line: None)
    >>> rows[-1]["recall"] > 0.9
    True
    """
    rows: list[Row] = []
    for name in names:
        data = family(name, n, dim, queries, seed=seed)
        truth = Exact(data.points).search(data.queries, k)[0]
        about = provenance(commit=commit) | {"seed": seed, "threads": 1, "family": name, "n": n, "dim": dim}

        def share(found: Tensor, wanted: Tensor, data: Family = data) -> float:
            return answered_share(found, data, wanted)

        fresh: list[Row] = []
        for peer in peers:
            fresh += sweep(peer, data.points, data.queries, {k: truth}, 1, seed, about, lambda line: None, share)
        if out is not None:
            append_rows(Path(out), fresh)
        for line in ratios(fresh, k):
            say(f"{name:14} {line}")
        rows += fresh
    return rows


def ratios(rows: Sequence[Row], k: int) -> list[str]:
    """Return FANNG's queries per second over those of each peer at two recalls, and its speed of building."""
    engines = {row["engine"]: row for row in rows}
    lines = []
    for peer in engines:
        if peer == "fanng" or "fanng" not in engines:
            continue
        words = []
        for recall in (0.95, 0.99):
            ours, theirs = (at_recall(list(rows), name, k, recall) for name in ("fanng", peer))
            ratio = f"{ours / theirs:.2f}" if ours and theirs else "-"
            words.append(f"{recall}: {ratio} ({ours or 0:.0f}/{theirs or 0:.0f} per second)")
        built = engines[peer]["build_seconds"] / engines["fanng"]["build_seconds"]
        lines.append(f"over {peer:15} {'  '.join(words)}  build {built:.2f}")
    return lines
