"""Does a model tell photos of classes that it does not know from photos of those that it does?

    python benchmarks/promise/unknown.py --data DIR [--datasets flowers102 leafsnap cub200 cars196] [--seeds 0 1 2]

A fifth of the classes, another one for each seed, is held out of training. The test images of the other classes are
known, those of the held-out ones unknown. Every method reads the same features of EfficientNet-Lite0. Ours is the
unknown score that the end of 'nngk train' finds by itself. The others are the usual ones: the cosine distance from the
tenth nearest training image, the largest logit, the largest probability and the energy of logistic regression (its C by
cross-validation), and the relative Mahalanobis distance. Rows: results/promise_unknown.csv.
"""

import time

import torch
from cached import Cached, all_cached, promise_options
from logistic import cross_validated
from neighbours import nearest
from ours import described, trained
from torch import Tensor

from nngk.experiments.record import append_rows, provenance
from nngk.metrics import open_set_scores

HELD_OUT = 5  # one class of so many
NEIGHBOURS = 10


def held_out(data: Cached, seed: int) -> Tensor:
    """Return which images are of the classes that this seed holds out."""
    classes = torch.randperm(len(data.names), generator=torch.Generator().manual_seed(seed))
    return torch.isin(data.y, classes[: len(classes) // HELD_OUT])


def mahalanobis(x: Tensor, y: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relative Mahalanobis distance of rows, and the nearest class.

    It is the least distance under the spread within classes, less that under the spread of everything.
    """
    x, asked = x.double(), asked.double()
    means = torch.stack([x[y == label].mean(0) for label in range(int(y.max()) + 1)])
    within = _distances(x - means[y], asked, means)
    overall = _distances(x - x.mean(0), asked, x.mean(0, keepdim=True))
    return within.amin(1) - overall.squeeze(1), within.argmin(1)


def _distances(deviations: Tensor, asked: Tensor, means: Tensor) -> Tensor:
    spread = deviations.T @ deviations / len(deviations)
    spread.diagonal().add_(0.01 * spread.diagonal().mean())  # or it could not be inverted
    factor = torch.linalg.cholesky(spread)
    asked, means = (torch.linalg.solve_triangular(factor, rows.T, upper=False).T for rows in (asked, means))
    return torch.cdist(asked, means).square()


def scores(data: Cached, asked: Tensor, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return by method the unknown score of rows and the class that the method would call them."""
    known = ~data.is_test
    x, y = data.x[known], data.y[known]
    # The score is one of the network's own features: another learning rate would not change it.
    model = trained(data, seed, tune=False)
    seen = described(model, asked)
    found = {"ours": (model.unknown(*seen), model.probabilities(seen.embeddings).argmax(1))}
    logits = cross_validated(x, y, seed).logits(asked)
    named = logits.argmax(1)
    found["maximum logit"] = -logits.amax(1), named
    found["maximum probability"] = -logits.log_softmax(1).amax(1), named
    found["energy"] = -logits.logsumexp(1), named
    cosines, places = nearest(asked, x, NEIGHBOURS)
    found["cosine k-NN"] = -cosines[:, -1], y[places[:, 0]]
    found["relative Mahalanobis"] = mahalanobis(x, y, asked)
    return found


def main() -> None:
    given = promise_options(__doc__, "results/promise_unknown.csv")
    with all_cached(given) as datasets:
        for data in datasets:
            for seed in given.seeds:
                begun = time.perf_counter()
                unknown = held_out(data, seed)
                asked = torch.cat([data.x[data.is_test & ~unknown], data.x[data.is_test & unknown]])
                known = data.select(~unknown)
                truth = known.y[known.is_test]
                rows = []
                for method, (score, named) in scores(known, asked, seed).items():
                    values = open_set_scores(score[: len(truth)], named[: len(truth)] == truth, score[len(truth) :])
                    row = {"dataset": data.dataset, "method": method, "network": data.network, "seed": seed}
                    row |= {name: round(value, 5) for name, value in values.items()}
                    row |= {"known": len(truth), "unknown": len(asked) - len(truth)}
                    row |= {"seconds": round(time.perf_counter() - begun, 2)}
                    rows.append(row | provenance("cpu", given.commit))
                    print(f"{data.dataset:11} {method:22} seed {seed}  AUROC {values['auroc']:.4f}", flush=True)
                append_rows(given.out, rows)


if __name__ == "__main__":
    main()
