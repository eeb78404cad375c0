"""How unknown an image is: its density among the kernels, compared with those of images of known classes."""

import torch
from torch import Tensor


def strangeness(density: Tensor, familiar: Tensor) -> Tensor:
    """Return the share of the ``familiar`` log densities (sorted) that are higher than each ``density``.

    Below the lowest of them the value goes on rising towards one. Without familiar densities everything is unknown.

    >>> strangeness(torch.tensor([5.0, 1.5, 0.0, -9.0]), torch.tensor([1.0, 2.0, 3.0])).mul(100).round().tolist()
    [0.0, 50.0, 93.0, 100.0]
    """
    n = len(familiar)
    if not n:
        return torch.ones_like(density)
    share = (n - torch.searchsorted(familiar, density)) / (n + 1)
    # Few images leave large steps: the distance below the lowest tells apart what their number cannot.
    beyond = (familiar[0] - density).clamp(min=0) / familiar.std(correction=0).clamp(min=1e-6)
    return torch.where(beyond > 0, 1 - torch.exp(-beyond) / (n + 1), share)
