"""Choosing the width σ of the kernels."""

import math

from torch import Tensor

from nngk.errors import InputError
from nngk.kernel.formulas import attention_difference, log_kernels

GRID = 40


def best_sigma(squared: Tensor, same: Tensor, theta: Tensor | None = None) -> float:
    """The σ that minimises the mean loss of examples with these squared neighbour distances, (n, K).

    A geometric grid of 40 widths from 0.05 to 3 times the median nearest distance (moved on while the best one is at
    its edge), then a golden-section search between the neighbours of the best. Of widths that are equally good, as all
    narrow ones are where classes lie far apart, the widest: under a narrower one everything is unfamiliar. But none
    wider than the lists reach: where neighbours tell nothing yet, the loss falls for ever, and so would the gradient.

    >>> d = torch.tensor([[1.0, 4.0]])
    >>> 0 < best_sigma(d, torch.tensor([[True, False]])) < 0.3
    True
    """
    rows = same.any(1)
    if not rows.any():
        raise InputError(
            "Sigma cannot be tuned: no example has a centre of its own class among its neighbours. "
            "Raise n_neighbours or give a fixed sigma."
        )
    squared, same = squared[rows], same[rows]
    theta = theta[rows] if theta is not None else None
    nearest = squared.min(1).values.sqrt()
    nearest = nearest[(nearest > 0) & nearest.isfinite()]
    # All-duplicate data has no scale of its own: any width serves, and the embedding's scale is the natural one.
    scale = float(nearest.median()) if len(nearest) else 1.0

    def loss(log_sigma: float) -> float:
        values = log_kernels(squared, math.exp(log_sigma), theta)
        return float(attention_difference(values, same)[0].mean())

    low, high = math.log(0.05 * scale), math.log(3 * scale)
    reach = float(squared[squared.isfinite()].max().sqrt())
    widest = max(high, math.log(reach)) if reach else high
    step = (high - low) / (GRID - 1)
    losses = {i: loss(low + i * step) for i in range(GRID)}
    best = min(losses, key=lambda i: (losses[i], -i))
    while best in (min(losses), max(losses)) and len(losses) < 3 * GRID:
        up = best == max(losses)
        edge = best + (1 if up else -1)
        if low + edge * step > widest:
            break
        losses[edge] = loss(low + edge * step)
        if losses[edge] > losses[best] or (losses[edge] == losses[best] and not up):
            break
        best = edge
    return math.exp(_golden(loss, low + (best - 1) * step, min(low + (best + 1) * step, widest)))


def _golden(f: "object", low: float, high: float, tolerance: float = 1e-3) -> float:
    """Minimum of a function with one valley between ``low`` and ``high``."""
    assert callable(f)
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = f(a), f(b)
    while high - low > tolerance:
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = f(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = f(b)
    return (low + high) / 2
