"""Exact search: matrix products in tiles with a running top-k."""

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.kernel_triton import installed
from nngk.search.cuda import cuda_nearest

# Elements of one tile of the distance matrix: 16M float32 are 64 MiB, small beside any bank and large enough for a
# matrix product to run at full speed.
TILE = 1 << 24
# Extra candidates kept beyond k while distances come from rounded matrix products; they are re-scored afterwards.
SLACK = 8


class Exact:
    """Exact nearest neighbours on the CPU or a GPU.

    >>> engine = Exact()
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> engine.search(torch.tensor([[2.9]]), k=2)[1].tolist()
    [[2, 1]]
    >>> engine.all_neighbours(k=1)[1].tolist()
    [[1], [0], [1]]
    """

    def __init__(self, x: Tensor | None = None) -> None:
        self.points = torch.empty(0, 0) if x is None else checked(x, "points")

    def __len__(self) -> int:
        return len(self.points)

    def add(self, x: Tensor) -> Tensor:
        x = checked(x, "points", self.points.shape[1] if len(self) else None)
        start = len(self)
        self.points = torch.cat([self.points, x]) if start else x.clone()
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Tensor) -> None:
        x = checked(x, "points", self.points.shape[1])
        if len(x) != len(self):
            raise InputError(f"update expects all {len(self)} points, got {len(x)}; use add for new ones.")
        self.points = x.clone()

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self._nearest(checked(x, "queries", self.points.shape[1]), k, exclude_own=False)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        return self._nearest(self.points, k, exclude_own=True)

    def _nearest(self, x: Tensor, k: int, exclude_own: bool) -> tuple[Tensor, Tensor]:
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}.")
        if not len(self):
            raise InputError("The search engine holds no points yet: call add first.")
        if x.is_cuda and installed():
            return cuda_nearest(self.points, x, k, exclude_own)
        # Distances do not change when everything is shifted; near the origin the rounding of |x|² + |c|² - 2xc is least.
        shift = self.points.mean(0)
        rows = max(1, TILE // len(self.points))
        distances = x.new_full((len(x), k), torch.inf)
        indices = torch.full((len(x), k), -1, dtype=torch.long, device=x.device)
        points = self.points - shift
        norms = points.square().sum(1)
        found = min(k, len(self) - exclude_own)
        if not found:
            return distances, indices
        for start in range(0, len(x), rows):
            queries = x[start : start + rows] - shift
            own = torch.arange(start, start + len(queries), device=x.device) if exclude_own else None
            d, i = self._tile(queries, points, norms, found, own)
            distances[start : start + rows, :found] = d
            indices[start : start + rows, :found] = i
        return distances, indices

    @staticmethod
    def _tile(q: Tensor, points: Tensor, norms: Tensor, k: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
        scores = torch.addmm(norms, q, points.T, alpha=-2)  # |c|² - 2qc: the query's own norm changes no order
        if own is not None:
            scores.scatter_(1, own[:, None], torch.inf)
        candidates = scores.topk(min(k + SLACK, len(points) - (own is not None)), largest=False, sorted=False).indices
        # Re-score by differences, which do not cancel; ties go to the lower index.
        candidates = candidates.sort(1).values
        exact = torch.stack([(points[c] - row).square().sum(1) for row, c in zip(q, candidates)])
        d, order = exact.sort(dim=1, stable=True)
        return d[:, :k], candidates.gather(1, order)[:, :k]


def checked(x: Tensor, what: str, dim: int | None = None) -> Tensor:
    """Points or queries as a float matrix, or a sentence that says what is wrong with them."""
    if x.ndim != 2 or (dim is not None and x.shape[1] != dim):
        raise InputError(f"{what} must have the shape (n, {dim or 'dim'}), got {tuple(x.shape)}.")
    if not x.is_floating_point():
        x = x.float()
    if not torch.isfinite(x).all():
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError(f"{what} contain NaN or infinity, first in row {row}.")
    return x
