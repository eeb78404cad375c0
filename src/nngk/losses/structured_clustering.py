"""Structured clustering by facility location (Song, Jegelka, Rathod and Murphy, CVPR 2017)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from nngk.losses import samplers
from nngk.losses.objective import BatchLoss

# A swap must gain more than rounding does.
GAIN = 1e-6


class Clustering(BatchLoss):
    """Structured clustering: no clustering of the batch may score better than the true one, by a margin of its error.

    Equation, for unit-length embeddings with Euclidean distances d and C classes in the batch:

        F(S)  = -Σ_i min_{j ∈ S} d(x_i, x_j)                     facility location with medoids S
        F̃(y)  = Σ_c max_{j ∈ c} -Σ_{i ∈ c} d(x_i, x_j)           the best medoid of every true class
        Δ(S)  = 1 - NMI(clusters of S, y)                        how wrong the clusters of S are
        L     = max(0, max_{|S| = C} [F(S) + γ Δ(S)] - F̃(y))

    Notes: the inner maximum is found by adding the best medoid C times (greedy) and then by swapping single medoids
    while that helps (partitioning around medoids), at most five rounds, from several first medoids; every candidate of
    a step is scored at once. The gradient runs through the distances to the chosen medoids only; Δ is constant in the
    embeddings. A medoid always belongs to itself.

    Paper's settings: distances not squared, batches of 128, 64 dimensions; γ starts at 1 and is multiplied by
    0.94 after every epoch.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> float(Clustering()(x, torch.tensor([0, 0, 1, 1])))
    0.0
    """

    name = "clustering"
    sampler = staticmethod(samplers.per_class(4))
    epoch: Tensor

    def __init__(self, *, gamma: float = 1.0, decay: float = 0.94, rounds: int = 5, starts: int = 4) -> None:
        super().__init__()
        self.gamma = gamma
        self.decay = decay
        self.rounds = rounds
        self.starts = starts
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor] | None = None) -> None:
        self.epoch.fill_(epoch)

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        y = labels.unique(return_inverse=True)[1]
        gamma = self.gamma * self.decay ** int(self.epoch)
        with torch.no_grad():
            distances = torch.linalg.vector_norm(x[:, None] - x[None], dim=2)
            medoids = best_medoids(distances, y, gamma, self.rounds, self.starts)
            clusters = assign(distances, medoids)
            error = 1 - _nmi(_contingency(clusters, y).to(x.dtype))
            right = class_medoids(distances, y)
        to_chosen = torch.linalg.vector_norm(x - x[medoids[clusters]], dim=1).sum()
        to_right = torch.linalg.vector_norm(x - x[right[y]], dim=1).sum()
        return torch.relu(-to_chosen + gamma * error + to_right)


def class_medoids(distances: Tensor, y: Tensor) -> Tensor:
    """Return the member of every class with the least sum of distances to its class (C,)."""
    same = y[:, None] == y[None]
    within = (distances * same).sum(0)
    own = functional.one_hot(y).bool()  # (n, C)
    return within[:, None].masked_fill(~own, torch.inf).argmin(0)


def best_medoids(distances: Tensor, y: Tensor, gamma: float, rounds: int, starts: int = 4) -> Tensor:
    """Return one medoid per class that together maximise ``F + γ Δ``: added greedily, then swapped for some ``rounds``.

    Both are done from each of the ``starts`` best first medoids, side by side; the best of them is the greedy choice.
    """
    gaps = distances.clone().fill_diagonal_(-1)  # below every distance: a medoid belongs to itself
    classes = int(y.max()) + 1
    nothing = torch.empty(1, 0, dtype=torch.long, device=y.device)
    value, first = scores_with(gaps, y, classes, nothing, gamma)[0].topk(min(starts, len(gaps)))
    medoids = first[:, None]  # (starts, medoids)
    for _ in range(1, classes):
        value, added = scores_with(gaps, y, classes, medoids, gamma).max(1)
        medoids = torch.cat([medoids, added[:, None]], dim=1)
    for _ in range(rounds):
        before = value
        for slot in range(classes):
            others = torch.cat([medoids[:, :slot], medoids[:, slot + 1 :]], dim=1)
            best, swapped = scores_with(gaps, y, classes, others, gamma).max(1)
            better = best > value + GAIN
            # Without a branch a GPU need not wait for the answer.
            medoids[:, slot] = torch.where(better, swapped, medoids[:, slot])
            value = torch.where(better, best, value)
        if not bool((value > before).any()):
            break
    return medoids[value.argmax()]


def scores_with(gaps: Tensor, y: Tensor, classes: int, medoids: Tensor, gamma: float) -> Tensor:
    """Return ``F + γ Δ`` of each row of ``medoids`` (r, k) with each point added in turn (r, n); -∞ for its members."""
    n, (r, k) = len(gaps), medoids.shape
    near, slot = gaps.new_full((r, n), torch.inf), torch.zeros(r, n, dtype=torch.long, device=y.device)
    if k:
        near, slot = gaps[medoids].min(1)
    cost = torch.minimum(near[:, :, None], gaps).clamp(min=0).sum(1)
    takes = (gaps < near[:, :, None]).to(gaps.dtype).mT  # (r, candidate, point): the point would go over to it
    membership = functional.one_hot(y, classes).to(gaps.dtype)
    cells = functional.one_hot(slot * classes + y, max(1, k) * classes).to(gaps.dtype)
    kept = (cells.sum(1, keepdim=True) - takes @ cells).view(r, n, max(1, k), classes)
    table = torch.cat([kept, (takes @ membership)[:, :, None]], dim=2)  # (r, candidates, clusters, classes)
    scores = -cost + gamma * (1 - _nmi(table))
    return scores.scatter(1, medoids, -torch.inf)


def assign(distances: Tensor, medoids: Tensor) -> Tensor:
    """Return the position in ``medoids`` of every point's nearest one (n,)."""
    return distances.clone().fill_diagonal_(-1)[:, medoids].argmin(1)


def _contingency(clusters: Tensor, y: Tensor) -> Tensor:
    classes = int(y.max()) + 1
    counts = torch.bincount(clusters * classes + y, minlength=classes * classes)
    return counts.view(classes, classes)


def _nmi(table: Tensor) -> Tensor:
    """Return the NMI of contingency tables (…, clusters, classes), arithmetic mean; 1 where neither side is divided."""
    p = table / table.sum((-2, -1), keepdim=True)
    entropy = _entropy(p.sum(-1)) + _entropy(p.sum(-2))
    shared = entropy - _entropy(p.flatten(-2))
    return torch.where(entropy > 0, 2 * shared / entropy.clamp(min=1e-12), 1.0).clamp(0, 1)


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(-1)
