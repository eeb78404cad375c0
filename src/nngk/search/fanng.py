"""FANNG: fast approximate nearest neighbour graphs (Harwood and Drummond, CVPR 2016)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search.calibration import Effort, find_effort, one_effort, sample_truth
from nngk.search.checks import checked, checked_k, checked_update
from nngk.search.native import empty_answer, plain, required_core, thread_count

AS_MANY = 1 << 20  # rounds of walks: never reached
STORAGE = {"float32": 0, "bfloat16": 1, "float16": 2}


class FANNG:
    """Approximate neighbour search on a graph that is walked from vertex to vertex towards the query.

    An edge p→q is left out where a shorter edge p→r leads nearer to q (r *occludes* q); ``alpha`` above 1 keeps some
    of those. The graph is made from neighbour lists, and random walks that get stuck add the edges they lacked, until
    the share ``success`` of them arrives. Walks measure distances on byte codes of the vectors where those order
    neighbours well, and answers are measured on the vectors as stored.

    Args:
        dim: length of the vectors.
        degree: most edges of a vertex: more find more at a given pool, and cost more each step.
        alpha: how much nearer r must be to q than p is, to occlude it.
        neighbours: length of the lists that the graph is made from. ``all_neighbours(k)`` costs least for k up to it.
        success: the share of random walks that should reach their target.
        walk_rounds: most rounds of walks (of n/16 each) that add edges to that end; None: as many as it takes. Few do
            for searches, which start near their target; a graph that is walked from anywhere, as the paper's, needs
            more. ``stats()['walk_success']`` tells how far it came.
        recall: what the lists, ``search`` and ``all_neighbours`` aim at where nothing else is said.
        storage: 'float32', 'bfloat16' or 'float16'.
        seed: the same seed gives the same graph, whatever the number of threads.
        threads: of the core; torch's number by default.

    >>> engine = FANNG(dim=1)
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> engine.search(torch.tensor([[2.9]]), k=2)[1].tolist()
    [[2, 1]]
    >>> engine.all_neighbours(k=1)[1].tolist()
    [[1], [0], [1]]
    """

    def __init__(
        self,
        dim: int,
        *,
        degree: int = 32,
        alpha: float = 1.1,
        neighbours: int = 48,
        success: float = 0.98,
        walk_rounds: int | None = 8,
        recall: float = 0.98,
        storage: str = "float32",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        walk_rounds = AS_MANY if walk_rounds is None else walk_rounds
        for name, value, low, high in (
            ("dim", dim, 1, 32768),
            ("degree", degree, 2, 4096),
            ("alpha", alpha, 1.0, 10.0),
            ("neighbours", neighbours, 2, 1 << 20),
            ("success", success, 0.0, 1.0),
            ("walk_rounds", walk_rounds, 0, AS_MANY),
            ("recall", recall, 0.0, 1.0),
            ("seed", seed, 0, 1 << 48),
        ):
            if not low <= value <= high:
                raise InputError(f"{name} must lie between {low} and {high}, got {value}.")
        if storage not in STORAGE:
            raise InputError(f"storage must be one of {', '.join(STORAGE)}, got {storage!r}.")
        self.dim, self.recall, self.threads = dim, recall, threads
        self._index: Any = required_core("FANNG").Fanng(
            dim=dim,
            degree=degree,
            alpha=alpha,
            neighbours=neighbours,
            success=success,
            walk_rounds=walk_rounds,
            recall=recall,
            seed=seed,
            storage=STORAGE[storage],
        )
        self.list_recall = math.nan  # of the last all_neighbours from the lists, as measured on a sample
        self._efforts: dict[tuple[int, float], Effort] = {}  # found by calibration; forgotten when the points change

    def __len__(self) -> int:
        return len(self._index)

    def build(self, x: Tensor) -> None:
        """Index these points in place of all others; row i gets index i."""
        x = checked(x, "points", self.dim)
        if not len(x):
            raise InputError("build needs at least one point, got none.")
        self._changed()
        self._index.build(plain(x), thread_count(self.threads))

    def add(self, x: Tensor) -> Tensor:
        """Add points (n, dim); return their indices. The first ones are built into a graph at once."""
        x = checked(x, "points", self.dim)
        ids = torch.empty(len(x), dtype=torch.long)
        self._changed()
        self._index.add(plain(x), thread_count(self.threads), ids)
        return ids.to(x.device)

    def remove(self, ids: Tensor | Sequence[int]) -> None:
        """Remove points by index. Their indices are not given again, and the others keep theirs."""
        wanted = torch.as_tensor(ids, dtype=torch.long).cpu().reshape(-1).unique()
        unknown = [int(i) for i in wanted if not self._index.alive(int(i))]
        if unknown:
            raise InputError(f"No point has the index {unknown[0]}: it was never given or is already removed.")
        self._changed()
        self._index.remove(wanted, thread_count(self.threads))

    def update(self, x: Tensor) -> None:
        """All points moved to ``x``, in the order of their indices; the old graph is where the new one starts from."""
        x = checked_update(x, len(self), self.dim)
        self._changed()
        if len(x):
            self._index.update(plain(x), thread_count(self.threads))

    def search(
        self, x: Tensor, k: int, *, ef: int | None = None, budget: int | None = None, recall: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ``k`` nearest points of each query: squared distances (n, k) and indices (n, k).

        Say at most one of: ``ef``, the size of the pool of a best-first search; ``budget``, the number of distance
        computations of the paper's backtracking search; ``recall``, for which a pool is chosen on a sample of the
        indexed points (once, then remembered).
        """
        checked_k(k, len(self))
        x = checked(x, "queries", self.dim)
        effort = one_effort(ef, budget, recall) or self.effort(k, self.recall if recall is None else recall)
        distances, indices = empty_answer(len(x), k)
        threads = thread_count(self.threads)
        self._index.search(plain(x), k, effort.ef, effort.budget, threads, distances, indices)
        return distances.to(x.device), indices.to(x.device)

    def all_neighbours(
        self, k: int, *, ef: int | None = None, budget: int | None = None, recall: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ``k`` nearest other points of every index ever given; rows of removed points are -1.

        With ``ef`` or ``budget`` every point walks from its own vertex. Otherwise the answer is the neighbour lists
        behind the graph, which are found anew where a sample of them does not reach ``recall``.
        """
        checked_k(k, len(self))
        effort = one_effort(ef, budget, recall)
        threads = thread_count(self.threads)
        distances, indices = empty_answer(self._index.id_count, k)
        if effort is not None:
            ids = torch.arange(self._index.id_count)
            self._index.search_points(ids, k, effort.ef, effort.budget, True, threads, distances, indices)
            return distances, indices
        wanted = self.recall if recall is None else recall
        sample, truth = sample_truth(self._index, k, threads)
        self.list_recall = self._index.complete_lists(sample, truth, wanted, threads)
        self._index.from_lists(torch.arange(self._index.id_count), k, threads, distances, indices)
        return distances, indices

    def effort(self, k: int, recall: float) -> Effort:
        """The least pool that reaches this recall on a sample of the indexed points."""
        if (k, recall) not in self._efforts:
            self._efforts[k, recall] = find_effort(self._index, k, recall, thread_count(self.threads))
        return self._efforts[k, recall]

    def vectors(self, ids: Tensor) -> Tensor:
        """The points of these indices, as stored."""
        out = torch.empty(len(ids), self.dim)
        try:
            self._index.vectors(ids.cpu().contiguous(), out)
        except ValueError as error:
            raise InputError("Some of the indices belong to no point.") from error
        return out

    def stats(self) -> dict[str, float]:
        """Degrees, memory, walk success, and the distance computations of all searches so far."""
        stats: dict[str, float] = self._index.stats()
        stats["mean_degree"] = stats["edges"] / max(1, stats["points"])
        stats["distances_per_query"] = stats["distances"] / max(1, stats["queries"])
        return stats

    def save(self, path: str | Path) -> None:
        """Write the index to one file, which replaces an older one only when it is complete."""
        try:
            self._index.save(str(path))
        except RuntimeError as error:
            raise InputError(f"{path} {error}") from error

    @classmethod
    def load(cls, path: str | Path, *, recall: float = 0.98, threads: int | None = None) -> "FANNG":
        """Read an index that ``save`` wrote. The file is mapped into memory and checked; a damaged one is refused."""
        engine = cls.__new__(cls)
        try:
            engine._index = required_core("FANNG").Fanng.load(str(path))
        except RuntimeError as error:
            raise InputError(f"{path} {error}.") from error
        engine.dim, engine.recall, engine.threads = engine._index.settings["dim"], recall, threads
        engine.list_recall, engine._efforts = math.nan, {}
        return engine

    def _changed(self) -> None:
        self._efforts = {}
