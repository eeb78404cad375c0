"""Cosine k-NN, its number of neighbours chosen by leave-one-out."""

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = (1, 3, 5, 10, 20)


def votes(near: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the summed similarities (n, classes) of neighbours with these similarities and labels (n, k)."""
    return near.new_zeros(len(near), classes).scatter_add_(1, labels, near.clamp(min=0))


def nearest(asked: Tensor, known: Tensor, k: int, *, itself: bool = False) -> tuple[Tensor, Tensor]:
    """Return the cosines and the places (n, k) of the most similar rows; ``itself`` leaves out each row's own place."""
    near, places = [], []
    known = F.normalize(known)
    for start, part in zip(range(0, len(asked), 2048), F.normalize(asked).split(2048)):
        cosines = part @ known.T
        if itself:
            own = torch.arange(len(part), device=part.device)
            cosines[own, start + own] = -torch.inf
        top = cosines.topk(min(k, len(known) - itself), 1)
        near.append(top.values)
        places.append(top.indices)
    return torch.cat(near), torch.cat(places)


def accuracy(x: Tensor, y: Tensor, asked: Tensor, truth: Tensor) -> tuple[float, int]:
    """Return the share of rows named rightly, and the number of neighbours that leave-one-out chose."""
    classes = int(y.max()) + 1
    near, places = nearest(x, x, max(NEIGHBOURS), itself=True)
    right = {k: int((votes(near[:, :k], y[places[:, :k]], classes).argmax(1) == y).sum()) for k in NEIGHBOURS}
    k = max(right, key=lambda k: right[k])
    near, places = nearest(asked, x, k)
    return float((votes(near, y[places], classes).argmax(1) == truth).double().mean()), k
