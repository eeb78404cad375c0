"""Logistic regression, the obvious classifier of a frozen network's features, with its strength by cross-validation.

It is scikit-learn's multinomial objective, C · Σ cross-entropy + ½ ‖W‖², minimised by L-BFGS in float32, each strength
from where the last one ended: the same answers in a fraction of the time (tests/benchmarks/test_promise.py compares).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # C, for features whose every value is about one
FOLDS = 3
STEPS = 80


class Logistic:
    """Weights (channels + 1, classes), the last row the bias."""

    def __init__(self, weights: Tensor, strength: float) -> None:
        self.weights, self.strength = weights, strength

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.weights[:-1] + self.weights[-1]

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        return float((self.logits(x).argmax(1) == y).double().mean())


def fitted(
    x: Tensor, y: Tensor, strength: float, start: Tensor | None = None, steps: int = STEPS, classes: int | None = None
) -> Logistic:
    """Return the regression of labels ``y`` (n,) on ``x`` (n, channels) at one strength, from where another ended."""
    weights = x.new_zeros(x.shape[1] + 1, classes or int(y.max()) + 1) if start is None else start.clone()
    weights.requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=steps, tolerance_grad=1e-5, tolerance_change=1e-8, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(x @ weights[:-1] + weights[-1], y)
        value = value + weights[:-1].square().sum() / (2 * strength * len(x))
        value.backward()
        return value

    optimiser.step(loss)
    return Logistic(weights.detach(), strength)


def cross_validated(x: Tensor, y: Tensor, seed: int, strengths: Sequence[float] = STRENGTHS) -> Logistic:
    """Return the regression on everything at the strength that names most images of left-out folds rightly.

    Strengths are tried from the lowest on, each begun where the last one ended, until two in a row are worse than the
    best.
    """
    folds = dealt(y, FOLDS, seed)
    found: list[Tensor | None] = [None] * FOLDS
    right: dict[float, int] = {}
    start = None
    for strength in sorted(strengths):
        right[strength] = 0
        for fold in range(FOLDS):
            kept, asked = folds != fold, folds == fold
            one = fitted(x[kept], y[kept], strength, found[fold], classes=int(y.max()) + 1)
            found[fold] = one.weights
            right[strength] += int((one.logits(x[asked]).argmax(1) == y[asked]).sum())
        if right[strength] == max(right.values()):
            start = torch.stack([weights for weights in found if weights is not None]).mean(0)
        elif all(value < max(right.values()) for value in list(right.values())[-2:]):
            break
    return fitted(x, y, max(right, key=lambda strength: right[strength]), start)


def dealt(y: Tensor, folds: int, seed: int) -> Tensor:
    """Return a fold (n,) for each image, dealt out class by class in an order of chance."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    order = order[y[order].argsort(stable=True)]
    result = torch.empty_like(y)
    result[order] = torch.arange(len(y), device=y.device) % folds
    return result
