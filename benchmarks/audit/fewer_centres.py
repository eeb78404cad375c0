"""What does a model lose whose centres are pruned ('nngk audit --prune')?

    python benchmarks/audit/fewer_centres.py --data DIR [--datasets flowers102] [--shares 0.75 0.5 0.25] [--seeds 0 1 2]

The model is the one that 'nngk train' makes by default of all but the test images, on cached features of a frozen
EfficientNet-Lite0; which centres stay is chosen on the centres' own images, each left out. The test images are looked
at once. Beside it as many centres are chosen at random. Rows: results/fewer_centres.csv.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from nngk import Model
from nngk.experiments.record import append_rows, provenance
from nngk.model.classes import Classes, keeping
from nngk.model.pruning import pruned

sys.path.append(str(Path(__file__).parents[1] / "promise"))
from accuracy import right_of_model
from cached import Cached, all_cached, promise_options
from ours import trained


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


def measure(model: Model, data: Cached, shares: list[float], seed: int) -> list[dict[str, object]]:
    """Return a row for all centres, and two for each share of them."""
    everything = model.classes
    variants = [("all", everything)]
    for share in shares:
        count = round(share * len(everything.labels))
        variants.append(("pruned", pruned(everything, model.sigma, model.n_neighbours, count)[0]))
        variants.append(("at random", at_random(everything, count, seed)))
    rows: list[dict[str, object]] = []
    for method, known in variants:
        model.classes = known
        right, chosen = right_of_model(model, data)
        centres = len(known.labels)
        row = {"dataset": data.dataset, "method": method, "seed": seed, "centres": centres}
        row |= {"share": round(centres / len(everything.labels), 3), "accuracy": round(right, 5), "asked": "test"}
        rows.append(row | {"images": int(data.is_test.sum()), "sigma": round(model.sigma, 5), "chosen": chosen})
        print(f"{data.dataset:11} seed {seed}  {method:10} {centres:6d} centres  {right:.2%}", flush=True)
    return rows


def main() -> None:
    shares = {"type": float, "nargs": "+", "default": [0.75, 0.5, 0.25]}
    given = promise_options(__doc__, "results/fewer_centres.csv", ("flowers102",), shares=shares)
    with all_cached(given) as datasets:
        for data in datasets:
            for seed in given.seeds:
                rows = measure(trained(data, seed), data, given.shares, seed)
                append_rows(given.out, [row | provenance(given.device, given.commit) for row in rows])


if __name__ == "__main__":
    main()
