"""Are planted label errors found at least as well as by a softmax's loss and by cleanlab's confident learning?

    python benchmarks/audit/label_errors.py --data DIR [--datasets flowers102 cars196] [--seeds 0 1 2]

One label in twenty of the training images is replaced by another. All methods read the same features of a frozen
EfficientNet-Lite0 and rank the images; the figure is the average precision with which the planted errors come first.

- audit: 'nngk audit' on those features, each image judged by others alone (nngk.model.second_look).
- softmax: the loss of a multinomial logistic regression that was trained on all images, the judged one among them.
- softmax, left out: its loss on folds that it was not trained on (five, which cleanlab gets too).
- cleanlab: confident learning on those left-out probabilities; the issues it finds come first, by self-confidence.

C is chosen by the loss on those folds. Rows: results/label_errors.csv.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm

from nngk.experiments.record import append_rows, provenance
from nngk.model.second_look import second_look

sys.path.append(str(Path(__file__).parents[1] / "promise"))
from cached import all_cached, promise_options

SHARE = 0.05
FOLDS = 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of logistic regression, C


def planted(labels: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return labels of which some are wrong, and which."""
    luck = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=luck)[: round(SHARE * len(labels))]
    wrong, given = torch.zeros(len(labels), dtype=torch.bool), labels.clone()
    wrong[chosen] = True
    given[chosen] = (labels[chosen] + torch.randint(1, classes, (len(chosen),), generator=luck)) % classes
    return given, wrong


def regressions(x: Tensor, labels: Tensor, classes: int, steps: int = 60) -> dict[float, Tensor]:
    """Return the weights (channels + 1, classes) of a multinomial logistic regression for each C, by L-BFGS."""
    weights, out = x.new_zeros(x.shape[1] + 1, classes), {}
    for strength in STRENGTHS:  # each begins where the last one ended
        weights = weights.clone().requires_grad_(True)
        optimiser = torch.optim.LBFGS([weights], max_iter=steps, tolerance_change=1e-7, line_search_fn="strong_wolfe")

        def loss(
            weights: Tensor = weights, strength: float = strength, optimiser: torch.optim.LBFGS = optimiser
        ) -> Tensor:
            optimiser.zero_grad()
            penalty = weights[:-1].square().sum() / (2 * strength * len(x))
            value = cross_entropy(x @ weights[:-1] + weights[-1], labels) + penalty
            value.backward()
            return value

        optimiser.step(loss)
        weights = weights.detach()
        out[strength] = weights
    return out


def softmax(x: Tensor, labels: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """Return the log-probabilities (n, classes) of left-out images, those of trained ones, and C."""
    left_out = {strength: x.new_zeros(len(x), classes) for strength in STRENGTHS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes with fewer images than folds
        folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x.cpu(), labels.cpu()))
    for train, held in folds:
        for strength, weights in regressions(x[train], labels[train], classes).items():
            left_out[strength][held] = (x[held] @ weights[:-1] + weights[-1]).log_softmax(1)
    best = min(STRENGTHS, key=lambda strength: float(cross_entropy(left_out[strength], labels)))
    weights = regressions(x, labels, classes)[best]
    return left_out[best], (x @ weights[:-1] + weights[-1]).log_softmax(1), best


def confident(labels: Tensor, logs: Tensor) -> np.ndarray:
    """Return how doubtful each label is to cleanlab: the issues it finds first, then the rest."""
    given, p = labels.cpu().numpy(), logs.double().exp().cpu().numpy()
    p = p / p.sum(1, keepdims=True)
    return find_label_issues(given, p, n_jobs=1) - get_label_quality_scores(given, p)


def doubts(x: Tensor, given: Tensor, classes: int, seed: int) -> dict[str, tuple[np.ndarray, float, str]]:
    """Return how doubtful each label is to each method, with its seconds and what it chose."""
    begun = time.perf_counter()
    ours = -second_look(x, given, classes).own.cpu().numpy()
    found = {"audit": (ours, time.perf_counter() - begun, "")}
    begun = time.perf_counter()
    left_out, trained, strength = softmax(layer_norm(x, x.shape[1:]), given, classes, seed)
    seconds, chosen = time.perf_counter() - begun, f"C={strength:g}"
    for name, logs in (("softmax", trained), ("softmax, left out", left_out)):
        found[name] = (-logs.gather(1, given[:, None])[:, 0].cpu().numpy(), seconds, chosen)
    found["cleanlab"] = (confident(given, left_out), seconds, chosen)
    return found


def main() -> None:
    given = promise_options(__doc__, "results/label_errors.csv", ("flowers102", "cars196"))
    with all_cached(given) as datasets:
        for data in datasets:
            data = data.select(~data.is_test)
            classes = len(data.names)
            for seed in given.seeds:
                told, wrong = planted(data.y.cpu(), classes, seed)
                for method, (doubt, seconds, chosen) in doubts(data.x, told.to(given.device), classes, seed).items():
                    precision = average_precision_score(wrong.numpy(), doubt)
                    row = {"dataset": data.dataset, "method": method, "network": data.network, "seed": seed}
                    row |= {"images": len(told), "errors": int(wrong.sum())}
                    row |= {"average_precision": round(float(precision), 5)}
                    row |= {"chosen": chosen, "seconds": round(seconds, 1)}
                    append_rows(given.out, [row | provenance(given.device, given.commit)])
                    print(f"{data.dataset:11} seed {seed}  {method:18} {precision:.4f}", flush=True)


if __name__ == "__main__":
    main()
