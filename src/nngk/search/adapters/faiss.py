"""faiss behind the protocol: flat, HNSW and IVF."""

from types import ModuleType
from typing import Any

from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.search.adapters.adapter import Adapter
from nngk.search.checks import padded

KINDS = ("flat", "hnsw", "hnsw-sq8", "ivf")


def load_faiss() -> ModuleType:
    """Return the faiss package, or raise MissingExtra, which names the extra."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("faiss", "faiss", "The faiss engine") from error
    module: ModuleType = faiss
    return module


class Faiss(Adapter):
    """A faiss index of the ``kind`` 'flat', 'hnsw', 'hnsw-sq8' (vectors in bytes, so distances are rough) or 'ivf'.

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
        if kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
        super().__init__(dim, threads)
        self.faiss = load_faiss()
        self.kind, self.m, self.ef_construction = kind, m, ef_construction
        self.ef, self.cells, self.probes, self.gpu = ef, cells, probes, gpu
        self.index: Any = None

    def insert(self, fresh: Tensor, start: int) -> None:
        self.faiss.omp_set_num_threads(self.thread_count)
        if self.index is None:
            self.index = self._new_index(fresh)
        self.index.add(fresh.numpy())

    def clear(self) -> None:
        self.index = None

    def query(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.faiss.omp_set_num_threads(self.thread_count)
        if self.kind.startswith("hnsw"):
            self.index.hnsw.efSearch = max(self.ef, k)
        if self.kind == "ivf":
            self.index.nprobe = self.probes
        distances, indices = self.index.search(queries.numpy(), k)
        return padded(distances, indices, k)

    def _new_index(self, x: Tensor) -> Any:
        faiss = self.faiss
        if self.kind.startswith("hnsw"):
            if self.kind == "hnsw":
                index = faiss.IndexHNSWFlat(self.dim, self.m)
            else:
                index = faiss.IndexHNSWSQ(self.dim, faiss.ScalarQuantizer.QT_8bit, self.m)
                index.train(x.numpy())
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
