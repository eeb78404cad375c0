"""pynndescent behind the protocol."""

from typing import Any

import torch
from torch import Tensor

from nngk.errors import MissingExtra
from nngk.search.adapters.adapter import Adapter
from nngk.search.checks import checked_k, padded, without_own
from nngk.search.exact import Exact

# pynndescent makes graphs of at least this many neighbours well; below as many points it has nothing to gain.
FEW = 64


class PyNNDescent(Adapter):
    """A pynndescent index; ``epsilon`` is how far beyond the best a search goes on.

    It cannot grow: ``add`` and ``update`` make it anew at the next question.

    >>> engine = PyNNDescent(1)  # doctest: +SKIP
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))  # doctest: +SKIP
    >>> engine.all_neighbours(k=1)[1].tolist()  # doctest: +SKIP
    [[1], [0], [1]]
    """

    def __init__(
        self, dim: int, *, neighbours: int = 30, epsilon: float = 0.12, seed: int = 0, threads: int | None = None
    ) -> None:
        try:
            import pynndescent
        except ImportError as error:
            raise MissingExtra("pynndescent", "pynndescent", "The pynndescent engine") from error
        super().__init__(dim, threads)
        self.neighbours, self.epsilon, self.seed = neighbours, epsilon, seed
        self._module: Any = pynndescent
        self._index: tuple[int, Any] | None = None  # neighbours of the graph, and the index

    def insert(self, fresh: Tensor, start: int) -> None:
        self.clear()

    def clear(self) -> None:
        self._index = None

    def index(self, neighbours: int) -> Any:
        """Return the index, with a graph of at least so many neighbours."""
        if self._index is None or self._index[0] < neighbours:
            made = self._module.NNDescent(
                self.points.numpy(),
                metric="sqeuclidean",
                n_neighbors=neighbours,
                random_state=self.seed,
                n_jobs=self.thread_count,
            )
            self._index = (neighbours, made)
        return self._index[1]

    def query(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if len(self) <= FEW:
            return Exact(self.points).search(queries, k)
        index = self.index(min(self.neighbours, len(self) - 1))
        i, d = index.query(queries.numpy(), k=k, epsilon=self.epsilon)
        return padded(d, i, k)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the lists of the graph itself, made long enough for ``k``."""
        k = checked_k(k, len(self))
        if len(self) <= FEW:
            return Exact(self.points).all_neighbours(k)
        i, d = self.index(max(min(k + 1, len(self) - 1), min(self.neighbours, len(self) - 1))).neighbor_graph
        return without_own(*padded(d[:, : k + 1], i[:, : k + 1], k + 1), torch.arange(len(self)))
