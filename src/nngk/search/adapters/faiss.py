"""faiss behind the protocol: flat, HNSW and IVF."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.search.checks import checked, checked_k, checked_update, without_own
from nngk.search.native import plain, thread_count


def load_faiss() -> ModuleType:
    """The faiss package, or a sentence that names the extra."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("faiss", "faiss", "The faiss engine") from error
    module: ModuleType = faiss
    return module


class Faiss:
    """A faiss index: ``kind`` is 'flat', 'hnsw' or 'ivf'.

    ``ef`` is the pool of an HNSW search, ``probes`` the number of cells an IVF search visits. On a machine with
    faiss-gpu, ``gpu=True`` moves flat and IVF indices there.

    >>> engine = Faiss(1)  # doctest: +SKIP
    >>> _ = engine.add(torch.tensor([[0.0], [1.0], [3.0]]))  # doctest: +SKIP
    >>> engine.all_neighbours(k=1)[1].tolist()  # doctest: +SKIP
    [[1], [0], [1]]
    """

    def __init__(
        self,
        dim: int,
        kind: str = "flat",
        *,
        m: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
        cells: int | None = None,
        probes: int = 32,
        gpu: bool = False,
        threads: int | None = None,
    ) -> None:
        if kind not in ("flat", "hnsw", "ivf"):
            raise InputError(f"kind must be flat, hnsw or ivf, got {kind!r}.")
        self.faiss = load_faiss()
        self.dim, self.kind, self.m, self.ef_construction = dim, kind, m, ef_construction
        self.ef, self.cells, self.probes, self.gpu, self.threads = ef, cells, probes, gpu, threads
        self.points = torch.empty(0, dim)
        self.index: Any = None

    def __len__(self) -> int:
        return len(self.points)

    def add(self, x: Tensor) -> Tensor:
        x = checked(x, "points", self.dim)
        start = len(self)
        fresh = plain(x)
        self.points = torch.cat([self.points, fresh]) if start else fresh.clone()
        self.faiss.omp_set_num_threads(thread_count(self.threads))
        if self.index is None:
            self.index = self._new_index(fresh)
        if len(fresh):
            self.index.add(fresh.numpy())
        return torch.arange(start, len(self), device=x.device)

    def update(self, x: Tensor) -> None:
        points = checked_update(x, len(self), self.dim)
        self.points, self.index = torch.empty(0, self.dim), None
        self.add(points)

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        checked_k(k, len(self))
        queries = plain(checked(x, "queries", self.dim))
        self.faiss.omp_set_num_threads(thread_count(self.threads))
        if self.kind == "hnsw":
            self.index.hnsw.efSearch = max(self.ef, k)
        if self.kind == "ivf":
            self.index.nprobe = self.probes
        distances, indices = self.index.search(queries.numpy(), k)
        d, i = torch.from_numpy(distances), torch.from_numpy(indices)
        return d.masked_fill(i < 0, torch.inf).to(x.device), i.to(x.device)

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        return without_own(*self.search(self.points, k + 1), torch.arange(len(self)))

    def _new_index(self, x: Tensor) -> Any:
        faiss = self.faiss
        if self.kind == "hnsw":
            index = faiss.IndexHNSWFlat(self.dim, self.m)
            index.hnsw.efConstruction = self.ef_construction
            return index
        if self.kind == "ivf":
            # The size that faiss recommends: four to sixteen times the root of the number of points.
            cells = self.cells or max(1, min(len(x) // 39, int(4 * len(x) ** 0.5)))
            index = faiss.IndexIVFFlat(faiss.IndexFlatL2(self.dim), self.dim, cells)
            index.train(x.numpy())
        else:
            index = faiss.IndexFlatL2(self.dim)
        if self.gpu:
            if not getattr(faiss, "get_num_gpus", int)():
                raise InputError("gpu=True needs faiss-gpu and a GPU; this faiss sees none.")
            index = faiss.index_cpu_to_all_gpus(index)
        return index
