"""Random problems for the fused losses, and the eager losses that they stand beside."""

from typing import Any

import torch
from measure import DEVICE
from torch import Tensor

from nngk.kernel import formulas


def problem(n: int, m: int, k: int, dim: int, sigma: float, dtype: torch.dtype, classes: int = 10) -> list[Tensor]:
    """Return x, centres, θ, σ, neighbours, labels, labels of the centres and own rows, in the order of the losses."""
    x = torch.randn(n, dim, device=DEVICE)
    centres = torch.randn(m, dim, device=DEVICE)
    neighbours = torch.randint(0, m, (n, k), device=DEVICE)
    own = neighbours[:, k // 2].clone()
    neighbours[:, -1] = torch.where(torch.arange(n, device=DEVICE) % 3 == 0, -1, neighbours[:, -1])
    labels, centre_labels = (torch.randint(0, classes, (size,), device=DEVICE) for size in (n, m))
    theta = torch.randn(m, device=DEVICE) * 0.5
    width = torch.tensor(sigma, device=DEVICE)
    return [x.to(dtype), centres.to(dtype), theta, width, neighbours, labels, centre_labels, own]


def gradients(loss: Any, given: list[Tensor], outer: Tensor, wide: bool, centres: bool = False) -> list[Tensor]:
    """Return the value of a loss and the gradients of its inputs; ``wide`` computes them in float64."""
    leaves = [t.detach().clone() for t in given[:4]]
    leaves = [t.double() if wide else t for t in leaves]
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i != 1 or centres)
    value = loss(*leaves, *given[4:])
    value = value[0] if isinstance(value, tuple) else value
    value.backward(outer.to(value.dtype))
    return [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def eager_lists(x: Tensor, c: Tensor, theta: Tensor, sigma: Tensor, *ids: Tensor) -> Tensor:
    """Return the eager loss, with the masks that it needs built around it."""
    neighbours, labels, centre_labels, own = ids
    present = (neighbours >= 0) & (neighbours != own[:, None])
    same = present & (centre_labels[neighbours.clamp(min=0)] == labels[:, None])
    return formulas.neighbour_loss(x, c, theta, sigma, neighbours.masked_fill(~present, -1), same)


def gather_lists(x: Tensor, c: Tensor, theta: Tensor, sigma: Tensor, *ids: Tensor) -> Tensor:
    """Return the loss computed the usual way: gather a (batch, neighbours, dim) tensor and let autograd keep it."""
    neighbours, labels, centre_labels, own = ids
    index = neighbours.clamp(min=0)
    present = (neighbours >= 0) & (neighbours != own[:, None])
    same = present & (centre_labels[index] == labels[:, None])
    squared = (x.float()[:, None] - c[index].float()).square().sum(2)
    values = (theta[index] - squared / (2 * sigma**2)).masked_fill(~present, -torch.inf)
    return values.logsumexp(1) - values.masked_fill(~same, -torch.inf).logsumexp(1)
