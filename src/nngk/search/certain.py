"""Exact nearest neighbours by torch alone: blocked products, proven bounds, float64 distances of what is left."""

import torch
from torch import Tensor

# Elements of a tile of products, and of gathered differences.
TILE = {"cuda": 1 << 27, "cpu": 1 << 22}


def certain_nearest(
    points: Tensor, queries: Tensor, k: int, own: Tensor | None, products: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Return the k nearest points of each query, measured in float64, ties by the lower index.

    Query i leaves out point ``own[i]``. ``products`` is the arithmetic that tells which points may be near: less
    precise products are faster and leave more points to be measured; the answer is the same.

    >>> certain_nearest(torch.tensor([[0.0], [0.0], [2.0]]), torch.tensor([[0.0]]), 2, torch.tensor([0]))
    (tensor([[0., 4.]], dtype=torch.float64), tensor([[1, 2]]))
    """
    limit = TILE["cuda" if points.is_cuda else "cpu"]
    rows = max(1, limit // len(points))
    shift = points.mean(0, dtype=torch.float64)
    parts = [
        _part(points, queries[i : i + rows], k, None if own is None else own[i : i + rows], shift, limit, products)
        for i in range(0, len(queries), rows)
    ]
    return torch.cat([d for d, _ in parts]), torch.cat([j for _, j in parts])


def _part(
    points: Tensor, queries: Tensor, k: int, own: Tensor | None, shift: Tensor, limit: int, products: torch.dtype
) -> tuple[Tensor, Tensor]:
    n, (m, dim) = len(queries), points.shape
    # Distances do not change when everything is shifted; near the origin the rounding of |c|² - 2qc is least.
    q = (queries.double() - shift).to(products)
    size = torch.linalg.vector_norm(q, dim=1, keepdim=True)
    lower = torch.empty(n, m, dtype=products, device=points.device)
    norms = torch.empty(m, dtype=products, device=points.device)
    step = max(1, limit // 4 // max(1, dim))
    for start in range(0, m, step):
        part = slice(start, start + step)
        c = (points[part].double() - shift).to(products)
        norms[part] = c.square().sum(1)
        lower[:, part] = torch.addmm(norms[part], q, c.T, alpha=-2)
    # With unit roundoff u, a product of D terms errs by at most D 2u |q||c|, a norm by D 2u |c|², rounding by 2u.
    slack = (dim + 8) * 2 * torch.finfo(products).eps
    error = slack * (size + norms.sqrt()).square_()
    lower -= error
    if own is not None:
        lower.scatter_(1, own[:, None], torch.inf)
    bound = (lower + 2 * error).topk(k, dim=1, largest=False, sorted=False).values.amax(1, keepdim=True)
    width = int((lower <= bound).sum(1).max())
    candidates = lower.topk(width, dim=1, largest=False, sorted=False).indices
    candidates = candidates.sort(dim=1).values
    exact = _measured(points, queries, candidates, limit)
    if own is not None:
        exact.masked_fill_(candidates == own[:, None], torch.inf)
    nearest, order = exact.sort(dim=1, stable=True)
    return nearest[:, :k], candidates.gather(1, order)[:, :k]


def _measured(points: Tensor, queries: Tensor, candidates: Tensor, limit: int) -> Tensor:
    """Return squared distances by differences, (n, width)."""
    n, width = candidates.shape
    dim = max(1, points.shape[1])
    across = max(1, min(width, limit // dim))
    down = max(1, limit // (dim * across))
    out = torch.empty(n, width, dtype=torch.float64, device=points.device)
    for i in range(0, n, down):
        for j in range(0, width, across):
            near = points[candidates[i : i + down, j : j + across]].double()
            difference = near.sub_(queries[i : i + down].double().unsqueeze(1))
            out[i : i + down, j : j + across] = difference.square_().sum(2)
    return out
