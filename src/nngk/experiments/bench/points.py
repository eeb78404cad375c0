"""Points like deep features, for measuring search engines."""

import torch
from torch import Tensor


def clustered_features(n: int, dim: int, *, seed: int = 0, intrinsic: int = 25) -> Tensor:
    """Unit vectors (n, dim) in up to a thousand classes, each spread over about ``intrinsic`` dimensions.

    >>> clustered_features(10, 4).shape
    torch.Size([10, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    classes = max(20, min(1000, n // 200))
    shapes = classes // 10 + 1  # ten classes share the directions in which they spread
    centres = torch.randn(classes, 2 * intrinsic, generator=generator)
    spreads = torch.randn(shapes, intrinsic, 2 * intrinsic, generator=generator) * 0.7 / intrinsic**0.5
    projection = torch.randn(2 * intrinsic, dim, generator=generator) / (2 * intrinsic) ** 0.5
    labels = torch.randint(classes, (n,), generator=generator)
    x = torch.empty(n, dim)
    for part in torch.arange(n).split(65536):
        inside = torch.randn(len(part), intrinsic, generator=generator)
        low = 0.5 * centres[labels[part]]
        for shape in range(shapes):
            chosen = labels[part] % shapes == shape
            low[chosen] += inside[chosen] @ spreads[shape]
        x[part] = torch.tanh(low @ projection) + 0.05 * torch.randn(len(part), dim, generator=generator)
    return torch.nn.functional.normalize(x)
