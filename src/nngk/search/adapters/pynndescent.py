"""pynndescent behind the protocol."""

from typing import Any

import torch
from torch import Tensor

from nngk.errors import MissingExtra
from nngk.search.checks import checked, checked_k, checked_update, without_own
from nngk.search.native import plain

# pynndescent makes graphs of at least this many neighbours well; below as many points it has nothing to gain.
FEW = 64


class PyNNDescent:
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
        self.dim, self.neighbours, self.epsilon, self.seed, self.threads = dim, neighbours, epsilon, seed, threads
        self._module: Any = pynndescent
        self._index: tuple[int, Any] | None = None  # neighbours of the graph, and the index
        self.points = torch.empty(0, dim)

    def __len__(self) -> int:
        return len(self.points)

    def add(self, x: Tensor) -> Tensor:
        x = checked(x, "points", self.dim)
        start = len(self)
        self.points, self._index = torch.cat([self.points, plain(x)]), None
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Tensor) -> None:
        self.points, self._index = plain(checked_update(x, len(self), self.dim)).clone(), None

    def index(self, neighbours: int) -> Any:
        """The index, with a graph of at least so many neighbours."""
        if self._index is None or self._index[0] < neighbours:
            made = self._module.NNDescent(
                self.points.numpy(),
                metric="sqeuclidean",
                n_neighbors=neighbours,
                random_state=self.seed,
                n_jobs=self.threads or torch.get_num_threads(),
            )
            self._index = (neighbours, made)
        return self._index[1]

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        checked_k(k, len(self))
        x = checked(x, "queries", self.dim)
        if len(self) <= FEW:
            return self._exact().search(x, k)
        found = min(k, len(self))
        i, d = self.index(min(self.neighbours, len(self) - 1)).query(plain(x).numpy(), k=found, epsilon=self.epsilon)
        return self._padded(d, i, k, x)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        checked_k(k, len(self))
        if len(self) <= FEW:
            return self._exact().all_neighbours(k)
        i, d = self.index(max(min(k + 1, len(self) - 1), min(self.neighbours, len(self) - 1))).neighbor_graph
        d, i = self._padded(d[:, : k + 1], i[:, : k + 1], k + 1, self.points)
        return without_own(d, i, torch.arange(len(self)))

    def _exact(self) -> Any:
        from nngk.search.exact import Exact

        return Exact(self.points)

    def _padded(self, d: Any, i: Any, k: int, x: Tensor) -> tuple[Tensor, Tensor]:
        distances, indices = torch.full((len(x), k), torch.inf), torch.full((len(x), k), -1)
        width = i.shape[1]
        indices[:, :width] = torch.from_numpy(i.astype("int64"))
        distances[:, :width] = torch.from_numpy(d.astype("float32")).masked_fill(indices[:, :width] < 0, torch.inf)
        return distances.to(x.device), indices.to(x.device)
