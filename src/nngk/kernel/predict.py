"""Equation 3 for new examples: probabilities, and the centres behind them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nngk.kernel.formulas import class_log_probabilities, log_density, log_kernels
from nngk.search.engine import Engine


@dataclass(frozen=True)
class Prediction:
    """What the kernels around each of n examples say."""

    log_probabilities: Tensor  # (n, n_classes)
    neighbours: Tensor  # (n, k), the nearest centres, nearest first
    squared: Tensor  # (n, k), their squared distances
    shares: Tensor  # (n, k), each centre's share of all kernels: what it contributed to its class's probability
    log_density: Tensor  # (n,), the summed kernels: how familiar the place is


def predict(
    x: Tensor, engine: Engine, labels: Tensor, theta: Tensor, sigma: float, k: int, n_classes: int, *, chunk: int = 4096
) -> Prediction:
    """Classify embeddings by their ``k`` nearest centres, which the ``engine`` holds."""
    k = min(k, len(engine))
    parts = [_predict(part, engine, labels, theta, sigma, k, n_classes) for part in x.split(chunk)]
    return Prediction(*(torch.cat(column) for column in zip(*parts)))


def _predict(
    x: Tensor, engine: Engine, labels: Tensor, theta: Tensor, sigma: float, k: int, n_classes: int
) -> tuple[Tensor, ...]:
    squared, neighbours = engine.search(x, k)
    squared, neighbours = squared.to(theta.device), neighbours.to(theta.device)
    index = neighbours.clamp(min=0)
    values = log_kernels(squared, sigma, theta[index])
    logs = class_log_probabilities(values, labels[index], n_classes)
    return logs, neighbours, squared, values.softmax(1), log_density(values)
