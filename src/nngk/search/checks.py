"""What engines accept, and the sentences for what they do not."""

import torch
from torch import Tensor

from nngk.errors import InputError


def checked(x: Tensor, what: str, dim: int | None = None) -> Tensor:
    """Points or queries as a float matrix, or a sentence that says what is wrong with them."""
    if not isinstance(x, Tensor):
        raise InputError(f"{what} must be a torch tensor, got {type(x).__name__}; wrap arrays with torch.as_tensor.")
    if x.ndim != 2 or (dim is not None and x.shape[1] != dim):
        raise InputError(f"{what} must have the shape (n, {dim or 'dim'}), got {tuple(x.shape)}.")
    if not x.is_floating_point():
        x = x.float()
    if not torch.isfinite(x).all():
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError(f"{what} contain NaN or infinity, first in row {row}.")
    return x


def checked_k(k: int, n: int) -> None:
    """k is usable and there is something to find."""
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")
    if not n:
        raise InputError("The search engine holds no points yet: call add first.")


def checked_update(x: Tensor, n: int, dim: int) -> Tensor:
    """New places of all n points."""
    x = checked(x, "points", dim)
    if len(x) != n:
        raise InputError(f"update expects all {n} points, got {len(x)}; use add for new ones.")
    return x


def without_own(distances: Tensor, indices: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Answers of k + 1 neighbours with each point's own index left out, wherever it stands; k are left.

    >>> without_own(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[3, 5, 4]]), torch.tensor([5]))
    (tensor([[0., 1.]]), tensor([[3, 4]]))
    """
    is_own = indices == own[:, None]
    # Where a search missed the point itself, the last of the k + 1 goes instead.
    is_own[:, -1] |= ~is_own.any(1)
    n, k = indices.shape
    return distances[~is_own].view(n, k - 1), indices[~is_own].view(n, k - 1)
