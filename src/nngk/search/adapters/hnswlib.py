"""hnswlib behind the protocol."""

from typing import Any

from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.search.adapters.adapter import Adapter
from nngk.search.checks import padded


class Hnswlib(Adapter):
    """An hnswlib index with squared Euclidean distances; ``ef`` is the pool of a search.

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
        super().__init__(dim, threads)
        self.m, self.ef_construction, self.ef, self.seed = m, ef_construction, ef, seed
        self._module: Any = hnswlib
        self.index: Any = None

    def insert(self, fresh: Tensor, start: int) -> None:
        if self.index is None:
            self.index = self._module.Index("l2", self.dim)
            self.index.init_index(len(fresh), M=self.m, ef_construction=self.ef_construction, random_seed=self.seed)
        elif len(self) > self.index.get_max_elements():
            self.index.resize_index(max(len(self), 2 * self.index.get_max_elements()))
        self.index.set_num_threads(self.thread_count)
        self.index.add_items(fresh.numpy(), range(start, len(self)))

    def clear(self) -> None:
        self.index = None

    def query(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.index.set_ef(max(self.ef, k))
        self.index.set_num_threads(self.thread_count)
        try:
            labels, distances = self.index.knn_query(queries.numpy(), k)
        except RuntimeError as error:
            raise InputError(f"hnswlib found fewer than {k} points; raise ef (now {self.ef}) or m.") from error
        return padded(distances, labels, k)
