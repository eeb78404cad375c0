"""FANNG: fast approximate nearest neighbour graphs (Harwood and Drummond, CVPR 2016)."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.files import clear_abandoned, write_atomically
from nngk.search.calibration import Effort, find_effort, one_effort, sample_truth
from nngk.search.checks import Points, checked, checked_ids, checked_k, checked_update, real, whole
from nngk.search.native import empty_answer, plain, required_core, thread_count

AS_MANY = 1 << 20  # rounds of walks: never reached
STORAGE = {"float32": 0, "bfloat16": 1, "float16": 2}


class FANNG:
    """Approximate neighbour search on a graph that is walked from vertex to vertex towards the query.

    An edge p→q is left out where a shorter edge p→r leads nearer to q (r *occludes* q); ``alpha`` above 1 keeps some
    of those. The graph is made from neighbour lists. Where few random walks arrive on it, because classes lie apart,
    it is joined by long edges between vertices that stand for all others; then walks that get stuck add the edges
    they lacked, until the share ``success`` of them arrives. Walks measure distances on byte codes of the vectors
    where those order neighbours well, and answers are measured on the vectors as stored.

    Args:
        dim: length of the vectors.
        degree: most edges of a vertex: more find more at a given pool, and cost more each step.
        alpha: how much nearer r must be to q than p is, to occlude it.
        neighbours: length of the lists that the graph is made from. ``all_neighbours(k)`` costs least for k up to it.
        success: the share of random walks that should reach their target.
        walk_rounds: most rounds of walks (of n/16 each) that add edges to that end; they stop earlier where eight
            rounds brought less than three more in a hundred walks to their target. None: as many as it takes, for a
            graph that is walked from anywhere, as the paper's. ``stats()['walk_success']`` tells how far it came.
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
        walk_rounds: int | None = 40,
        recall: float = 0.98,
        storage: str = "float32",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        walk_rounds = AS_MANY if walk_rounds is None else walk_rounds
        if storage not in STORAGE:
            raise InputError(f"storage must be one of {', '.join(STORAGE)}, got {storage!r}.")
        thread_count(threads)
        options = {
            name: whole(value, name, low, high)
            for name, value, low, high in (
                ("dim", dim, 1, 32768),
                ("degree", degree, 2, 4096),
                ("neighbours", neighbours, 2, 1 << 20),
                ("walk_rounds", walk_rounds, 0, AS_MANY),
                ("seed", seed, 0, 1 << 48),
            )
        } | {
            name: real(value, name, low, high)
            for name, value, low, high in (
                ("alpha", alpha, 1, 10),
                ("success", success, 0, 1),
                ("recall", recall, 0, 1),
            )
        }
        self._index: Any = required_core("FANNG").Fanng(**options, storage=STORAGE[storage])
        self._ready(recall, threads)

    def _ready(self, recall: float, threads: int | None) -> None:
        settings = self._index.settings
        self.dim: int = settings["dim"]
        self.recall, self.threads = recall, threads
        self.path: Path | None = None  # of the file that holds the vectors, where it was opened on disk
        # What can be stored: half precision ends at 65504.
        largest = 65504.0 if settings["storage"] == STORAGE["float16"] else math.inf
        self._limits: dict[str, Any] = {"dtype": torch.float32, "largest": largest}
        self.list_recall = math.nan  # of the last all_neighbours from the lists, as measured on a sample
        self._efforts: dict[tuple[int, float], Effort] = {}  # found by calibration; forgotten when the points change

    def __len__(self) -> int:
        return len(self._index)

    def build(self, x: Points) -> None:
        """Index these points in place of all others; row i gets index i."""
        self._require_memory()
        x = checked(x, "points", self.dim, **self._limits)
        if not len(x):
            raise InputError("build needs at least one point, got none.")
        self._index.build(plain(x), thread_count(self.threads))
        self._changed()

    def prepare(self) -> None:
        """Make the graph now. Otherwise the first search after ``build``, ``update`` or the first ``add`` does."""
        self._index.prepare(thread_count(self.threads))

    def add(self, x: Points) -> Tensor:
        """Add points (n, dim); return their indices. Lists of the first ones are found at once."""
        self._require_memory()
        x = checked(x, "points", self.dim, **self._limits)
        ids = torch.empty(len(x), dtype=torch.long)
        self._index.add(plain(x), thread_count(self.threads), ids)
        self._changed()
        return ids.to(x.device)

    def remove(self, ids: Tensor | Sequence[int]) -> None:
        """Remove points by index. Their indices are not given again, and the others keep theirs."""
        self._require_memory()
        wanted = checked_ids(ids).unique()
        unknown = [int(i) for i in wanted if not self._index.alive(int(i))]
        if unknown:
            raise InputError(f"No point has the index {unknown[0]}: it was never given or is already removed.")
        self._index.remove(wanted, thread_count(self.threads))
        self._changed()

    def update(self, x: Points) -> None:
        """Move all points to ``x``, in the order of their indices; the new graph starts from the old one."""
        self._require_memory()
        x = checked_update(x, len(self), self.dim, **self._limits)
        if len(x):
            self._index.update(plain(x), thread_count(self.threads))
        self._changed()

    def search(
        self, x: Points, k: int, *, ef: int | None = None, budget: int | None = None, recall: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest points of each query: squared distances (n, k) and indices (n, k).

        Say at most one of: ``ef``, the size of the pool of a best-first search; ``budget``, the number of distance
        computations of the paper's backtracking search; ``recall``, for which a pool is chosen on a sample of the
        indexed points (once, then remembered).
        """
        k = checked_k(k, len(self))
        x = checked(x, "queries", self.dim, dtype=torch.float32)
        effort = one_effort(ef, budget, recall) or self.effort(k, self.recall if recall is None else recall)
        distances, indices = empty_answer(len(x), k)
        threads = thread_count(self.threads)
        with self._reading():
            self._index.search(plain(x), k, effort.ef, effort.budget, threads, distances, indices)
        return distances.to(x.device), indices.to(x.device)

    def search_left_out(self, ids: Tensor, k: int, *, ef: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest others of some points, each searched as if it were not indexed."""
        distances, indices = empty_answer(len(ids), k)
        with self._reading():
            self._index.search_points(ids, k, ef, 0, False, thread_count(self.threads), distances, indices)
        return distances, indices

    def all_neighbours(
        self, k: int, *, ef: int | None = None, budget: int | None = None, recall: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest other points of every index ever given; rows of removed points are -1.

        With ``ef`` or ``budget`` every point walks from its own vertex. Otherwise the answer is the neighbour lists
        behind the graph, which are found anew where a sample of them does not reach ``recall``.
        """
        k = checked_k(k, len(self))
        effort = one_effort(ef, budget, recall)
        threads = thread_count(self.threads)
        ids = torch.arange(self._index.id_count)  # asked once: another thread may be adding points
        distances, indices = empty_answer(len(ids), k)
        if effort is not None:
            with self._reading():
                self._index.search_points(ids, k, effort.ef, effort.budget, True, threads, distances, indices)
            return distances, indices
        self._require_memory()
        wanted = self.recall if recall is None else recall
        sample, truth = sample_truth(self._index, k, threads)
        self.list_recall = self._index.complete_lists(sample, truth, wanted, threads)
        self._index.from_lists(ids, k, threads, distances, indices)
        return distances, indices

    def effort(self, k: int, recall: float) -> Effort:
        """Return the least pool that reaches this recall on a sample of the indexed points."""
        known = self._efforts  # replaced when the points change, perhaps by another thread
        if (k, recall) not in known:
            with self._reading():
                known[k, recall] = find_effort(self._index, k, recall, thread_count(self.threads))
        return known[k, recall]

    def vectors(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return the points of these indices, as stored."""
        wanted = checked_ids(ids)
        out = torch.empty(len(wanted), self.dim, dtype=torch.float32)  # as the core writes it
        with self._reading():
            try:
                self._index.vectors(wanted, out)
            except ValueError as error:
                raise InputError("Some of the indices belong to no point.") from error
        return out

    def stats(self) -> dict[str, float]:
        """Return degrees, memory, walk success, and the distance computations of all searches so far."""
        self.prepare()
        stats: dict[str, float] = self._index.stats()
        stats["mean_degree"] = stats["edges"] / max(1, stats["points"])
        stats["distances_per_query"] = stats["distances"] / max(1, stats["queries"])
        return stats

    def save(self, path: str | Path) -> None:
        """Write the index to one file, which replaces an older one only when it is complete."""
        self._require_memory()
        path = Path(path)
        try:
            clear_abandoned(path)
            write_atomically(path, lambda part: self._index.save(str(part)))
        except RuntimeError as error:
            raise InputError(f"{path} {error}.") from error
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error

    @classmethod
    def load(
        cls, path: str | Path, *, recall: float = 0.98, threads: int | None = None, on_disk: bool = False
    ) -> "FANNG":
        """Read an index that ``save`` wrote. It is read into memory and checked; a damaged one is refused.

        With ``on_disk`` the vectors stay in the file, which is checked as well and must not change: walks go by the
        byte codes in memory, and answers are measured on what is read from the file. Such an index can be searched,
        not changed.
        """
        real(recall, "recall", 0, 1)
        thread_count(threads)
        engine = cls.__new__(cls)
        try:
            engine._index = required_core("FANNG").Fanng.load(str(path), on_disk)
        except RuntimeError as error:
            raise InputError(f"{path} {error}.") from error
        engine._ready(recall, threads)
        engine.path = Path(path) if on_disk else None
        return engine

    def _require_memory(self) -> None:
        if self.path is not None:
            raise InputError(f"{self.path} was opened on disk, for searching only: load it without on_disk=True.")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Say which file it was that could no longer be read."""
        try:
            yield
        except RuntimeError as error:
            if self.path is None:
                raise
            raise InputError(f"{self.path} {error}.") from error

    def _changed(self) -> None:
        self._efforts = {}
