"""How hard a set of points is for a search through cells, told by a small sample before any work begins."""

import torch
from torch import Tensor

from nngk.search.exact import Exact

SAMPLE = 10_000  # points that stand for all: their neighbours lie as far apart as those of all points
ASKED = 500  # of them whose neighbours are found
PAIRS = 12  # of each of these with a neighbour, near and far ones, that are looked at
CELLS = 300  # around points of the sample
SHARE = 0.98  # of the neighbours that must be in the cells that are looked at


def share_to_look_at(x: Tensor, k: int, *, seed: int = 0) -> float:
    """Return the share of all cells in which points must look to find nearly all of their ``k`` nearest others.

    Tight classes need one cell in a hundred; points that fill many dimensions need a third of them. A pair is found
    where either of its points looks at the other's cell. It takes a tenth of a second.

    >>> g = torch.Generator().manual_seed(0)
    >>> flat, deep = torch.rand(5000, 2, generator=g), torch.rand(5000, 40, generator=g)
    >>> share_to_look_at(flat, 10) < 0.05 < share_to_look_at(deep, 10)
    True
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
    points = x[order.to(x.device)].detach().to("cpu", torch.float32)
    near_of = max(1, min(len(points) - 1, round(k * len(points) / len(x))))
    asked = min(ASKED, len(points))
    near = Exact(points).search(points[:asked], near_of + 1)[1][:, :: max(1, near_of // PAIRS)]
    to_cells = torch.cdist(points, points[-CELLS:])
    home = to_cells.argmin(1)
    one = torch.arange(asked)[:, None].expand_as(near)
    one, two = one[near != one], near[near != one]

    def rank(looking: Tensor, found: Tensor) -> Tensor:
        distances = to_cells[looking]
        return (distances < distances.gather(1, home[found][:, None])).sum(1)

    ranks = torch.minimum(rank(one, two), rank(two, one)).float()
    return float(ranks.quantile(SHARE)) / to_cells.shape[1]
