"""From which size on does FANNG find the lists of all points sooner than exact search, on points of every kind?

    python benchmarks/search/lists.py --n 70000 --dim 128 --k 100 200

Rows: results/search_lists.csv, with what `choose` takes for so many points. Both are timed with the building in,
in turns.
"""

import torch
from sampled_recall import sample_recall

from nngk.experiments.bench.peers import all_pairs
from nngk.experiments.bench.points import FAMILIES, family
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.search import choose


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_lists.csv")
    parser.add_argument("--n", type=int, default=70_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--k", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "unseen"])
    parser.add_argument("--rounds", type=int, default=2, help="In which both take turns; the least time counts.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.n, given.dim, given.k, given.families, given.rounds = 600, 8, [5], ["apart"], 1
    for name in given.families:
        x = family(name, given.n, given.dim, 10, seed=given.seed).points
        for k in given.k:
            seconds: dict[str, list[float]] = {"exact": [], "fanng": []}
            for _ in range(given.rounds):
                for engine in seconds:
                    done = all_pairs(engine, x, k, given.threads, given.seed)
                    seconds[engine].append(done.seconds)
            exact, fanng = (min(taken) for taken in seconds.values())
            row = {"family": name, "n": given.n, "dim": given.dim, "k": k, "threads": given.threads, "seed": given.seed}
            row |= {"exact_seconds": round(exact, 3), "fanng_seconds": round(fanng, 3)}
            row["ratio"] = round(exact / fanng, 3)
            row["recall"] = round(sample_recall(x, done.found, k, given.seed), 4)
            row["chosen"] = choose(given.n, given.dim, k).name
            print(f"{name:14} k={k}: exact {exact:.2f} s, fanng {fanng:.2f} s ({exact / fanng:.2f} ×)", flush=True)
            append_rows(given.out, [row | provenance(commit=given.commit)])


if __name__ == "__main__":
    main()
