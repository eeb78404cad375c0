"""The search engines against each other: queries, all pairs, growth, and the cost of an update.

python benchmarks/search.py queries --n 50000 --dim 512 --threads 1 --out results
python benchmarks/search.py pairs   --n 200000 --dim 128 --out results
python benchmarks/search.py growth  --sizes 10000 30000 100000 300000 1000000 --dim 128 --out results
python benchmarks/search.py families --n 50000 --dim 128 --out results
python benchmarks/search.py update  --n 200000 --dim 128 --out results
python benchmarks/search.py features --dataset cub200 --data-dir DIR --features cub200.npy   # of real images
python benchmarks/search.py queries --features cub200.npy --out results
"""

import argparse
import csv
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nngk.experiments.bench.curves import plot_growth
from nngk.experiments.bench.families import PEERS as FAMILY_PEERS
from nngk.experiments.bench.families import bench_families
from nngk.experiments.bench.peers import all_pairs
from nngk.experiments.bench.points import FAMILIES, clustered_features
from nngk.experiments.bench.search import append_rows, at_recall, bench_search, circumstances
from nngk.search import FANNG, Exact
from nngk.search.calibration import found_share

PEERS = ["fanng", "hnswlib", "faiss-hnsw", "faiss-ivf", "pynndescent"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["queries", "pairs", "growth", "update", "features", "families"])
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--peers", nargs="+")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    parser.add_argument(
        "--exact-to", type=int, default=200_000, help="largest size of the growth at which exact search runs"
    )
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "unseen"], help="kinds of points to measure")
    parser.add_argument("--features", type=Path, help="a .npy file of vectors in place of made ones")
    parser.add_argument("--dataset", default="cub200", help="whose images 'features' embeds")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    x = (
        torch.from_numpy(np.load(given.features, allow_pickle=False)).float()
        if given.features and given.task != "features"
        else None
    )
    if given.task == "features":
        write_features(given)
    elif given.task == "growth":
        growth(given)
    elif given.task == "update":
        update(given)
    elif given.task == "families":
        peers = given.peers or FAMILY_PEERS
        bench_families(given.n, given.dim, given.k[0], given.families, peers, given.out, seed=given.seed)
    else:
        pairs = given.task == "pairs"
        peers = given.peers or (["exact", "faiss-flat", "fanng", "pynndescent"] if pairs else PEERS)
        rows = bench_search(
            given.n,
            given.dim,
            given.k,
            peers,
            given.threads,
            given.out,
            seed=given.seed,
            x=x,
            pairs=pairs,
            queries=not pairs,
        )
        print(*(pair_ratios(rows) if pairs else query_ratios(rows, given.k)), sep="\n")


def write_features(given: argparse.Namespace) -> None:
    """Pooled, normalised features of all images of a dataset, in an order without meaning, as one .npy file."""
    from nngk.data import Images, evaluation, read_images
    from nngk.networks import create_network
    from nngk.networks.embed import embed

    table = read_images(given.dataset, data_dir=given.data_dir)
    table = table.select(np.random.default_rng(given.seed).permutation(len(table)))
    network = create_network(given.network)
    spec = network.input
    torch.set_num_threads(given.threads)
    images = Images(table, spec.resize, threads=given.threads)
    x = embed(network, images, evaluation(spec.size, spec.mean, spec.std), batch_size=32)
    given.features.parent.mkdir(parents=True, exist_ok=True)
    np.save(given.features, x.numpy(), allow_pickle=False)
    print(f"{given.features}: {tuple(x.shape)}")


def query_ratios(rows: list[dict[str, Any]], ks: list[int]) -> list[str]:
    """FANNG's queries per second over those of its peers, at equal recall."""
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
    """Exact search against faiss flat and the machine's matrix product, FANNG against exact and pynndescent."""
    by = {row["engine"]: row for row in rows}
    lines = []
    if "exact" in by:
        lines.append(f"exact: {by['exact']['gflops'] / by['exact']['sgemm_gflops']:.2f} of the matrix product's rate")
    for ours, peers in (("exact", ("faiss-flat",)), ("fanng", ("exact", "pynndescent"))):
        for peer in peers:
            if ours in by and peer in by:
                lines.append(f"{ours} is {by[peer]['seconds'] / by[ours]['seconds']:.2f} times as fast as {peer}")
    return lines


def sample_recall(x: Tensor, found: Tensor, k: int, seed: int) -> float:
    """Recall of the lists of five hundred points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:500]
    near = Exact(x).search(x[chosen], k + 1)[1]
    truth = torch.stack([row[row != own][:k] for row, own in zip(near, chosen)])
    return found_share(found[chosen], truth)


def growth(given: argparse.Namespace) -> None:
    """Seconds for the lists of all points, from ten thousand to a million."""
    k = max(given.k)
    for n in given.sizes:
        x = clustered_features(n, given.dim, seed=given.seed)
        for name in given.peers or ["fanng", "exact"]:
            if name == "exact" and n > given.exact_to:
                continue
            seconds, build, found = all_pairs(name, x, k, given.threads, given.seed)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            recall = sample_recall(x, found, k, given.seed)
            row = {"task": "growth", "engine": name, "k": k, "recall": round(recall, 5), "seconds": round(seconds, 3)}
            row |= {"build_seconds": round(build, 3), "peak_gib_so_far": round(peak, 2), "n": n, "dim": given.dim}
            append_rows(given.out / "search_growth.csv", [row | circumstances(given.threads, given.seed)])
            print(f"{name:12} n={n:>9,}: {seconds:.2f} s, recall {recall:.4f}", flush=True)
    with (given.out / "search_growth.csv").open(newline="", encoding="utf-8") as file:
        plot_growth(list(csv.DictReader(file)), given.out / "search_growth.png")


def update(given: argparse.Namespace) -> None:
    """A small move of all points, as of an epoch: updating the graph against building it anew."""
    k = max(given.k)
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
        made = time.perf_counter() - start
        found = engine.all_neighbours(k)[1]
        seconds = time.perf_counter() - start
        recall = sample_recall(moved, found, k, given.seed)
        row = {"task": way, "engine": "fanng", "k": k, "recall": round(recall, 5), "seconds": round(seconds, 3)}
        row |= {"build_seconds": round(made, 3), "n": given.n, "dim": given.dim}
        rows.append(row | circumstances(given.threads, given.seed))
        print(f"{way}: graph {made:.2f} s, with the lists {seconds:.2f} s, recall {recall:.4f}", flush=True)
    print(f"update is {rows[0]['seconds'] / rows[1]['seconds']:.2f} times as fast as a rebuild")
    append_rows(given.out / "search.csv", rows)


if __name__ == "__main__":
    main()
