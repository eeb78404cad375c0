"""How should a wide embedding be cut to each size? Judged on validation classes, by which unseen birds it finds.

    python benchmarks/recipe/cuts.py --data DIR --weights DIR [--network googlenet] [--folds 0 1]

Trains our recipe wide on one half of CUB's 100 training classes, as ``variants.py`` does, then cuts the same network to
every size in every way, and looks at the other half. The test classes are never read. Rows: results/cuts.csv.
"""

import copy
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from validation_classes import begun, class_halves, scores, validated

from nngk.experiments.paper.sources import Sources
from nngk.experiments.paper.zero_shot import SIZES
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.training.feed import Features
from nngk.training.presets import metric_settings
from nngk.training.run import Run

SHOWN = ("wide", "shrinkage", "lr", "seed", "fold", "dim", "whiten", "recall@1", "map@r", "nmi")


def cuts(run: Run, sizes: list[int], shares: list[float]) -> list[dict[str, Any]]:
    """Return the figures of every size and whitening of a trained run."""
    features = Features(run.network, run.frozen)
    trained, unseen = (run.embed(part, features) for part in (run.feed.train, run.feed.val))
    rows = []
    for dim, whiten in product(sizes, shares):
        network = copy.deepcopy(run.network)
        reduce_embedding(network, trained, dim, whiten)
        assert network.head.linear is not None
        with torch.no_grad():
            x = normalize(network.head.linear(unseen), dim=1)
        found = scores(x, run.feed.val.labels, nmi_seeds=10)
        figures = {name: round(found[name], 5) for name in ("recall@1", "map@r", "nmi")}
        rows.append({"dim": dim, "whiten": whiten} | figures)
    return rows


def main() -> None:
    parser = benchmark_parser(__doc__, "results/cuts.csv")
    add_sources(parser)
    parser.add_argument("--network", default="googlenet")
    parser.add_argument("--wide", type=int, nargs="+", help="[default: 1024 2048]")
    parser.add_argument("--shrinkage", type=float, nargs="+", help="[default: 3 10]")
    parser.add_argument("--lr", type=float, nargs="+", default=[2e-5])
    parser.add_argument("--whiten", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth run from the Ith, for N programs side by side.")
    given = benchmark_options(parser)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    given.wide = given.wide or ([12] if given.quick else [1024, 2048])
    given.shrinkage = given.shrinkage or ([3.0] if given.quick else [3.0, 10.0])
    mine, shards = map(int, given.shard.split("/"))
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(given.data, given.weights, Path(home), given.quick)
        table = sources.table("cub200", "metric").where("train").compact()
        network, weights = sources.network(given.network)
        sizes = [2, 4] if given.quick else list(SIZES)
        tried = list(product(given.wide, given.shrinkage, given.lr, given.seeds, given.folds))
        for number, (wide, shrinkage, lr, seed, fold) in list(enumerate(tried))[mine::shards]:
            s = replace(metric_settings("best", wide, network), network=network, weights=weights, wide=None, whiten=0.0)
            s = replace(s, dim=wide, shrinkage=shrinkage, lr=lr, seed=101 * seed + fold, device=given.device)
            s = replace(s, cache=str(given.cache or Path(home) / "images"))
            if given.quick:
                s = replace(s, epochs=1, batch_size=8, n_neighbours=10, resize=16, crop_size=16, layers=1)
            started = time.perf_counter()
            run = begun(class_halves(table, fold), s, Path(home) / str(number))
            validated(run, s.epochs)
            seconds = round(time.perf_counter() - started, 1)
            names = {"network": network, "wide": wide, "shrinkage": shrinkage, "lr": lr, "seed": seed, "fold": fold}
            origin = {"seconds": seconds, **provenance(given.device, given.commit)}
            kept = [size for size in sizes if size <= wide]
            rows = [names | row | origin for row in cuts(run, kept, given.whiten)]
            append_rows(given.out, rows)
            for row in rows:
                print(*(row[name] for name in SHOWN), flush=True)


if __name__ == "__main__":
    main()
