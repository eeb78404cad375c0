"""hnswlib behind the protocol."""

from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.search.checks import checked, checked_k, checked_update, without_own
from nngk.search.native import plain, thread_count


class Hnswlib:
    """An hnswlib index with squared Euclidean distances.

    >>> engine = Hnswlib(1)  # doctest: +SKIP
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))  # doctest: +SKIP
    >>> engine.all_neighbours(k=1)[1].tolist()  # doctest: +SKIP
    [[1], [0], [1]]
    """

    def __init__(
        self,
        dim: int,
        *,
        m: int = 16,
        ef_construction: int = 200,
        ef: int = 128,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        try:
            import hnswlib
        except ImportError as error:
            raise MissingExtra("hnswlib", "hnswlib", "The hnswlib engine") from error
        self.dim, self.m, self.ef_construction, self.ef, self.seed, self.threads = (
            dim,
            m,
            ef_construction,
            ef,
            seed,
            threads,
        )
        self._module: Any = hnswlib
        self.index: Any = None
        self.points = torch.empty(0, dim)

    def __len__(self) -> int:
        return len(self.points)

    def add(self, x: Tensor) -> Tensor:
        x = checked(x, "points", self.dim)
        start = len(self)
        fresh = plain(x)
        self.points = torch.cat([self.points, fresh]) if start else fresh.clone()
        if self.index is None:
            self.index = self._module.Index("l2", self.dim)
            self.index.init_index(max(1, len(x)), M=self.m, ef_construction=self.ef_construction, random_seed=self.seed)
        elif len(self) > self.index.get_max_elements():
            self.index.resize_index(max(len(self), 2 * self.index.get_max_elements()))
        self.index.set_num_threads(thread_count(self.threads))
        if len(fresh):
            self.index.add_items(fresh.numpy(), range(start, len(self)))
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Tensor) -> None:
        points = checked_update(x, len(self), self.dim)
        self.points, self.index = torch.empty(0, self.dim), None
        self.add(points)

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        checked_k(k, len(self))
        queries = plain(checked(x, "queries", self.dim))
        distances = torch.full((len(x), k), torch.inf)
        indices = torch.full((len(x), k), -1)
        found = min(k, len(self))
        self.index.set_ef(max(self.ef, found))
        self.index.set_num_threads(thread_count(self.threads))
        try:
            labels, d = self.index.knn_query(queries.numpy(), found)
        except RuntimeError as error:
            raise InputError(f"hnswlib found fewer than {found} points; raise ef (now {self.ef}) or m.") from error
        distances[:, :found], indices[:, :found] = torch.from_numpy(d), torch.from_numpy(labels.astype("int64"))
        return distances.to(x.device), indices.to(x.device)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        return without_own(*self.search(self.points, k + 1), torch.arange(len(self)))
