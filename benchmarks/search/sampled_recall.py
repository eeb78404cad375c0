"""The recall of neighbour lists, measured on some of them."""

import torch
from torch import Tensor

from nngk.search import Exact
from nngk.search.calibration import found_share


def sample_recall(x: Tensor, found: Tensor, k: int, seed: int) -> float:
    """Return the recall of the lists of five hundred points."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:500]
    near = Exact(x).search(x[chosen], k + 1)[1]
    truth = torch.stack([row[row != own][:k] for row, own in zip(near, chosen)])
    return found_share(found[chosen], truth)
