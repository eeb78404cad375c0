"""Which search engine answers queries fastest at equal recall, and which finds all points' neighbours first?

    python benchmarks/search/engines.py queries --n 50000 --dim 512 --threads 1
    python benchmarks/search/engines.py pairs --n 200000 --dim 128
    python benchmarks/search/engines.py queries --features cub200.npy    # of write_features.py

Rows: results/search.csv, with a plot search_{n}x{dim}.png beside it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nngk.errors import MissingExtra
from nngk.experiments.bench.curves import plot_queries
from nngk.experiments.bench.search import at_recall, bench_search
from nngk.experiments.record import append_rows
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

PEERS = {
    "queries": ["fanng", "hnswlib", "faiss-hnsw", "faiss-ivf", "pynndescent"],
    "pairs": ["exact", "faiss-flat", "fanng", "pynndescent"],
}


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search.csv")
    parser.add_argument("task", choices=list(PEERS))
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--peers", nargs="+")
    parser.add_argument("--features", type=Path, help="A .npy file of vectors in place of generated ones.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.n, given.dim, given.k, given.peers = 1000, 8, [5], given.peers or ["exact", "fanng"]
    x = None if given.features is None else torch.from_numpy(np.load(given.features, allow_pickle=False)).float()
    rows = bench_search(
        given.n,
        given.dim,
        given.k,
        given.peers or PEERS[given.task],
        given.threads,
        seed=given.seed,
        x=x,
        pairs=given.task == "pairs",
        queries=given.task == "queries",
    )
    # Where git is not there to ask, the commit was given.
    append_rows(given.out, [row | ({"commit": given.commit} if given.commit else {}) for row in rows])
    try:
        plot_queries(rows, given.out.with_name(f"search_{rows[0]['n']}x{rows[0]['dim']}.png"))
    except MissingExtra as error:
        print(error)
    print(*(pair_ratios(rows) if given.task == "pairs" else query_ratios(rows, given.k)), sep="\n")


def query_ratios(rows: list[dict[str, Any]], ks: list[int]) -> list[str]:
    """Return FANNG's queries per second over those of its peers, at equal recall."""
    lines = []
    for k in ks:
        for recall in (0.95, 0.99):
            ours = at_recall(rows, "fanng", k, recall)
            for peer in dict.fromkeys(row["engine"] for row in rows):
                theirs = at_recall(rows, peer, k, recall)
                if peer != "fanng" and ours and theirs:
                    lines.append(
                        f"k={k} recall {recall}: fanng {ours:.0f}/s, {peer} {theirs:.0f}/s, ratio {ours / theirs:.2f}"
                    )
    return lines


def pair_ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Return exact search against faiss flat and the matrix product, and FANNG against exact and pynndescent."""
    by = {row["engine"]: row for row in rows}
    lines = []
    if "exact" in by:
        lines.append(f"exact: {by['exact']['gflops'] / by['exact']['sgemm_gflops']:.2f} of the matrix product's rate")
    for ours, peers in (("exact", ("faiss-flat",)), ("fanng", ("exact", "pynndescent"))):
        for peer in peers:
            if ours in by and peer in by:
                lines.append(f"{ours} is {by[peer]['seconds'] / by[ours]['seconds']:.2f} times as fast as {peer}")
    return lines


if __name__ == "__main__":
    main()
