"""What the engines of other packages share: the points, the checks, and the shape of answers."""

import torch
from torch import Tensor

from nngk.search.checks import Points, checked, checked_k, checked_update, padded, without_own
from nngk.search.native import plain, thread_count


class Adapter:
    """A package's index behind the protocol.

    A subclass says how points come in (``insert``), how the index is forgotten (``clear``) and how queries are
    answered (``query``); it may answer ``all_neighbours`` in a way of its own.
    """

    def __init__(self, dim: int, threads: int | None = None) -> None:
        self.dim, self.threads = dim, threads
        self.points = torch.empty(0, dim)

    def insert(self, fresh: Tensor, start: int) -> None:
        """Take in new points, which are already in ``points`` from row ``start`` on."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget the index."""
        raise NotImplementedError

    def query(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices (n, k) of float32 queries in main memory."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.points)

    @property
    def thread_count(self) -> int:
        """How many threads the package may use."""
        return thread_count(self.threads)

    def add(self, x: Points) -> Tensor:
        """Add points (n, dim); return their indices (n,)."""
        x = checked(x, "points", self.dim, dtype=torch.float32)
        start, fresh = len(self), plain(x)
        self.points = torch.cat([self.points, fresh])
        if len(fresh):
            self.insert(fresh, start)
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Points) -> None:
        """Move all points to ``x``: the index is made anew."""
        points = checked_update(x, len(self), self.dim, dtype=torch.float32)
        self.points = torch.empty(0, self.dim)
        self.clear()
        self.add(points)

    def search(self, x: Points, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest points of each query: squared distances (n, k) and indices (n, k)."""
        k = checked_k(k, len(self))
        x = checked(x, "queries", self.dim, dtype=torch.float32)
        distances, indices = self.query(plain(x), k)
        return distances.to(x.device), indices.to(x.device)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest other points of every point."""
        k = checked_k(k, len(self))
        d, i = self.query(self.points, min(k + 1, len(self)))
        return without_own(*padded(d.numpy(), i.numpy(), k + 1), torch.arange(len(self)))
