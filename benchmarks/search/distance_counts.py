"""How many distances does a query compute for its recall? FANNG's two searches beside faiss's HNSW.

    python benchmarks/search/distance_counts.py --n 50000 --dim 512

Counts, not seconds: they are the same on every machine. Also a FANNG with walks of the paper's success. Rows:
results/search_distances.csv, with a plot beside it where matplotlib is installed.
"""

import time
from pathlib import Path
from typing import Any

from torch import Tensor

from nngk.errors import MissingExtra
from nngk.experiments.bench.points import clustered_features
from nngk.experiments.record import append_rows, provenance, read_rows
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.search import FANNG, Exact
from nngk.search.adapters.faiss import Faiss
from nngk.search.calibration import found_share

QUERIES = 1000
POOLS = (1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
BUDGETS = (50, 100, 150, 200, 300, 500, 800, 1200, 2000, 4000)


def fanng_rows(x: Tensor, q: Tensor, truth: dict[int, Tensor], success: float | None) -> list[dict[str, Any]]:
    """Return recall and distance computations over pools and budgets; with ``success``, of a graph with more walks."""
    start = time.process_time()
    engine = FANNG(x.shape[1]) if success is None else FANNG(x.shape[1], success=success, walk_rounds=None)
    engine.build(x)
    built, about = time.process_time() - start, engine.stats()
    name = "fanng" if success is None else f"fanng, more walks ({about['walk_success']:.0%} arrive)"
    rows = []
    for k, wanted in truth.items():
        for knob, values in (("ef", [k + pool for pool in POOLS]), ("budget", list(BUDGETS))):
            for value in values:
                before = engine.stats()["distances"]
                found = engine.search(q, k, **{knob: value})[1]  # type: ignore[arg-type]
                count = (engine.stats()["distances"] - before) / len(q)
                row = {
                    "engine": name,
                    "k": k,
                    "knob": knob,
                    "value": value,
                    "recall": round(found_share(found, wanted), 5),
                }
                row |= {"distances_per_query": round(count, 1), "walk_success": round(about["walk_success"], 4)}
                rows.append(row | {"mean_degree": round(about["mean_degree"], 2), "build_cpu_seconds": round(built, 1)})
    return rows


def faiss_rows(x: Tensor, q: Tensor, truth: dict[int, Tensor]) -> list[dict[str, Any]]:
    """Return recall and distance computations of faiss's HNSW over its pools."""
    engine = Faiss(x.shape[1], "hnsw")
    engine.add(x)
    rows = []
    for k, wanted in truth.items():
        for pool in POOLS:
            engine.ef = k + pool
            engine.faiss.cvar.hnsw_stats.reset()
            found = engine.search(q, k)[1]
            count = engine.faiss.cvar.hnsw_stats.ndis / len(q)
            row = {"engine": "faiss-hnsw", "k": k, "knob": "ef", "value": k + pool}
            rows.append(row | {"recall": round(found_share(found, wanted), 5), "distances_per_query": round(count, 1)})
    return rows


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Draw recall against distance computations, with one panel per size of the data."""
    from matplotlib.figure import Figure

    sizes = sorted({(int(row["n"]), int(row["dim"])) for row in rows})
    figure = Figure(figsize=(6 * len(sizes), 4), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)
    for panel, (n, dim) in zip(panels[0], sizes):
        for engine, knob in dict.fromkeys((row["engine"], row["knob"]) for row in rows):
            line = sorted(
                (float(row["distances_per_query"]), float(row["recall"]))
                for row in rows
                if (row["engine"], row["knob"], int(row["n"]), int(row["dim"]), int(row["k"]))
                == (engine, knob, n, dim, 10)
            )
            panel.plot([d for d, _ in line], [r for _, r in line], ".-", label=f"{engine}, {knob}")
        panel.set(xlabel="distance computations per query", ylabel="recall@10", xscale="log", ylim=(0.5, 1.01))
        panel.set_title(f"{n:,} × {dim}")
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_distances.csv")
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--success", type=float, default=0.98)
    given = benchmark_options(parser)
    queries = QUERIES
    if given.quick:
        given.n, given.dim, queries = 500, 8, 50
    every = clustered_features(given.n + queries, given.dim)
    x, q = every[:-queries].contiguous(), every[-queries:].contiguous()
    truth = {k: Exact(x).search(q, k)[1] for k in given.k}
    rows = [*fanng_rows(x, q, truth, None), *fanng_rows(x, q, truth, given.success)]
    try:
        rows += faiss_rows(x, q, truth)
    except MissingExtra as error:
        print(error)
    about = {"n": given.n, "dim": given.dim} | provenance(commit=given.commit)
    append_rows(given.out, [row | about for row in rows])
    try:
        plot(read_rows(given.out), given.out.with_suffix(".png"))
    except ImportError:
        print("No plot without matplotlib: pip install 'nngk[demo]'.")


if __name__ == "__main__":
    main()
