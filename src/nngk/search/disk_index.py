"""An index larger than memory: graphs of parts of the points, which are built one after the other and stay on disk."""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.files import fitted, read_json, read_tensors, write_json, write_tensors
from nngk.search.checks import Points, checked, checked_k, real, whole
from nngk.search.fanng import FANNG
from nngk.search.native import empty_answer, thread_count
from nngk.search.partition import Parted, part_points, read_rows, rows_file

FORMAT = 1
TIE = 1e-5  # relative difference of squared distances below which rounding decides
ABOUT, PLACES = "index.json", "places.safetensors"


class About(TypedDict):
    """What the file beside the parts says."""

    format: int
    dim: int
    sizes: list[int]
    checksum: str


class Reach(TypedDict):
    """How far a query looks: into how many parts, each with a pool of ``ef``."""

    probes: int
    ef: int


def _fill(folder: Path, pieces: Iterable[Points], part: int, options: dict[str, Any]) -> None:
    """Write the parts, and last what says that they are complete."""
    places, dim = part_points(folder, pieces, part, options["seed"])
    sizes = places.starts.diff().tolist()
    for number, size in enumerate(sizes):
        if size:
            engine = FANNG(dim, **options)
            engine.build(read_rows(rows_file(folder, number), dim))
            engine.save(part_file(folder, number))
        rows_file(folder, number).unlink(missing_ok=True)
    checksum = write_tensors(folder / PLACES, places._asdict())
    write_json(folder / ABOUT, About(format=FORMAT, dim=dim, sizes=sizes, checksum=checksum))


def _empty(folder: Path) -> None:
    """Remove what an attempt left behind: the folder was empty before."""
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def part_file(folder: Path, number: int) -> Path:
    """Return the file of one part."""
    return folder / f"part{number:05d}.fanng"


class DiskIndex:
    """Search in a folder that :meth:`build` filled, by squared Euclidean distance; a point's id is its place in order.

    Every part has a graph of its own. A query is answered by the parts whose centres are nearest to it. In memory are
    edges and byte codes of the parts that were opened, some 340 bytes a point of 128 dimensions; vectors are read from
    the files, which must not change meanwhile, where answers are measured.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     index = DiskIndex.build(f"{home}/index", [torch.eye(3), 2 * torch.eye(3)])
    ...     index.search(torch.tensor([[1.9, 0.0, 0.0]]), k=2)[1].tolist()
    [[3, 0]]

    Args:
        folder: where the index is.
        memory: bytes that opened parts may take; those that were not asked for longest are closed. None: all stay.
        recall: what ``search`` aims at where nothing else is said.
        threads: of the core; torch's number by default.
    """

    def __init__(
        self, folder: str | Path, *, memory: int | None = None, recall: float = 0.95, threads: int | None = None
    ) -> None:
        self.folder, self.memory = Path(folder), None if memory is None else whole(memory, "memory")
        self.recall, self.threads = real(recall, "recall", 0, 1), threads
        thread_count(threads)
        if not (self.folder / ABOUT).exists():
            raise InputError(f"{folder} holds no complete index on disk: make one with DiskIndex.build.")
        about = read_json(self.folder / ABOUT, "an index on disk")
        if about.get("format") != FORMAT:
            raise InputError(f"{folder} is an index of the format {about.get('format')}, not {FORMAT}: build it again.")
        self.about = fitted(about, About, self.folder / ABOUT)
        self.dim = self.about["dim"]
        self._places = Parted(**read_tensors(self.folder / PLACES, self.about["checksum"]))
        self._open: OrderedDict[int, tuple[FANNG, int]] = OrderedDict()
        self._reaches: dict[tuple[int, float], Reach] = {}

    def __len__(self) -> int:
        return sum(self.about["sizes"])

    @classmethod
    def build(
        cls,
        folder: str | Path,
        pieces: Iterable[Points],
        *,
        part: int = 150_000,
        degree: int = 32,
        seed: int = 0,
        threads: int | None = None,
    ) -> "DiskIndex":
        """Index points that come in pieces (n, dim), of which one at a time is in memory; return what can be searched.

        The folder must be empty or not there. ``part`` is about how many points share a graph, and what is in memory
        while it is made. Until the index is complete, the folder takes twice the room of the vectors.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty: an index is built in a folder of its own.")
        folder.mkdir(parents=True, exist_ok=True)
        options = {"degree": degree, "seed": seed, "threads": threads}
        try:
            _fill(folder, pieces, whole(part, "part", 1000), options)
        except OSError as error:
            _empty(folder)
            raise InputError(f"{folder} cannot be written: {error.strerror or error}.") from error
        except BaseException:
            _empty(folder)
            raise
        return cls(folder, threads=threads)

    def search(
        self,
        x: Points,
        k: int,
        *,
        recall: float | None = None,
        probes: int | None = None,
        ef: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest points of each query: squared distances (n, k) and ids (n, k).

        ``probes`` is how many parts answer and ``ef`` the pool of each; without them both are chosen for ``recall`` on
        a sample of the points (once, then remembered). Points that were not found have the id -1.
        """
        k = checked_k(k, len(self))
        queries = checked(x, "queries", self.dim, dtype=torch.float32)
        if (probes is None) != (ef is None) or (probes is not None and recall is not None):
            raise InputError("Give probes and ef together, or recall, or none of them.")
        if probes is None or ef is None:
            reach = self.reach(k, self.recall if recall is None else real(recall, "recall", 0, 1))
        else:
            reach = Reach(probes=whole(probes, "probes", 1), ef=whole(ef, "ef"))
        return self._search(queries.cpu(), k, reach)

    def reach(self, k: int, recall: float) -> Reach:
        """Return the fewest parts and then the least pool that reach this recall on a sample of the points."""
        if (k, recall) not in self._reaches:
            self._reaches[k, recall] = self._found_reach(k, recall)
        return self._reaches[k, recall]

    def _found_reach(self, k: int, recall: float) -> Reach:
        places, deep = self._places, min(k, self._places.near.shape[1])
        limit = places.near[:, deep - 1 : deep] * (1 + TIE)
        wanted = recall + (1 - recall) / 2  # the pool may lose as much again
        order = self._nearest_parts(places.queries, len(self.about["sizes"]))
        ranks = (order[:, None, :] == places.near_parts[:, :deep, None]).int().argmax(2)
        probes = 1
        while probes < order.shape[1] and float((ranks < probes).float().mean()) < wanted:
            probes += 1
        ef = k
        while True:
            reach, own = Reach(probes=probes, ef=ef), (places.own_part, places.own_row)
            found = self._search(places.queries, k, reach, own)[0][:, :deep]
            if float((found <= limit).float().mean()) >= recall or ef >= max(self.about["sizes"]):
                return reach
            ef = max(ef + 8, ef * 5 // 4)

    def _nearest_parts(self, queries: Tensor, probes: int) -> Tensor:
        return torch.cdist(queries, self._places.centres).topk(min(probes, len(self._places.centres)), largest=False)[1]

    def _search(
        self, queries: Tensor, k: int, reach: Reach, own: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """``own`` (parts, rows there): the queries are indexed points, to be answered as if they were not."""
        parts = self._nearest_parts(queries, reach["probes"])
        distances, ids = empty_answer(len(queries), parts.shape[1] * k)
        distances.fill_(torch.inf)
        ids.fill_(-1)
        for number in parts.unique().tolist():
            start, size = int(self._places.starts[number]), self.about["sizes"][number]
            if not size:
                continue
            rows, column = (parts == number).nonzero(as_tuple=True)
            engine, few = self._part(number), min(k, size)
            pool = max(few, reach["ef"])
            near, local = engine.search(queries[rows], few, ef=pool)
            if own is not None:
                mine = (own[0][rows] == number).nonzero()[:, 0]
                near[mine], local[mine] = engine.search_left_out(own[1][rows[mine]], few, ef=pool)
            at = column[:, None] * k + torch.arange(few)
            distances[rows[:, None], at] = near
            ids[rows[:, None], at] = torch.where(local < 0, -1, self._places.order[start + local.clamp(min=0)])
        best = distances.topk(k, largest=False)
        return best.values, ids.gather(1, best.indices)

    def _part(self, number: int) -> FANNG:
        """Return a part, opened if it is not open yet; others are closed where memory is short."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number][0]
        engine = FANNG.load(part_file(self.folder, number), threads=self.threads, on_disk=True)
        if len(engine) != self.about["sizes"][number] or engine.dim != self.dim:
            raise InputError(f"{part_file(self.folder, number)} belongs to another index: build this one again.")
        self._open[number] = engine, int(engine.stats()["bytes"])
        while self.memory is not None and len(self._open) > 1 and self.memory < self.open_bytes:
            self._open.popitem(last=False)
        return engine

    @property
    def open_bytes(self) -> int:
        """The memory that opened parts take."""
        return sum(size for _, size in self._open.values())
