"""How do the engines compare on points of every kind: classes apart and overlapping, duplicates, heavy tails?

    python benchmarks/search/families.py --n 50000 --dim 128

Rows: results/search_families.csv. One thread; times are of the processor.
"""

from nngk.experiments.bench.families import PEERS, bench_families
from nngk.experiments.bench.points import FAMILIES
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_families.csv")
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "unseen"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.n, given.dim, given.k, given.families, given.peers = 600, 8, 5, ["apart"], ["fanng"]
    bench_families(
        given.n, given.dim, given.k, given.families, given.peers, given.out, seed=given.seed, commit=given.commit
    )


if __name__ == "__main__":
    main()
