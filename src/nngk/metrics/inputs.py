"""The checks that every metric makes before it counts anything."""

from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError

# Elements of one tile of a distance matrix: 64 MiB of float32.
TILE = 1 << 24


def numbers(values: Any, what: str, device: torch.device | None = None) -> Tensor:
    """Return real numbers as a tensor without gradient. Raise InputError if they are none."""
    try:
        x = torch.as_tensor(values, device=device).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no numbers"
        raise InputError(f"{what} must be an array of numbers, got {type(values).__name__} ({reason}).") from None
    if x.is_complex():
        raise InputError(f"{what} must be real numbers, got {x.dtype}.")
    return x


def matrix(values: Any, what: str) -> Tensor:
    """Return a finite matrix (n, columns), n > 0, without gradient; lower precision becomes float32."""
    x = numbers(values, what)
    if x.ndim != 2 or not x.numel():
        raise InputError(f"{what} must be a matrix with one row per example, got the shape {tuple(x.shape)}.")
    if x.dtype != torch.float64:
        x = x.float()
    if not torch.isfinite(x).all():
        bad = ~torch.isfinite(x).all(1)
        raise InputError(
            f"{what} contain NaN or infinity in {int(bad.sum())} of {len(x)} rows, first in row "
            f"{int(bad.nonzero()[0])}. Look for a diverged training run or a too high learning rate."
        )
    return x


def class_numbers(labels: Any, rows: int, what: str, device: torch.device) -> Tensor:
    """Return integer labels (rows,) on ``device``."""
    y = numbers(labels, "Labels", device)
    if y.ndim != 1 or len(y) != rows:
        raise InputError(f"Expected one label for each of the {rows} rows of {what}, got the shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"Labels must be integers, got {y.dtype}.")
    return y.long()
