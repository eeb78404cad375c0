"""Equation 3 for new examples: probabilities, and the centres behind them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from nngk.kernel.formulas import class_log_probabilities, log_density, log_kernels


class Neighbourhood(Protocol):
    """Centres that can be searched; every engine of ``nngk.search`` is one."""

    def __len__(self) -> int: ...

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return squared distances (n, k) and indices (n, k) of the nearest centres; -1 at infinity where none is."""
        ...


@dataclass(frozen=True)
class Prediction:
    """What the kernels around each of n examples say."""

    log_probabilities: Tensor  # (n, n_classes)
    neighbours: Tensor  # (n, k), the nearest centres, nearest first
    squared: Tensor  # (n, k), their squared distances
    shares: Tensor  # (n, k), each centre's share of all kernels: what it contributed to its class's probability
    log_density: Tensor  # (n,), the summed kernels: how familiar the place is


def answer(
    squared: Tensor, neighbours: Tensor, labels: Tensor, theta: Tensor, sigma: float, n_classes: int
) -> Prediction:
    """Return what these neighbours (n, k), at these squared distances, say; ``labels`` and ``theta`` are the centres'.

    A missing neighbour has the index -1 and an infinite distance, so that its kernel is zero. Distances are taken from
    the nearest neighbour on before they are divided by σ²: far from everything a kernel of its own would be zero, but
    the kernels' shares are not.

    >>> squared, neighbours = torch.tensor([[1e30, 2e30]]), torch.tensor([[1, 0]])
    >>> found = answer(squared, neighbours, torch.tensor([0, 1]), torch.zeros(2), sigma=1e-9, n_classes=2)
    >>> found.log_probabilities.exp(), found.log_density
    (tensor([[0., 1.]]), tensor([-inf]))
    """
    squared, neighbours = squared.to(theta.device), neighbours.to(theta.device)
    index = neighbours.clamp(min=0)
    nearest = squared.amin(1, keepdim=True)
    values = log_kernels(squared - nearest, sigma, theta[index])
    logs = class_log_probabilities(values, labels[index], n_classes)
    density = log_density(values) + log_kernels(nearest, sigma).squeeze(1)
    return Prediction(logs, neighbours, squared, values.softmax(1), density)


def predictions(
    x: Tensor,
    centres: Neighbourhood,
    labels: Tensor,
    theta: Tensor,
    sigma: float,
    k: int,
    n_classes: int,
    *,
    chunk: int = 4096,
) -> Iterator[Prediction]:
    """Classify embeddings by their ``k`` nearest centres, ``chunk`` of them at a time."""
    for part in x.split(chunk):
        yield answer(*centres.search(part, min(k, len(centres))), labels, theta, sigma, n_classes)


def predict(
    x: Tensor,
    centres: Neighbourhood,
    labels: Tensor,
    theta: Tensor,
    sigma: float,
    k: int,
    n_classes: int,
    *,
    chunk: int = 4096,
) -> Prediction:
    """Classify embeddings by their ``k`` nearest centres."""
    parts = list(predictions(x, centres, labels, theta, sigma, k, n_classes, chunk=chunk))
    return Prediction(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Prediction)))
