"""What engines accept, and the sentences for what they do not."""

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nngk.errors import InputError

Points = Tensor | np.ndarray


def checked(
    x: Points, what: str, dim: int | None = None, *, dtype: torch.dtype | None = None, largest: float = math.inf
) -> Tensor:
    """Return points or queries as a matrix of floats, or raise InputError that says what is wrong with them.

    Arrays become tensors; ``dtype`` is what the values will be converted to, and ``largest`` the greatest magnitude
    that can be stored. Values whose squared distances would overflow are refused.
    """
    x = _as_tensor(x, what)
    if x.ndim != 2 or (dim is not None and x.shape[1] != dim):
        raise InputError(f"{what} must have the shape (n, {dim or 'dim'}), got {tuple(x.shape)}.")
    if not x.is_floating_point() or (dtype is not None and x.dtype == torch.float64):
        x = x.to(dtype or torch.float32)
    magnitude = x.detach().abs().amax(1) if x.numel() else x.new_zeros(0)
    for bad, sentence in (
        (~torch.isfinite(magnitude), "contain NaN or infinity"),
        (magnitude > min(largest, largest_value(x)), f"hold values of more than {min(largest, largest_value(x)):.3g}"),
    ):
        if bad.any():
            hint = "" if sentence.startswith("contain") else "; divide all points and queries by a constant"
            raise InputError(f"{what} {sentence}, first in row {int(bad.nonzero()[0])}{hint}.")
    return x


def largest_value(x: Tensor) -> float:
    """Return the greatest magnitude of values at which no squared distance between two such rows overflows."""
    # Half precision is measured in float32; storage may round a value up.
    kind = torch.finfo(torch.promote_types(x.dtype, torch.float32))
    return math.sqrt(kind.max / (4 * max(1, x.shape[1]))) * (1 - 2.0**-6)


def _as_tensor(x: Any, what: str) -> Tensor:
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub":
            raise InputError(f"{what} must be an array of numbers, got one of {x.dtype}.")
        wide = x.dtype.kind == "f" and x.dtype.itemsize >= 8
        # Torch reads neither reversed nor read-only arrays, nor other byte orders: those are copied.
        return torch.from_numpy(np.require(x, dtype=np.float64 if wide else np.float32, requirements=["C", "W"]))
    if not isinstance(x, Tensor):
        raise InputError(f"{what} must be a torch tensor or a numpy array, got {type(x).__name__}.")
    if x.layout != torch.strided or x.is_complex() or x.is_quantized:
        raise InputError(f"{what} must be a dense tensor of real numbers, got {x.dtype} in the layout {x.layout}.")
    return x


def whole(value: Any, name: str, low: int = 1, high: int | None = None) -> int:
    """Return a whole number between ``low`` and ``high``, or raise InputError.

    >>> whole(np.int64(3), "k")
    3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if number < low or (high is not None and number > high):
        expected = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"{name} must be {expected}, got {number}.")
    return number


def real(value: Any, name: str, low: float, high: float) -> float:
    """Return a number between ``low`` and ``high``, or raise InputError."""
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name} must be a number between {low} and {high}, got {value!r}.")
    return number


def checked_k(k: Any, n: int) -> int:
    """Return k, or raise InputError unless it is a whole number from 1 to the number of points."""
    k = whole(k, "k")
    if not n:
        raise InputError("The search engine holds no points yet: call add first.")
    if k > n:
        raise InputError(f"k must be at most {n}, the number of points that the search engine holds; got {k}.")
    return k


def checked_ids(ids: Any) -> Tensor:
    """Return indices of points as a vector of int64 in main memory, or raise InputError."""
    try:
        found = torch.as_tensor(ids).detach().cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"Indices must be whole numbers, got {type(ids).__name__}: {error}.") from error
    if not found.numel():
        return found.long()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"Indices must be whole numbers, got values of {found.dtype}.")
    return found.long().contiguous()


def checked_update(x: Points, n: int, dim: int, **limits: Any) -> Tensor:
    """Return the new places of all n points, or raise InputError; ``limits`` are those of ``checked``."""
    x = checked(x, "points", dim, **limits)
    if len(x) != n:
        raise InputError(f"update expects all {n} points, got {len(x)}; use add for new ones.")
    return x


def without_own(distances: Tensor, indices: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return answers of k + 1 neighbours with each point's own index left out, wherever it stands; k are left.

    >>> without_own(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[3, 5, 4]]), torch.tensor([5]))
    (tensor([[0., 1.]]), tensor([[3, 4]]))
    """
    is_own = indices == own[:, None]
    # Where a search missed the point itself, the last of the k + 1 goes instead.
    is_own[:, -1] |= ~is_own.any(1)
    n, k = indices.shape
    return distances[~is_own].view(n, k - 1), indices[~is_own].view(n, k - 1)


def padded(distances: Any, indices: Any, k: int) -> tuple[Tensor, Tensor]:
    """Return arrays of found neighbours (n, width) as tensors (n, k): -1 at distance infinity where none was found.

    >>> padded(np.ones((1, 1), "f"), np.array([[4]]), 2)
    (tensor([[1., inf]]), tensor([[ 4, -1]]))
    """
    n, width = indices.shape
    d, i = torch.full((n, k), torch.inf, dtype=torch.float32), torch.full((n, k), -1)
    i[:, :width] = torch.from_numpy(indices.astype(np.int64))
    d[:, :width] = torch.from_numpy(distances.astype(np.float32)).masked_fill(i[:, :width] < 0, torch.inf)
    return d, i
