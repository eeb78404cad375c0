"""FaceNet's semi-hard triplets: which negative a positive pair is set against."""

import torch
from torch import Tensor


def semi_hard_triplets(distances: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return one triplet per positive pair: its nearest negative beyond the positive, or else the farthest negative.

    Takes squared distances (n, n) and returns anchors, positives and negatives, one of each per positive pair.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    >>> [int(t[0]) for t in semi_hard_triplets(torch.cdist(x, x), torch.tensor([0, 0, 1, 1]))]
    [0, 1, 2]
    """
    same = labels[:, None] == labels[None]
    different = ~same
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors, positives = (same & ~own & different.any(1)[:, None]).nonzero(as_tuple=True)
    rows = distances[anchors].masked_fill(~different[anchors], torch.inf)  # (pairs, n)
    farther = rows.masked_fill(rows <= distances[anchors, positives][:, None], torch.inf)
    farthest = rows.masked_fill(~different[anchors], -torch.inf).argmax(1) if len(rows) else anchors
    nearest = farther.argmin(1) if len(rows) else anchors
    semi_hard = torch.isfinite(farther).any(1)
    return anchors, positives, torch.where(semi_hard, nearest, farthest)
