"""How should a wide embedding be cut to each size? Judged on validation classes, by what unseen birds it finds.

    python benchmarks/cuts.py --data DIR --weights DIR [--network googlenet] [--folds 0 1] [--out results/cuts.csv]

Trains our recipe wide on one half of CUB's 100 training classes, as ``recipes.py`` does, then cuts the same network to
every size in every way, and looks at the other half. The test classes are never read.
"""

import argparse
import copy
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from record import append_rows, circumstances
from torch.nn.functional import normalize
from validation_runs import ResidentRun, class_block, resident_pixels, trained

from nngk.data import Split
from nngk.experiments.paper.sources import Sources
from nngk.experiments.paper.zero_shot import SIZES
from nngk.metrics import evaluate
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.training.feed import Features
from nngk.training.presets import metric_settings

SHOWN = ("wide", "shrinkage", "lr", "seed", "fold", "dim", "whiten", "recall@1", "map@r", "nmi")


def cuts(run: ResidentRun, sizes: list[int], shares: list[float]) -> list[dict[str, Any]]:
    """The figures of every size and whitening of a trained run."""
    features = Features(run.network, run.frozen)
    trained, unseen = (run.embed(part, features) for part in (run.parts.train, run.parts.val))
    labels = run.parts.val.labels.to(unseen.device)
    rows = []
    for dim, whiten in product(sizes, shares):
        network = copy.deepcopy(run.network)
        reduce_embedding(network, trained, dim, whiten)
        assert network.head.linear is not None
        with torch.no_grad():
            scores = evaluate(normalize(network.head.linear(unseen), dim=1), labels, ks=(1,))
        figures = {name: round(scores[name], 5) for name in ("recall@1", "map@r", "nmi")}
        rows.append({"dim": dim, "whiten": whiten} | figures)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CUB-200-2011 or a pack of it")
    parser.add_argument("--weights", required=True, help="the folder of the weights files")
    parser.add_argument("--network", default="googlenet")
    parser.add_argument("--wide", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--shrinkage", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--lr", type=float, nargs="+", default=[2e-5])
    parser.add_argument("--whiten", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth run from the Ith, for N programs side by side")
    parser.add_argument("--cache", type=Path, help="folder of the decoded images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit, where git is not there to ask")
    parser.add_argument("--out", type=Path, default=Path("results/cuts.csv"))
    parser.add_argument("--quick", action="store_true", help="generated pictures and a tiny network: a trial")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    mine, shards = map(int, given.shard.split("/"))
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(given.data, given.weights, Path(home), given.quick)
        table = sources.table("cub200", "metric").where("train").compact()
        pixels = resident_pixels(table, 16 if given.quick else 256, given.device, given.cache)
        places = {path: row for row, path in enumerate(table.paths)}
        network, weights = sources.network(given.network)
        facts, sizes = circumstances(given.device, given.commit), [2, 4] if given.quick else list(SIZES)
        tried = list(product(given.wide, given.shrinkage, given.lr, given.seeds, given.folds))
        for wide, shrinkage, lr, seed, fold in tried[mine::shards]:
            s = replace(metric_settings("best", wide, network), network=network, weights=weights, wide=None, whiten=0.0)
            s = replace(s, dim=wide, shrinkage=shrinkage, lr=lr, seed=101 * seed + fold, device=given.device)
            if given.quick:
                s = replace(s, epochs=1, batch_size=8, n_neighbours=10, resize=16, crop_size=16, layers=1)
            parts: Split = class_block(table, fold)
            started = time.perf_counter()
            run = ResidentRun(parts, s, Path(home), pixels, places)
            run.begin()
            trained(run, s.epochs)
            seconds = round(time.perf_counter() - started, 1)
            names = {"network": network, "wide": wide, "shrinkage": shrinkage, "lr": lr, "seed": seed, "fold": fold}
            kept = [size for size in sizes if size <= wide]
            rows = [names | row | {"seconds": seconds} | facts for row in cuts(run, kept, given.whiten)]
            append_rows(given.out, rows)
            for row in rows:
                print(*(row[name] for name in SHOWN), flush=True)


if __name__ == "__main__":
    main()
