"""Equations 1 to 3 of the paper, in log space, as functions on tensors.

With centres ``c_j``, log-weights ``θ_j`` and one width ``σ``, a centre contributes

    l_ij = θ_j - |x_i - c_j|² / 2σ²

to the class of its training example, and the loss of an example is

    logsumexp over its neighbours of l_ij  -  logsumexp over its same-class neighbours of l_ij.

Nothing is exponentiated before its maximum is subtracted, so narrow widths and small weights give finite answers. The
gradient needs no graph: with p the softmax of ``l`` over all neighbours and q the softmax over those of the own class,

    ∂loss/∂x_i = Σ_j (p_ij - q_ij) c_j / σ²      (the x_i terms cancel: p and q both sum to one)
    ∂loss/∂θ_j = Σ_i (p_ij - q_ij)               ∂loss/∂σ = Σ_ij (p_ij - q_ij) |x_i - c_j|² / σ³

so the two losses below are ``autograd.Function``s that keep a (batch, neighbours) matrix at most, and never a
(batch, neighbours, dim) tensor.

Shapes: ``x`` (B, D), ``centres`` (m, D), ``theta`` (m,), ``neighbours`` (B, K) with -1 where there is none.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

# Elements of gathered centre rows held at a time. On a CPU they should stay in the cache (1 MiB of float32); a GPU
# wants enough of them to fill it.
GATHER_CPU = 1 << 18
GATHER_CUDA = 1 << 26
# Elements of one tile of the batch-by-all-centres matrix.
TILE = 1 << 24


@torch.no_grad()
def squared_distances(x: Tensor, centres: Tensor, neighbours: Tensor) -> Tensor:
    """Return |x_i - c_j|² for the neighbours j of each example i, (B, K); infinite where ``neighbours`` is -1.

    A constant for autograd: the losses below know their own gradients.

    >>> squared_distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([[0, -1]]))
    tensor([[25., inf]])
    """
    wide = working_dtype(x)
    limit = GATHER_CUDA if x.is_cuda else GATHER_CPU
    rows = max(1, limit // max(1, neighbours.shape[1] * x.shape[1]))
    index = neighbours.clamp(min=0)
    out = torch.empty(neighbours.shape, dtype=wide, device=x.device)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        # Differences first: |x|² + |c|² - 2xc would cancel where it matters most, close to a centre.
        difference = centres[index[part]].to(wide).sub_(x[part].to(wide).unsqueeze(1))
        torch.linalg.vecdot(difference, difference, out=out[part])
    return out.masked_fill_(neighbours < 0, torch.inf)


def log_kernels(squared: Tensor, sigma: Tensor | float, theta: Tensor | None = None) -> Tensor:
    """Return the logarithm of equation 1 with its weight: θ - d² / 2σ². ``theta`` is gathered like ``squared``.

    >>> log_kernels(torch.tensor([2.0]), sigma=1.0)
    tensor([-1.])
    """
    values = squared / (-2 * sigma**2)
    return values if theta is None else values + theta


def class_log_probabilities(values: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return equations 2 and 3: log-probabilities (B, n_classes) of log kernel values (B, K) with centres' labels.

    ``labels`` is (B, K), or (K,) when all examples share their centres. A class without a centre gets -inf.

    >>> class_log_probabilities(torch.zeros(1, 4), torch.tensor([0, 0, 0, 1]), 3).exp()
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    labels = labels.expand_as(values).clamp(min=0)
    shape = (len(values), n_classes)
    # One maximum per class, so that even a class far below the winner keeps its logarithm.
    top = values.new_full(shape, -torch.inf).scatter_reduce(1, labels, values, "amax")
    top = top.masked_fill(top.isinf(), 0)
    sums = values.new_zeros(shape).scatter_add(1, labels, (values - top.gather(1, labels)).exp())
    return sums.log() + top - values.logsumexp(1, keepdim=True)


def log_density(values: Tensor) -> Tensor:
    """Return the logarithm of the summed kernels around each example, (B,): low where no training image is near."""
    return values.logsumexp(1)


def neighbour_loss(
    x: Tensor, centres: Tensor, theta: Tensor, sigma: Tensor, neighbours: Tensor, same: Tensor
) -> Tensor:
    """Return -ln of equation 3's probability of the true class, one value per example, (B,).

    ``same`` (B, K) marks the neighbours of the example's class. An example without one has loss 0 and no gradient:
    what to do about it is the caller's decision. An embedding that is not finite has a loss and a gradient of NaN.
    Gradients reach ``x``, ``theta`` and ``sigma``; centres are
    constants, as the bank holds them.
    """
    loss: Tensor = _NeighbourLoss.apply(x, centres, theta, sigma, neighbours, same)
    return loss


def all_centres_loss(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
) -> Tensor:
    """Return -ln of equation 2's probability of the true class over all centres, by matrix products, (B,).

    ``own`` (B,) is the index of each example's own centre, which is left out, or -1. Gradients reach ``x``,
    ``centres``, ``theta`` and ``sigma``. Memory is bounded by a tile, whatever the number of centres.
    """
    loss: Tensor = _AllCentresLoss.apply(x, centres, theta, sigma, labels, centre_labels, own)
    return loss


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the type that distances and sums are taken in: float32 at least."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def attention_difference(values: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row of log kernel values, (B,), and p - q, (B, K).

    Both are 0 in a row with no same-class entry, and NaN in a row where a value is NaN or every kernel is lost.

    >>> values = torch.tensor([[0.0, 0.0], [0.0, torch.nan]])
    >>> attention_difference(values, torch.tensor([[True, False], [False, False]]))
    (tensor([0.6931,    nan]), tensor([[-0.5000,  0.5000],
            [    nan,     nan]]))
    """
    everything = values.logsumexp(1, keepdim=True)
    own_class = values.masked_fill(~same, -torch.inf)
    positives = own_class.logsumexp(1, keepdim=True)
    learns = same.any(1, keepdim=True)  # from the marks: what became of the values must not make an example silent
    silent = ~learns & ~everything.isnan()
    difference = (values - everything).exp() - (own_class - positives.masked_fill(~learns, 0)).exp()
    loss = (everything - positives).masked_fill(silent, 0).squeeze(1)
    return loss, difference.masked_fill_(silent, 0)


def poisoned(values: Tensor, x: Tensor) -> Tensor:
    """Return the log kernel values, in place, with NaN in the rows of embeddings that are not finite.

    Their distances may be infinite, which would else look like a neighbour that is missing.
    """
    return values.masked_fill_(~x.isfinite().all(1, keepdim=True), torch.nan)


def list_gradients(
    ctx: Any, grad: Tensor, need_x: bool, need_theta: bool, need_sigma: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a loss over lists of centres: of the embeddings, θ and σ, where they are needed.

    ``ctx`` has saved the centres, θ, σ, the lists (-1 where one is short), p - q of each entry, and each example's
    derivative by σ; its ``dtype`` is that of the embeddings.
    """
    centres, theta, sigma, lists, difference, by_sigma = ctx.saved_tensors[:6]
    weights = difference * grad[:, None]  # (B, K)
    index = lists.clamp(min=0)  # a missing neighbour has p = q = 0
    grad_x = grad_theta = grad_sigma = None
    if need_x:
        bank = centres if centres.dtype == weights.dtype else centres.to(weights.dtype)
        grad_x = embedding_bag(index, bank, per_sample_weights=weights, mode="sum")
        grad_x = (grad_x / sigma.to(grad_x.dtype) ** 2).to(ctx.dtype)
    if need_theta:
        grad_theta = theta.new_zeros(len(centres)).index_add_(0, index.flatten(), weights.flatten().to(theta.dtype))
        grad_theta = grad_theta[: len(theta)]  # a rank without rows has no θ, but a row that nobody's list names
    if need_sigma:
        grad_sigma = (grad * by_sigma).sum().to(sigma.dtype).reshape(sigma.shape)
    return grad_x, grad_theta, grad_sigma


class _NeighbourLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, centres: Tensor, theta: Tensor, sigma: Tensor, neighbours: Tensor, same: Tensor
    ) -> Tensor:
        squared = squared_distances(x, centres, neighbours)
        weights = theta.to(squared.dtype)[neighbours.clamp(min=0)]
        values = poisoned(log_kernels(squared, sigma.to(squared.dtype), weights), x)
        loss, difference = attention_difference(values, same)
        # Σ_j (p - q) d² / σ³, taken now so that the distances need not be kept.
        by_sigma = (difference * squared.masked_fill(neighbours < 0, 0)).sum(1) / sigma**3
        ctx.save_for_backward(centres, theta, sigma, neighbours, difference, by_sigma)
        ctx.dtype = x.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, _, need_theta, need_sigma = ctx.needs_input_grad[:4]
        grad_x, grad_theta, grad_sigma = list_gradients(ctx, grad, need_x, need_theta, need_sigma)
        return grad_x, None, grad_theta, grad_sigma, None, None


class _AllCentresLoss(torch.autograd.Function):
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
    ) -> Tensor:
        given = (x, centres, theta, sigma, labels, centre_labels, own)
        ctx.save_for_backward(*given)
        losses = [attention_difference(values, same)[0] for _, values, same in _tiles(*given)]
        return torch.cat(losses) if losses else x.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, centres, theta, sigma, _, _, _ = ctx.saved_tensors
        wide = working_dtype(x)
        shift = centres.to(wide).mean(0)
        near_x, near_c = x.to(wide) - shift, centres.to(wide) - shift
        grad_x = torch.zeros_like(near_x)
        grad_c = torch.zeros_like(near_c) if ctx.needs_input_grad[1] else None
        grad_theta = torch.zeros_like(theta, dtype=wide)
        grad_sigma = torch.zeros((), dtype=wide, device=x.device)
        inverse = 1 / sigma.to(wide) ** 2
        for part, values, same in _tiles(*ctx.saved_tensors):
            weights = attention_difference(values, same)[1] * grad[part, None].to(wide)  # (b, m)
            summed = weights.sum(0)
            grad_x[part] = weights @ near_c * inverse
            grad_theta += summed
            if grad_c is not None:
                grad_c += (weights.T @ near_x[part] - summed[:, None] * near_c) * inverse
            if ctx.needs_input_grad[3]:
                # d² / σ³ from the values themselves: d² = 2σ² (θ - l), and l = -inf only where the weight is 0.
                squared = (theta.to(wide) - values).masked_fill(values.isinf(), 0) * 2
                grad_sigma += (weights * squared).sum() / sigma.to(wide)
        return (
            grad_x.to(x.dtype),
            None if grad_c is None else grad_c.to(centres.dtype),
            grad_theta.to(theta.dtype),
            grad_sigma.to(sigma.dtype).reshape(sigma.shape),
            None,
            None,
            None,
        )


def _tiles(
    x: Tensor,
    centres: Tensor,
    theta: Tensor,
    sigma: Tensor,
    labels: Tensor,
    centre_labels: Tensor,
    own: Tensor,
) -> Any:
    """Yield (rows, log kernel values, same-class mask) of the batch-by-all-centres matrix, some rows at a time."""
    wide = working_dtype(x)
    # Distances do not change when everything is shifted; near the origin |x|² + |c|² - 2xc rounds least.
    shift = centres.to(wide).mean(0)
    near = centres.to(wide) - shift
    norms = near.square().sum(1)
    rows = max(1, TILE // max(1, len(centres)))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        query = x[part].to(wide) - shift
        squared = torch.addmm(norms, query, near.T, alpha=-2).add_(query.square().sum(1, keepdim=True)).clamp_(min=0)
        values = log_kernels(squared, sigma.to(wide), theta.to(wide))
        present = own[part] >= 0
        hidden = torch.zeros_like(values, dtype=torch.bool)
        hidden.scatter_(1, own[part].clamp(min=0)[:, None], present[:, None])
        values = poisoned(values.masked_fill_(hidden, -torch.inf), query)
        yield part, values, (labels[part, None] == centre_labels) & ~hidden
