"""The loss over neighbour lists in which a class without a neighbour still has a small probability.

The authors' released code gives every class c with no kernel among the neighbours of an example the floor f = 1e-10
before it normalises. With P_c the sum of the kernels of class c, and A the number of classes without one, the loss is

    ln (Σ_c P_c + A f)  -  ln P_y,      with f in the place of P_y where the own class y has no neighbour.

An example without a same-class neighbour is pushed away from the others, instead of learning nothing; one that is so
far from everything that the floor outweighs its kernels is pulled to its own class alone. The weights p - q of
:mod:`nngk.kernel.formulas` no longer sum to zero, so that the x_i terms of the gradient stay:

    ∂loss/∂x_i = Σ_j (p_ij - q_ij) (c_j - x_i) / σ²

Unlike in that code, a class whose kernels underflow keeps its own value: sums are taken in log space.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nngk.kernel.formulas import list_gradients, log_kernels, poisoned, squared_distances


def floored_neighbour_loss(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    neighbours: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    n_classes: int,
    floor: float,
) -> Tensor:
    """Return the loss of each example over its list (B, K), -1 where there is none, with a floor under its classes.

    Gradients reach ``x``, ``theta`` and ``sigma``. It is made of PyTorch's own operations on every device.

    >>> x, c = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> lists, labels = torch.tensor([[0, 1]]), torch.tensor([2])
    >>> given = (x, c, torch.zeros(2), torch.tensor(1.0), lists, labels, torch.tensor([0, 1]))
    >>> floored_neighbour_loss(*given, n_classes=3, floor=0.1)  # ln((2 exp(-1/2) + 0.1) / 0.1)
    tensor([2.5749])
    """
    present = neighbours >= 0
    found = centre_labels[neighbours.clamp(min=0)].masked_fill(~present, -1)
    same = present & (found == labels[:, None])
    loss: Tensor = _FlooredLoss.apply(
        x, theta, sigma, centres, neighbours, same, n_classes - distinct(found), math.log(floor)
    )
    return loss


def distinct(labels: Tensor) -> Tensor:
    """Return how many different labels each row has, (B,); -1 is none.

    >>> distinct(torch.tensor([[2, 0, 2, -1], [-1, -1, -1, -1]]))
    tensor([2, 0])
    """
    ordered = labels.sort(1)[0]
    before = torch.cat([ordered.new_full((len(ordered), 1), -1), ordered[:, :-1]], 1)
    return ((ordered != before) & (ordered >= 0)).sum(1)


class _FlooredLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        theta: Tensor,
        sigma: Tensor,
        centres: Tensor,
        neighbours: Tensor,
        same: Tensor,
        absent: Tensor,
        log_floor: float,
    ) -> Tensor:
        squared = squared_distances(x, centres, neighbours)
        weights = theta.to(squared.dtype)[neighbours.clamp(min=0)]
        values = poisoned(log_kernels(squared, sigma.to(squared.dtype), weights), x)
        missing = absent.to(values.dtype).log()[:, None] + log_floor  # -inf where every class has a neighbour
        everything = torch.cat([values, missing], 1).logsumexp(1, keepdim=True)
        learns = same.any(1, keepdim=True)
        own_class = values.masked_fill(~same, -torch.inf)
        positives = own_class.logsumexp(1, keepdim=True).masked_fill(~learns, log_floor)
        # q is 0 without a same-class neighbour: exp(-inf - ln f). A row of NaN stays one, by its p.
        difference = (values - everything).exp() - (own_class - positives).exp()
        by_sigma = (difference * squared.masked_fill(neighbours < 0, 0)).sum(1) / sigma**3
        ctx.save_for_backward(centres, theta, sigma, neighbours, difference, by_sigma, x)
        ctx.dtype = squared.dtype  # of the sum over centres, from which the embedding's own part is taken
        return (everything - positives).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_theta, need_sigma = ctx.needs_input_grad[:3]
        *_, sigma, _, difference, _, x = ctx.saved_tensors
        grad_x, grad_theta, grad_sigma = list_gradients(ctx, grad, need_x, need_theta, need_sigma)
        if grad_x is not None:
            left = difference.sum(1, keepdim=True) * grad[:, None] / sigma.to(difference.dtype) ** 2
            grad_x = (grad_x - left * x.to(left.dtype)).to(x.dtype)
        return grad_x, grad_theta, grad_sigma, None, None, None, None, None
