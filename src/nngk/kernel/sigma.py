"""Choosing the width σ of the kernels."""

import math
from collections.abc import Callable

from torch import Tensor

from nngk.errors import InputError
from nngk.kernel.formulas import log_kernels

GRID = 40
# How near σ is found, relatively. Less near, rounding decides where in the last interval it comes to lie, and two
# processors, or one process and several, answer differently by as much.
FINE = 1e-7


def best_sigma(squared: Tensor, same: Tensor, theta: Tensor | None = None) -> float:
    """Return the widest σ that n examples cannot tell from the best; squared distances and marks are (n, K).

    A geometric grid of 40 widths from 0.05 to 3 times the median nearest distance (extended while the best one is at
    its edge) and a golden-section search find the lowest loss. Widths whose loss, summed over the examples, is at
    most one higher cannot be told from the best; where classes lie far apart, all narrow ones are among them, down to
    those under which one centre decides everything and all that is new is unfamiliar. So the widest is taken, but none
    wider than the lists reach: where neighbours tell nothing yet, the loss falls for ever, and so would the gradient.

    >>> squared, same = torch.tensor([[1.0, 4.0]]), torch.tensor([[True, False]])
    >>> [round(best_sigma(squared.repeat(n, 1), same.repeat(n, 1)), 2) for n in (10, 100, 10_000)]
    [0.82, 0.57, 0.4]
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
    # Data that consist of duplicates alone have no scale of their own: the embedding's scale is the natural one.
    scale = float(nearest.median()) if len(nearest) else 1.0

    loss = _loss(squared, same, theta)

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
    loss = _loss(squared.double(), same, None if theta is None else theta.double())
    lowest = _golden(loss, low + (best - 1) * step, min(low + (best + 1) * step, widest))
    return math.exp(_widest_below(loss, loss(lowest) + 1 / len(squared), lowest, widest, step))


def _loss(squared: Tensor, same: Tensor, theta: Tensor | None) -> Callable[[float], float]:
    """Return the mean loss as a function of log σ; every row has an entry of its own class."""

    def loss(log_sigma: float) -> float:
        values = log_kernels(squared, math.exp(log_sigma), theta)
        own_class = values.masked_fill(~same, -math.inf)
        return float((values.logsumexp(1) - own_class.logsumexp(1)).mean())

    return loss


def _golden(f: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function with one valley between ``low`` and ``high`` is lowest."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = f(a), f(b)
    while high - low > 1000 * FINE:  # where it is lowest it is level: its value is known much better than its place
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = f(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = f(b)
    return (low + high) / 2


def _widest_below(f: Callable[[float], float], limit: float, low: float, high: float, step: float) -> float:
    """Return the largest x that steps from ``low`` towards ``high`` reach while f(x) stays at or below ``limit``."""
    under = f(low) - limit
    over = f(min(low + step, high)) - limit
    while low < high and over <= 0:
        low, under = min(low + step, high), over
        over = f(min(low + step, high)) - limit
    return _crossing(lambda x: f(x) - limit, low, min(low + step, high), under, over)


def _crossing(f: Callable[[float], float], low: float, high: float, under: float, over: float) -> float:
    """Return where f grows past zero, from below: by straight lines between what is known, and every third time half.

    >>> round(_crossing(lambda x: x * x - 2, 0.0, 2.0, -2.0, 2.0), 6)
    1.414214
    """
    turn = 0
    while high - low > FINE:
        turn += 1
        middle = (low + high) / 2
        if turn % 3 and math.isfinite(over) and under < 0:
            middle = (low * over - high * under) / (over - under)
            middle = min(max(middle, low + FINE / 2), high - FINE / 2)  # so that the other end comes near, too
        value = f(middle)
        if value <= 0:
            low, under = middle, value
        else:
            high, over = middle, value
    return low
