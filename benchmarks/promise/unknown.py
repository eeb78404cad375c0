"""Does a model tell photos of classes that it does not know from photos of those that it does?

    python benchmarks/promise/unknown.py --data DIR [--datasets flowers102 leafsnap cub200 cars196] [--seeds 0 1 2]

A fifth of the classes, another one for each seed, is held out of training. The test images of the other classes are
known, those of the held-out ones unknown. Every method reads the same features of EfficientNet-Lite0. Ours is the
unknown score that the end of 'nngk train' finds by itself. The others are the usual ones: the cosine distance from the
tenth nearest training image, the largest logit, the largest probability and the energy of logistic regression (its C by
cross-validation), and the relative Mahalanobis distance. Rows: results/promise_unknown.csv.
"""

import time
from collections.abc import Iterator

import torch
from cached import Cached, all_cached, promise_options
from logistic import cross_validated
from neighbours import nearest
from ours import described, trained
from torch import Tensor

from nngk import Model
from nngk.experiments.record import append_rows, provenance
from nngk.metrics import open_set_scores

HELD_OUT = 5  # one class of so many
NEIGHBOURS = 10


def held_out(data: Cached, seed: int) -> Tensor:
    """Return which images are of the classes that this seed holds out."""
    classes = torch.randperm(len(data.names), generator=torch.Generator().manual_seed(seed))
    return torch.isin(data.y, classes[: len(classes) // HELD_OUT].to(data.y.device))


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


Scored = dict[str, tuple[Tensor, Tensor]]  # by method, how unknown rows are and what it would call them


def scored_by(model: Model, asked: Tensor) -> Scored:
    """Return what a model says of rows."""
    seen = described(model, asked)
    return {"ours": (model.unknown(*seen), model.probabilities(seen.embeddings).argmax(1))}


def scored_by_others(data: Cached, asked: Tensor, seed: int) -> Scored:
    """Return what the usual methods say of rows, learning from all but the test images."""
    known = ~data.is_test
    x, y = data.x[known], data.y[known]
    logits = cross_validated(x, y, seed).logits(asked)
    named = logits.argmax(1)
    found = {"maximum logit": (-logits.amax(1), named)}
    found["maximum probability"] = -logits.log_softmax(1).amax(1), named
    found["energy"] = -logits.logsumexp(1), named
    cosines, places = nearest(asked, x, NEIGHBOURS)
    found["cosine k-NN"] = -cosines[:, -1], y[places[:, 0]]
    found["relative Mahalanobis"] = mahalanobis(x, y, asked)
    return found


def asked_about(data: Cached, unknown: Tensor) -> Tensor:
    """Return the test images, those of known classes before those of unknown ones."""
    return torch.cat([data.x[data.is_test & ~unknown], data.x[data.is_test & unknown]])


def figures(known: Cached, found: Scored) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield method and figures; the first rows that were scored are the test images of the known classes."""
    truth = known.y[known.is_test].cpu()
    for method, (score, named) in found.items():
        score, named = score.cpu(), named.cpu()
        values = open_set_scores(score[: len(truth)], named[: len(truth)] == truth, score[len(truth) :])
        told = {name: round(value, 5) for name, value in values.items()}
        yield method, told | {"known": len(truth), "unknown": len(score) - len(truth)}


def main() -> None:
    given = promise_options(__doc__, "results/promise_unknown.csv")
    with all_cached(given) as datasets:
        for data in datasets:
            for seed in given.seeds:
                begun = time.perf_counter()
                unknown = held_out(data, seed)
                known, asked = data.select(~unknown), asked_about(data, unknown)
                # The score is one of the network's own features: another learning rate would not change it.
                found = scored_by(trained(known, seed, tune=False), asked) | scored_by_others(known, asked, seed)
                rows = []
                for method, values in figures(known, found):
                    row = {"dataset": data.dataset, "method": method, "network": data.network, "seed": seed}
                    row |= values | {"seconds": round(time.perf_counter() - begun, 2)}
                    rows.append(row | provenance(given.device, given.commit))
                    print(f"{data.dataset:11} {method:22} seed {seed}  AUROC {values['auroc']:.4f}", flush=True)
                append_rows(given.out, rows)


if __name__ == "__main__":
    main()
