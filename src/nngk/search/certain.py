"""Exact nearest neighbours by float64 products alone: slow, and certain whatever the data."""

import torch
from torch import Tensor

# Elements of a tile of products, and of gathered differences, in float64.
TILE = {"cuda": 1 << 27, "cpu": 1 << 21}


def certain_nearest(points: Tensor, queries: Tensor, k: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """The k nearest points of each query in float64, ties by the lower index; query i leaves out point ``own[i]``.

    >>> certain_nearest(torch.tensor([[0.0], [0.0], [2.0]]), torch.tensor([[0.0]]), 2, torch.tensor([0]))
    (tensor([[0., 4.]], dtype=torch.float64), tensor([[1, 2]]))
    """
    limit = TILE["cuda" if points.is_cuda else "cpu"]
    rows = max(1, limit // len(points))
    shift = points.mean(0, dtype=torch.float64)
    parts = [
        _part(points, queries[i : i + rows], k, None if own is None else own[i : i + rows], shift, limit)
        for i in range(0, len(queries), rows)
    ]
    return torch.cat([d for d, _ in parts]), torch.cat([j for _, j in parts])


def _part(
    points: Tensor, queries: Tensor, k: int, own: Tensor | None, shift: Tensor, limit: int
) -> tuple[Tensor, Tensor]:
    n, (m, dim) = len(queries), points.shape
    q = queries.double() - shift
    size = torch.linalg.vector_norm(q, dim=1, keepdim=True)
    lower = torch.empty(n, m, dtype=torch.float64, device=points.device)
    norms = torch.empty(m, dtype=torch.float64, device=points.device)
    step = max(1, limit // 4 // max(1, dim))
    for start in range(0, m, step):
        part = slice(start, start + step)
        c = points[part].double() - shift
        norms[part] = c.square().sum(1)
        lower[:, part] = torch.addmm(norms[part], q, c.T, alpha=-2)
    # A product of D terms errs by at most D 2^-52 |q||c|, a norm by D 2^-52 |c|².
    slack = (dim + 8) * 2.0**-51
    error = slack * (size + norms.sqrt()).square_()
    lower -= error
    if own is not None:
        lower.scatter_(1, own[:, None], torch.inf)
    bound = (lower + 2 * error).kthvalue(k, dim=1, keepdim=True).values
    width = int((lower <= bound).sum(1).max())
    candidates = lower.topk(width, dim=1, largest=False, sorted=False).indices
    candidates = candidates.sort(dim=1).values
    exact = _measured(points, queries, candidates, limit)
    if own is not None:
        exact.masked_fill_(candidates == own[:, None], torch.inf)
    nearest, order = exact.sort(dim=1, stable=True)
    return nearest[:, :k], candidates.gather(1, order)[:, :k]


def _measured(points: Tensor, queries: Tensor, candidates: Tensor, limit: int) -> Tensor:
    """Squared distances by differences, (n, width)."""
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
