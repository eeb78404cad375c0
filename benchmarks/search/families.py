"""How do the engines compare on points of every kind: classes apart and overlapping, duplicates, heavy tails?

    python benchmarks/search/families.py --n 50000 --dim 128
    python benchmarks/search/families.py --families --features cub200.npy    # of write_features.py

Rows: results/search_families.csv. One thread, at equal recall, in turns; times are of the processor. With several sizes
after --n it shows how queries, building and memory grow; --build-threads are used by the building alone.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from nngk.experiments.bench.families import COMPARED, bench_families
from nngk.experiments.bench.points import FAMILIES, Family, family, held_out
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_families.csv")
    parser.add_argument("--n", type=int, nargs="+", default=[50_000], help="Points of each family.")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--families", nargs="*", default=[*FAMILIES, "unseen"])
    parser.add_argument(
        "--features", nargs="*", type=Path, default=[], help="Files of vectors, .npy, as more families."
    )
    parser.add_argument("--peers", nargs="+", default=list(COMPARED))
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--build-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.n, given.dim, given.k, given.families, given.peers = [600], 8, [5], ["apart"], ["fanng"]
        given.queries = 50

    def data() -> Iterator[tuple[str, Family]]:
        for n in given.n:
            for name in given.families:
                yield name, family(name, n, given.dim, given.queries, seed=given.seed)
        for path in given.features:
            x = torch.from_numpy(np.load(path, allow_pickle=False)).float()
            yield path.stem, held_out(x, given.queries, seed=given.seed)

    bench_families(
        data(),
        given.k,
        given.peers,
        given.out,
        seed=given.seed,
        build_threads=given.build_threads,
        commit=given.commit,
    )


if __name__ == "__main__":
    main()
