"""How does the time for all points' neighbour lists grow, from ten thousand points to a million?

    python benchmarks/search/growth.py --sizes 10000 30000 100000 300000 1000000 --dim 128

Rows: results/search_growth.csv, with a plot beside it; those of results/search_crossing.csv, which show where FANNG
overtakes exact search, come from the same program with more sizes.
"""

import resource

import torch
from sampled_recall import sample_recall

from nngk.errors import MissingExtra
from nngk.experiments.bench.curves import plot_growth
from nngk.experiments.bench.peers import all_pairs
from nngk.experiments.bench.points import FAMILIES, clustered_features, family
from nngk.experiments.record import append_rows, provenance, read_rows
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_growth.csv")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--family", choices=list(FAMILIES), help="Of families.py.  [default: generated features]")
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--peers", nargs="+", default=["fanng", "exact"])
    parser.add_argument("--exact-to", type=int, default=200_000, help="The largest size at which exact search runs.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.sizes, given.dim, given.k = [300, 600], 8, 5
    k = given.k
    for n in given.sizes:
        if given.family is None:
            x = clustered_features(n, given.dim, seed=given.seed)
        else:
            x = family(given.family, n, given.dim, 1, seed=given.seed).points
        for name in given.peers:
            if name == "exact" and n > given.exact_to:
                continue
            seconds, build, found = all_pairs(name, x, k, given.threads, given.seed)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            recall = sample_recall(x, found, k, given.seed)
            row = {"task": "growth", "engine": name, "k": k, "recall": round(recall, 5), "seconds": round(seconds, 3)}
            row |= {"build_seconds": round(build, 3), "peak_gib_so_far": round(peak, 2), "n": n, "dim": given.dim}
            row |= {"seed": given.seed, "threads": given.threads, "family": given.family or ""}
            append_rows(given.out, [row | provenance(commit=given.commit)])
            print(f"{name:12} n={n:>9,}: {seconds:.2f} s, recall {recall:.4f}", flush=True)
    try:
        plot_growth(read_rows(given.out), given.out.with_suffix(".png"))
    except MissingExtra as error:
        print(error)


if __name__ == "__main__":
    main()
