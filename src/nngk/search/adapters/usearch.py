"""usearch behind the protocol."""

from typing import Any

import numpy as np
from torch import Tensor

from nngk.errors import MissingExtra
from nngk.search.adapters.adapter import Adapter
from nngk.search.checks import padded


class Usearch(Adapter):
    """A usearch index with squared Euclidean distances; ``ef`` is the pool of a search.

    >>> engine = Usearch(1)  # doctest: +SKIP
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))  # doctest: +SKIP
    >>> engine.all_neighbours(k=1)[1].tolist()  # doctest: +SKIP
    [[1], [0], [1]]
    """

    def __init__(
        self, dim: int, *, m: int = 16, ef_construction: int = 128, ef: int = 128, threads: int | None = None
    ) -> None:
        try:
            import usearch.index
        except ImportError as error:
            raise MissingExtra("usearch", "usearch", "The usearch engine") from error
        super().__init__(dim, threads)
        self.m, self.ef_construction, self.ef = m, ef_construction, ef
        self._make: Any = usearch.index.Index
        self.index: Any = None

    def insert(self, fresh: Tensor, start: int) -> None:
        if self.index is None:
            self.index = self._make(
                ndim=self.dim, metric="l2sq", dtype="f32", connectivity=self.m, expansion_add=self.ef_construction
            )
        self.index.add(range(start, len(self)), fresh.numpy(), threads=self.thread_count)

    def clear(self) -> None:
        self.index = None

    def query(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.index.expansion_search = max(self.ef, k)
        found = self.index.search(queries.numpy(), k, threads=self.thread_count)
        distances, keys = np.atleast_2d(found.distances), np.atleast_2d(found.keys).astype(np.int64)
        return padded(distances, np.where(np.isnan(distances), -1, keys), k)  # NaN where fewer than k were found
