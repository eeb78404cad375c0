"""What does a model lose whose centres are pruned ('nngk audit --prune')?

    python benchmarks/audit/fewer_centres.py --data DIR [--datasets flowers102] [--shares 0.75 0.5 0.25]

The embedding is the discriminant of the frozen features of EfficientNet-Lite0 that 'nngk train' starts from, σ and the
centres that stay are chosen on the centres' own images, each left out; the others are looked at once.
Beside it the same number of centres is chosen at random. Rows: results/fewer_centres.csv.
"""

from dataclasses import replace
from pathlib import Path

import torch
from frozen_features import frozen_features, generated_features
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import leave_one_out_sigma
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.kernel.predict import predict
from nngk.model.classes import Classes, keeping
from nngk.model.pruning import pruned
from nngk.networks.embedding_layer.discriminant import discriminant

DIM, NEIGHBOURS = 512, 100


def accuracy(known: Classes, sigma: float, x: Tensor, labels: Tensor) -> float:
    """Return the share of new images that the centres name rightly."""
    found = predict(x, known.engine, known.labels, known.theta, sigma, NEIGHBOURS, len(known.names))
    return float((found.log_probabilities.argmax(1) == labels).double().mean())


def at_random(known: Classes, count: int, seed: int) -> Classes:
    """Return as many centres, two or more of each class, whatever they are; a class weighs what it did."""
    order = torch.randperm(len(known.labels), generator=torch.Generator().manual_seed(seed))
    ranks = torch.empty_like(known.labels)
    for label in known.labels.unique():
        mine = order[known.labels[order] == label]
        ranks[mine] = torch.arange(len(mine))
    first = torch.where(ranks < 2, -1, torch.empty_like(order).scatter_(0, order, torch.arange(len(order))))
    left = torch.zeros(len(order), dtype=torch.bool)
    left[first.argsort(stable=True)[:count]] = True
    kept = keeping(known, left)
    shares = torch.bincount(known.labels) / torch.bincount(kept.labels)
    return replace(kept, theta=kept.theta + shares.log()[kept.labels])


def main() -> None:
    parser = benchmark_parser(__doc__, "results/fewer_centres.csv")
    parser.add_argument("--data", type=Path, help="The folder that holds the datasets.")
    parser.add_argument("--datasets", nargs="+", default=["flowers102"])
    parser.add_argument("--features", type=Path, default=Path("runs/audit"), help="Keep features in this folder.")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.75, 0.5, 0.25])
    parser.add_argument("--centres", nargs="+", default=["train", "val"], help="The parts whose images are centres.")
    parser.add_argument("--asked", default="test", help="The part that is measured on.")
    given = benchmark_options(parser)
    for dataset in ["generated"] if given.quick else given.datasets:
        if given.quick:
            x, labels = generated_features()
            train = torch.arange(len(x)) % 3 > 0
            (x, y), (new, asked) = (x[train], labels[train]), (x[~train], labels[~train])
        else:
            x, y = frozen_features(dataset, given.data, given.features, tuple(given.centres))
            new, asked = frozen_features(dataset, given.data, given.features, (given.asked,))
        x, new = (layer_norm(rows, rows.shape[1:]) for rows in (x, new))
        directions, middle = discriminant(x, y, min(DIM, x.shape[1])), x.mean(0)
        centres, queries = (normalize((rows - middle) @ directions) for rows in (x, new))
        bank = CentreBank(y, centres.shape[1], NEIGHBOURS)
        bank.renew(centres)
        sigma = leave_one_out_sigma(bank)
        names = [str(label) for label in range(int(y.max()) + 1)]
        everything = Classes(names, centres, y, torch.zeros(len(y)), [str(i) for i in range(len(y))])
        rows = [("all", 0, everything)]
        for share in given.shares:
            count = round(share * len(y))
            rows.append(("pruned", 0, pruned(everything, sigma, NEIGHBOURS, count)[0]))
            rows += [("at random", seed, at_random(everything, count, seed)) for seed in range(3)]
        for method, seed, known in rows:
            right = accuracy(known, sigma, queries, asked)
            row = {"dataset": dataset, "method": method, "seed": seed, "centres": len(known.labels)}
            row |= {
                "share": round(len(known.labels) / len(y), 3),
                "accuracy": round(right, 5),
                "asked": given.asked,
                "images": len(new),
            }
            append_rows(given.out, [row | {"sigma": round(sigma, 5)} | provenance("cpu", given.commit)])
            print(f"{dataset:11} {method:10} {len(known.labels):6d} centres  {right:.2%}", flush=True)


if __name__ == "__main__":
    main()
