"""How right class probabilities are, and how honest."""

import math
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.metrics.inputs import class_numbers, matrix


def wilson_interval(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's interval for a share that was measured on ``count`` things, of 95% where ``z`` is 1.96.

    >>> [round(end, 4) for end in wilson_interval(1.0, 10)]
    [0.7225, 1.0]
    """
    if count < 1 or not 0 <= share <= 1:
        raise InputError(f"An interval needs a share from 0 to 1 of at least one thing; got {share} of {count}.")
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def top_k_accuracy(probabilities: Any, labels: Any, k: int = 1) -> float:
    """Return the share of rows whose true class is among the ``k`` highest scores, which need not sum to one.

    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [2, 0], k=2)
    1.0
    """
    p, y = _checked(probabilities, labels)
    if not 1 <= k <= p.shape[1]:
        raise InputError(f"k must lie between 1 and the number of classes, {p.shape[1]}; got {k}.")
    right = (p.topk(k, dim=1).indices == y[:, None]).any(1)
    return float(right.double().mean())


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """Return ``Σ_b n_b/n · |accuracy - mean confidence|`` over ``bins`` of equal width of the top probability.

    >>> round(expected_calibration_error([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
    0.3
    """
    p, y = _checked(probabilities, labels)
    if bins < 1:
        raise InputError(f"The calibration error needs at least one bin, got {bins}.")
    sums = p.double().sum(1)
    if float(p.min()) < -1e-6 or float((sums - 1).abs().max()) > 1e-2:
        raise InputError(
            "The calibration error needs probabilities: rows without negative values that sum to one. "
            f"The smallest value is {float(p.min()):.3g}, rows sum to between {float(sums.min()):.3g} and "
            f"{float(sums.max()):.3g}."
        )
    confidence, predicted = p.double().max(1)
    right = (predicted == y).double()
    # Bins are closed above, as in Guo et al. (2017): a confidence of one belongs to the last.
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=p.device)[1:-1]
    bin_ = torch.bucketize(confidence, edges)
    gaps = torch.zeros(bins, dtype=torch.float64, device=p.device).index_add_(0, bin_, right - confidence)
    return float(gaps.abs().sum()) / len(p)


def classification_scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy, top-5 accuracy (of more than five classes) and calibration error of class probabilities.

    >>> classification_scores(torch.eye(2), torch.tensor([0, 1]))
    {'accuracy': 1.0, 'calibration_error': 0.0}
    """
    scores = {"accuracy": top_k_accuracy(probabilities, labels, 1)}
    if probabilities.shape[1] > 5:
        scores["top5_accuracy"] = top_k_accuracy(probabilities, labels, 5)
    scores["calibration_error"] = expected_calibration_error(probabilities, labels)
    return scores


def _checked(probabilities: Any, labels: Any) -> tuple[Tensor, Tensor]:
    p = matrix(probabilities, "Probabilities")
    y = class_numbers(labels, len(p), "probabilities", p.device)
    if int(y.min()) < 0 or int(y.max()) >= p.shape[1]:
        raise InputError(
            f"Labels must lie between 0 and {p.shape[1] - 1}, one less than the number of columns; "
            f"they reach from {int(y.min())} to {int(y.max())}."
        )
    return p, y
