"""Embeddings on a plane: images that are neighbours lie side by side."""

import torch
from torch import Tensor

from nngk.search import Exact

DIRECTIONS = 32  # in which neighbours are looked for: the others say little, and cost much
NEIGHBOURS = 10
STEPS = 150
FEWER = 50  # where there are more than MANY images
MANY = 20_000
STRANGERS = 5  # that each image is pushed away from, at each step


@torch.no_grad()
def projected(rows: Tensor, seed: int = 0) -> Tensor:
    """Return places (m, 2) from 0 to 1: the two widest directions, in which neighbours then attract each other.

    As in UMAP, each step pulls images to their neighbours and pushes them from some others, drawn at random; the same
    rows give the same places.
    """
    m = len(rows)
    if m < 3:
        return torch.linspace(0.25, 0.75, m)[:, None].repeat(1, 2) if m else torch.zeros(0, 2)
    x = rows.detach().float().cpu()
    x = x - x.mean(0)
    vectors = torch.linalg.eigh((x.T @ x).double())[1]
    x = x @ vectors.flip(1)[:, :DIRECTIONS].float()
    if x.shape[1] < 2:
        x = torch.cat([x, torch.zeros(m, 1)], 1)
    luck = torch.Generator().manual_seed(seed)
    y = 10 * x[:, :2] / x[:, :2].std().clamp(min=1e-12) + 1e-2 * torch.randn(m, 2, generator=luck)
    near = Exact(x).all_neighbours(min(NEIGHBOURS, m - 1))[1].clamp(min=0)
    steps = STEPS if m <= MANY else FEWER
    for step in range(steps):
        rate = 1 - step / steps
        apart = y[near] - y[:, None]
        pull = (apart / (1 + apart.square().sum(2, keepdim=True))).sum(1)
        strangers = torch.randint(0, m, (m, STRANGERS), generator=luck)
        apart = y[:, None] - y[strangers]
        squared = apart.square().sum(2, keepdim=True)
        push = (apart / ((0.01 + squared) * (1 + squared))).sum(1)
        y += rate * (0.3 * pull + push).clamp(-4, 4)
    low, high = y.min(0).values, y.max(0).values
    return (y - low) / (high - low).clamp(min=1e-12)
