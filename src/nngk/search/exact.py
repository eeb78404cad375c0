"""Exact search: every distance, at the speed of a matrix product."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nngk.search.certain import certain_nearest
from nngk.search.checks import Points, checked, checked_k, checked_update, without_own
from nngk.search.cuda.nearest import cuda_nearest
from nngk.search.native import core, empty_answer, plain, thread_count

# Candidates that the compiled core keeps beyond k while distances come from rounded products.
SLACK = 8
# Bytes that the compiled core may take for its candidate lists; beyond, queries come in parts.
LISTS = 6 << 30


class Exact:
    """Exact nearest neighbours on the CPU or a GPU.

    On the CPU float32 points go through the compiled core (``threads`` of it, torch's number by default); without it,
    and for float64, through torch.

    >>> engine = Exact()
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> engine.search(torch.tensor([[2.9]]), k=2)[1].tolist()
    [[2, 1]]
    >>> engine.all_neighbours(k=1)[1].tolist()
    [[1], [0], [1]]
    """

    def __init__(self, x: Points | None = None, *, threads: int | None = None) -> None:
        self.points = torch.empty(0, 0) if x is None else checked(x, "points")
        self.threads = threads
        self._packed: tuple[Tensor, Any] | None = None  # points, and the same packed for the core

    def __len__(self) -> int:
        return len(self.points)

    def add(self, x: Points) -> Tensor:
        x = checked(x, "points", self.points.shape[1] if len(self) else None)
        start = len(self)
        self.points = torch.cat([self.points, x]) if start else x.clone()
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Points) -> None:
        self.points = checked_update(x, len(self), self.points.shape[1]).clone()

    def search(self, x: Points, k: int) -> tuple[Tensor, Tensor]:
        k = checked_k(k, len(self))
        x = checked(x, "queries", self.points.shape[1])
        if self.points.is_cuda:
            return cuda_nearest(self.points, x.to(self.points), k, exclude_own=False)
        native = self._core()
        if native is None:
            return torch_nearest(self.points, x, k, exclude_own=False)
        return self._native_search(native, x, k)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        k = checked_k(k, len(self))
        if self.points.is_cuda:
            return cuda_nearest(self.points, self.points, k, exclude_own=True)
        native = self._core()
        if native is None:
            return torch_nearest(self.points, self.points, k, exclude_own=True)
        if len(self) * list_bytes(k) > LISTS:
            return without_own(*self._native_search(native, self.points, k + 1), torch.arange(len(self)))
        distances, indices = empty_answer(len(self), k)
        self._index(native).all_neighbours(k, thread_count(self.threads), distances, indices)
        return distances, indices

    def _core(self) -> ModuleType | None:
        native = core()
        return native if self.points.dtype != torch.float64 and self.points.shape[1] else None

    def _index(self, native: ModuleType) -> Any:
        if self._packed is None or self._packed[0] is not self.points:
            self._packed = (self.points, native.ExactIndex(plain(self.points), thread_count(self.threads)))
        return self._packed[1]

    def _native_search(self, native: ModuleType, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        queries = plain(x)
        distances, indices = empty_answer(len(x), k)
        rows = max(1, LISTS // list_bytes(k))
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            self._index(native).search(queries[part], k, thread_count(self.threads), distances[part], indices[part])
        return distances.to(x.device), indices.to(x.device)


def list_bytes(k: int) -> int:
    """Return the bytes of one candidate list of the compiled core."""
    return 8 * (2 * (k + SLACK) + 64)


def torch_nearest(points: Tensor, x: Tensor, k: int, exclude_own: bool) -> tuple[Tensor, Tensor]:
    """Return the k nearest points of each query by torch alone; with ``exclude_own`` query i is point i, left out."""
    distances = x.new_full((len(x), k), torch.inf)
    indices = torch.full((len(x), k), -1, dtype=torch.long, device=x.device)
    found = min(k, len(points) - exclude_own)
    if found and len(x):
        own = torch.arange(len(x)) if exclude_own else None
        # The bounds hold for float32 only where torch does not replace its products by coarser ones.
        wide = points.dtype == torch.float64 or torch.get_float32_matmul_precision() != "highest"
        d, i = certain_nearest(points, x.to(points), found, own, torch.float64 if wide else torch.float32)
        distances[:, :found], indices[:, :found] = d.to(x), i.to(x.device)
    return distances, indices
