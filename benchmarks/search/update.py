"""What does an update of FANNG's graph cost beside building it anew, after a small move of all points?

    python benchmarks/search/update.py --n 200000 --dim 128

Rows: results/search.csv, with the tasks 'rebuild' and 'update'.
"""

import time

import torch
from sampled_recall import sample_recall

from nngk.experiments.bench.points import clustered_features
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.search import FANNG


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search.csv")
    parser.add_argument("--n", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.n, given.dim, given.k = 600, 8, 5
    k = given.k
    x = clustered_features(given.n, given.dim, seed=given.seed)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(given.seed + 1)) / given.dim**0.5
    moved = torch.nn.functional.normalize(x + 0.05 * noise)
    rows = []
    for way in ("rebuild", "update"):
        engine = FANNG(given.dim, neighbours=max(48, k), seed=given.seed, threads=given.threads)
        if way == "update":
            engine.build(x)
            engine.all_neighbours(k)
        start = time.perf_counter()
        if way == "update":
            engine.update(moved)
        else:
            engine.build(moved)
        engine.prepare()
        made = time.perf_counter() - start
        found = engine.all_neighbours(k)[1]
        seconds = time.perf_counter() - start
        recall = sample_recall(moved, found, k, given.seed)
        row = {"task": way, "engine": "fanng", "k": k, "recall": round(recall, 5), "seconds": round(seconds, 3)}
        row |= {"build_seconds": round(made, 3), "n": given.n, "dim": given.dim}
        row |= {"seed": given.seed, "threads": given.threads}
        rows.append(row | provenance(commit=given.commit))
        print(f"{way}: graph {made:.2f} s, with the lists {seconds:.2f} s, recall {recall:.4f}", flush=True)
    print(f"update is {rows[0]['seconds'] / rows[1]['seconds']:.2f} times as fast as a rebuild")
    append_rows(given.out, rows)


if __name__ == "__main__":
    main()
