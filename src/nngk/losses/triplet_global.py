"""Triplet + global loss (Kumar, Carneiro and Reid, CVPR 2016)."""

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.losses import samplers
from nngk.losses.objective import BatchLoss


def triplet_ratio(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Return ``max(0, 1 - |a - n| / (|a - p| + margin))`` per triplet: 0 once the negative is ``margin`` farther."""
    to_positive = torch.linalg.vector_norm(anchors - positives, dim=1)
    to_negative = torch.linalg.vector_norm(anchors - negatives, dim=1)
    return torch.relu(1 - to_negative / (to_positive + margin))


def global_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, global_margin: float, mean_weight: float
) -> Tensor:
    """Return ``var(d⁺) + var(d⁻) + λ max(0, mean d⁺ - mean d⁻ + t)`` with squared distances over four."""
    matching = (anchors - positives).square().sum(1) / 4
    other = (anchors - negatives).square().sum(1) / 4
    hinge = torch.relu(matching.mean() - other.mean() + global_margin)
    return matching.var(correction=0) + other.var(correction=0) + mean_weight * hinge


class TripletGlobal(BatchLoss):
    """Triplet loss plus a loss on the distributions of matching and other distances over the batch.

    Equation, for unit-length embeddings and triplets i of the batch:

        d⁺_i = |a_i - p_i|² / 4,   d⁻_i = |a_i - n_i|² / 4
        J_global  = var(d⁺) + var(d⁻) + λ max(0, mean(d⁺) - mean(d⁻) + t)
        J_triplet = mean_i max(0, 1 - |a_i - n_i| / (|a_i - p_i| + m))
        J = J_global + γ J_triplet

    Notes: variances are the population's. The triplet term is the mean over the batch, so that γ means the same at
    every batch size. A batch is anchor, positive, negative, anchor, …, as the triplet sampler gives it.

    Paper's settings: λ = 0.8 (``mean_weight``), t = 0.4 (``global_margin``), m = 0.01 (``margin``), γ = 1
    (``triplet_weight``); random triplets, SGD at 0.1 halved every three epochs, 64 dimensions.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> float(TripletGlobal()(x, torch.tensor([0, 0, 1])))
    0.0
    """

    name = "triplet-global"
    sampler = staticmethod(samplers.triplets)

    def __init__(
        self,
        *,
        margin: float = 0.01,
        global_margin: float = 0.4,
        mean_weight: float = 0.8,
        triplet_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.margin = margin
        self.global_margin = global_margin
        self.mean_weight = mean_weight
        self.triplet_weight = triplet_weight

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        triplet = as_triplets(x, labels, self.name)
        ratios = triplet_ratio(*triplet, self.margin)
        self.observe(ratios.detach())
        return self.triplet_weight * ratios.mean() + global_loss(*triplet, self.global_margin, self.mean_weight)

    def observe(self, ratios: Tensor) -> None:
        """Take in a batch's triplet terms (t,); smart mining counts those above zero."""


def as_triplets(x: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors, positives and negatives of a batch that lists them one after the other."""
    if not len(x) or len(x) % 3:
        raise InputError(f"The loss '{name}' needs batches of anchor, positive, negative, …; got {len(x)} rows.")
    a, p, n = labels.view(-1, 3).T
    if not bool(((a == p) & (a != n)).all()):
        raise InputError(
            f"The loss '{name}' needs batches of anchor, positive, negative, …, but the labels of a batch do not "
            "match, match, differ. Take the batches from the loss's own sampler."
        )
    return x[0::3], x[1::3], x[2::3]
