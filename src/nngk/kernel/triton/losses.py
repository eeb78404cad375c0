"""The losses of ``nngk.kernel`` fused for a GPU.

Triton is imported when a fused loss is first computed, and only then: ``nngk.accel.usable`` says whether it can be.
Elsewhere the functions here give the eager answer, so that they may be called with any tensors.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from nngk.accel import device_of, interpreted, usable
from nngk.errors import InputError
from nngk.kernel import formulas

Precision = Literal["ieee", "tf32x3", "tf32", "bf16"]
# A list longer than this is left to the eager path: a fused program holds it in registers.
LONGEST_LIST = 16384


def fused_neighbour_loss(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    neighbours: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each example over its neighbour list, (B,), and whether it has a same-class one, (B,).

    ``neighbours`` (B, K) holds -1 where there is none; ``own`` (B,) is the index of the example's own centre, left out
    wherever it stands, or -1. Gradients reach ``x``, ``theta`` and ``sigma``, the same in every run.

    >>> x, c = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> theta, sigma, own = torch.zeros(3), torch.tensor(1.0), torch.tensor([2])
    >>> lists, label, labels = torch.tensor([[2, 0, 1]]), torch.tensor([0]), torch.tensor([0, 1, 0])
    >>> fused_neighbour_loss(x, c, theta, sigma, lists, label, labels, own)
    (tensor([0.6931]), tensor([True]))
    """
    if neighbours.shape[:1] != x.shape[:1] or own.shape != x.shape[:1] or labels.shape != x.shape[:1]:
        raise InputError(
            f"neighbours, labels and own must have one row for each of the {len(x)} embeddings, got "
            f"{tuple(neighbours.shape)}, {tuple(labels.shape)} and {tuple(own.shape)}."
        )
    fits = 0 < neighbours.shape[1] <= LONGEST_LIST and len(x) > 0 and x.shape[1] > 0
    if not (usable(x, centres, theta) and fits):
        present = (neighbours >= 0) & (neighbours != own[:, None])
        same = present & (centre_labels[neighbours.clamp(min=0)] == labels[:, None])
        lists = neighbours.long().masked_fill(~present, -1)
        return formulas.neighbour_loss(x, centres, theta, sigma, lists, same), same.any(1)
    given = (rows(x), rows(centres), theta.contiguous(), sigma)
    ids = (neighbours.contiguous(), labels.contiguous(), centre_labels.contiguous(), own.contiguous())
    loss, learns = _FusedNeighbourLoss.apply(*given, *ids)
    return loss, learns


def fused_all_centres_loss(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
    precision: Precision = "tf32x3",
) -> Tensor:
    """Return the loss of each example over all centres, (B,); memory does not grow with batch times centres.

    Gradients reach ``x``, ``centres``, ``theta`` and ``sigma``. ``precision``: of the matrix products; 'ieee' and
    'tf32x3' are accurate to float32.

    >>> x, c = torch.zeros(1, 2), torch.eye(2)
    >>> theta, sigma, own = torch.zeros(2), torch.tensor(1.0), torch.tensor([-1])
    >>> fused_all_centres_loss(x, c, theta, sigma, torch.tensor([0]), torch.tensor([0, 1]), own)
    tensor([0.6931])
    """
    if precision not in ("ieee", "tf32x3", "tf32", "bf16"):
        raise InputError(f"precision must be 'ieee', 'tf32x3', 'tf32' or 'bf16', got {precision!r}.")
    if not (usable(x, centres, theta) and x.numel() and len(centres)):
        return formulas.all_centres_loss(x, centres, theta, sigma, labels, centre_labels, own)
    given = (rows(x), rows(centres), theta.contiguous(), sigma)
    ids = (labels.contiguous(), centre_labels.contiguous(), own.contiguous())
    loss: Tensor = _FusedAllCentresLoss.apply(*given, *ids, precision)
    return loss


def rows(x: Tensor) -> Tensor:
    """Return the same matrix with its rows contiguous; a view of a wider matrix may stay one."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


class _FusedNeighbourLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, centres: Tensor, theta: Tensor, sigma: Tensor, *ids: Tensor) -> Any:
        from nngk.kernel.triton import lists_forward as lists

        neighbours, labels, centre_labels, own = ids
        with device_of(x):
            loss, learns, weights, by_sigma = lists.forward(
                x, centres, theta, sigma, neighbours, labels, centre_labels, own
            )
        ctx.save_for_backward(x, centres, theta, sigma, neighbours, weights, by_sigma)
        ctx.mark_non_differentiable(learns)
        return loss, learns

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from nngk.kernel.triton.lists_backward import backward

        x, centres, theta, sigma, neighbours, weights, by_sigma = ctx.saved_tensors
        need_x, _, need_theta, need_sigma = ctx.needs_input_grad[:4]
        grad_x = grad_theta = grad_sigma = None
        if need_x or need_theta:
            given = (x, centres, theta, sigma, neighbours, weights, grad.contiguous())
            with device_of(x):
                grad_x, grad_theta = backward(*given, need_x=need_x, need_theta=need_theta)
        if need_sigma:
            grad_sigma = (grad * by_sigma).sum().to(sigma.dtype).reshape(sigma.shape)
        return grad_x, None, grad_theta, grad_sigma, None, None, None, None


class _FusedAllCentresLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        centres: Tensor,
        theta: Tensor,
        sigma: Tensor,
        labels: Tensor,
        centre_labels: Tensor,
        own: Tensor,
        precision: Precision,
    ) -> Tensor:
        from nngk.kernel.triton import dense

        # Distances do not change when everything is shifted; near the origin products round least.
        mean = centres.mean(0, dtype=torch.float32)
        near = x.float() - mean
        if precision == "bf16":
            near, ctx.precision = near.bfloat16(), "ieee"  # the products of half-precision numbers are exact
            near = near.float() if interpreted() else near  # the interpreter has no bfloat16 products
        else:
            ctx.precision = precision
        with device_of(x):
            norms = dense.norms_around(centres, mean)
            shared = (near, centres, norms, theta, sigma, labels, centre_labels, own)
            # 0, or NaN in the rows of embeddings that are not finite: their infinite distances would look like silence.
            sums = dense.log_sums(*shared, ctx.precision) + near.float().sum(1) * 0
        ctx.save_for_backward(*shared, sums, mean)
        ctx.dtype = x.dtype
        return torch.where(sums[1].isinf(), 0.0, sums[0] - sums[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from nngk.kernel.triton import dense

        *shared, sums, mean = ctx.saved_tensors
        near, centres, _, theta, sigma = shared[:5]
        (n, dim), m = near.shape, len(centres)
        columns = min(m, max(128, dense.TILE // n // 128 * 128))
        grad_x = torch.zeros(n, dim, dtype=torch.float32, device=near.device)
        row_sums = torch.zeros(n, 1, dtype=torch.float32, device=near.device)
        grad_sigma = torch.zeros((), dtype=torch.float32, device=near.device)
        grad_theta = torch.empty(m, dtype=torch.float32, device=near.device)
        grad_c = torch.empty_like(centres) if ctx.needs_input_grad[1] else None
        inverse = sigma.float() ** -2
        for first in range(0, m, columns):
            part = slice(first, min(m, first + columns))
            given: Any = (*shared, sums, grad.contiguous(), first, part.stop - first, ctx.precision)
            with device_of(near):
                weights, share = dense.differences(*given)
            with torch.autocast(near.device.type, enabled=False):
                grad_x += weights @ centres[part].to(near.dtype)
            row_sums += weights.sum(1, keepdim=True, dtype=torch.float32)
            grad_theta[part] = weights.sum(0, dtype=torch.float32)
            grad_sigma += share
            if grad_c is not None:
                with torch.autocast(near.device.type, enabled=False):
                    pulled = (weights.T @ near).float()
                pulled -= grad_theta[part, None] * (centres[part].float() - mean)
                grad_c[part] = (pulled * inverse).to(grad_c.dtype)
        # Σ (p - q) c = Σ (p - q) (c - μ): the rounding of the row sums must not be multiplied by a far mean.
        grad_x = (grad_x - row_sums * mean) * inverse
        return (
            grad_x.to(ctx.dtype) if ctx.needs_input_grad[0] else None,
            grad_c,
            grad_theta.to(theta.dtype) if ctx.needs_input_grad[2] else None,
            grad_sigma.to(sigma.dtype).reshape(sigma.shape) if ctx.needs_input_grad[3] else None,
            *(None,) * 4,
        )
