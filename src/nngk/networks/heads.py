"""From a feature map to an embedding: pooling, LayerNorm, dropout, a linear layer, L2 normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nngk.errors import InputError


class AvgPool(nn.Module):
    """The mean over positions: (B, C, H, W) -> (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class MaxPool(nn.Module):
    """The largest value over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


class AvgMaxPool(nn.Module):
    """The sum of the mean and the largest value."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) + x.amax((2, 3))


class GeM(nn.Module):
    """Generalised mean (mean of x^p)^(1/p) with a learned exponent p: 1 is the mean, large p the largest value.

    >>> GeM(p=1.0)(torch.tensor([[[[1.0, 3.0]]]])).item()
    2.0
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Powers lose too much in half precision, and a negative base has none.
        x = _at_least_float32(x).clamp(min=self.eps)
        return x.pow(self.p).mean((2, 3)).pow(1.0 / self.p)


class SideBySide(nn.Module):
    """Several maps, each pooled and brought to one scale, so that none drowns the others: (B, all their channels)."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.each = pool

    def forward(self, maps: tuple[Tensor, ...]) -> Tensor:
        pooled = [_at_least_float32(self.each(x)) for x in maps]
        return torch.cat([F.layer_norm(x, x.shape[1:]) for x in pooled], 1)


POOLS: dict[str, type[nn.Module]] = {"avg": AvgPool, "max": MaxPool, "avg+max": AvgMaxPool, "gem": GeM}


class Head(nn.Module):
    """Pools a feature map and projects it: `head.project(head.pool(features))`.

    `pool=None` is for a backbone that gives a vector; `dim=None` leaves out the linear layer; with `layers` above one
    the backbone gives as many maps.

    >>> head = Head(8, dim=4, pool="gem")
    >>> head.project(head.pool(torch.rand(2, 8, 3, 3))).norm(dim=1).allclose(torch.ones(2))
    True
    """

    def __init__(
        self,
        channels: int,
        *,
        dim: int | None = None,
        pool: str | None = "avg",
        layers: int = 1,
        dropout: float = 0.0,
        layer_norm: bool = False,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        check_head(dim=dim, pool=pool, dropout=dropout)
        self.pool: nn.Module = nn.Identity() if pool is None else POOLS[pool]()
        if layers > 1:
            self.pool = SideBySide(self.pool)
        # No learned scale and shift: the linear layer after it has both, and without that layer the
        # embedding stays the backbone's own up to its scale.
        self.layer_norm = nn.LayerNorm(channels, elementwise_affine=False) if layer_norm else None
        self.dropout = nn.Dropout(dropout)
        self.linear = None if dim is None else nn.Linear(channels, dim)
        self.normalise = normalise
        self.dim = channels if dim is None else dim

    def project(self, pooled: Tensor) -> Tensor:
        """Return embeddings (B, dim) of pooled features (B, C), in float32 also under autocast."""
        x = pooled
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = self.dropout(x)
        if self.linear is not None:
            x = self.linear(x)
        x = _at_least_float32(x)
        return F.normalize(x, dim=1) if self.normalise else x

    def forward(self, features: Tensor) -> Tensor:
        return self.project(self.pool(features))


def check_head(*, dim: int | None, pool: str | None, dropout: float) -> None:
    """Raise InputError if a head cannot be built."""
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim < 1):
        raise InputError(f"dim has to be a positive whole number, or None for no embedding layer; got {dim!r}.")
    if pool is not None and pool not in POOLS:
        raise InputError(f"pool has to be one of {', '.join(POOLS)}; got {pool!r}.")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout has to be at least 0 and below 1; got {dropout!r}.")


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
