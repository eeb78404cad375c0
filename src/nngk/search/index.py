"""Points under names of your own: other measures than Euclidean distance, and searches among some of the points."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nngk.errors import InputError
from nngk.search.checks import Points, checked, checked_ids, whole
from nngk.search.choose import create_engine
from nngk.search.engine import Engine
from nngk.search.exact import Exact
from nngk.search.fanng import FANNG

MEASURES = ("l2", "cosine", "inner product")
FEW = 0.05  # of the points: when so few are allowed, comparing with each of them is cheaper than walking past the rest
VALUES = 1 << 24  # that are gathered at once to measure answers


class Index:
    """Points with ids of your choosing, searched by distance, by cosine or by inner product.

    ``search`` answers as faiss and hnswlib do: values (n, k) and ids (n, k), best first. With 'l2' the values are
    squared distances, otherwise similarities, where more is better. Points that an index cannot find for a query have
    the id -1. Inner products become distances by one more dimension, which gives all points the length of the longest;
    they are searched exactly.

    >>> index = Index(dim=2, measure="cosine")
    >>> index.add(torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, 9.0]]), ids=[70, 71, 72])
    >>> index.search(torch.tensor([[0.0, 1.0]]), k=2)[1].tolist()
    [[72, 71]]
    >>> index.search(torch.tensor([[0.0, 1.0]]), k=2, allowed=[70, 71])[1].tolist()
    [[71, 70]]
    """

    def __init__(self, dim: int, measure: str = "l2", *, engine: str = "exact", threads: int | None = None) -> None:
        if measure not in MEASURES:
            raise InputError(f"The measure is one of {', '.join(MEASURES)}, not {measure!r}.")
        if engine not in ("exact", "fanng"):
            raise InputError(f"An index is searched by 'exact' or by 'fanng', not by {engine!r}.")
        if engine == "fanng" and measure == "inner product":
            raise InputError(
                "A graph finds few of the largest inner products: search for those with engine='exact', or for cosines."
            )
        self.dim, self.measure = whole(dim, "dim", 1, 32767), measure
        self._kind, self._threads = engine, threads
        self._engine = self._empty()
        self._ids = torch.empty(0, dtype=torch.long)  # of the engine's rows; -1 where a point was removed
        self._rows: dict[int, int] = {}
        self._longest = 0.0  # squared length of the longest point, for inner products

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ids(self) -> Tensor:
        """The ids of all points, in the order in which they were added."""
        return self._ids[self._ids >= 0].clone()

    def add(self, x: Points, ids: Tensor | list[int] | None = None) -> None:
        """Add points (n, dim) under new ids, which are whole numbers from 0; without ``ids`` they count on."""
        x = checked(x, "points", self.dim, dtype=torch.float32)
        if ids is None:
            first = int(self._ids.max()) + 1 if len(self._ids) else 0
            new = torch.arange(first, first + len(x))
        else:
            new = checked_ids(ids)
        self._require_new(new, len(x))
        if self.measure == "inner product" and len(x):
            longest = float(x.double().square().sum(1).max())
            if longest > self._longest:
                self._longest = longest
                self._lengthen()
        if len(x):
            self._engine.add(self._placed(x))
        self._rows |= {int(i): row for row, i in enumerate(new.tolist(), len(self._ids))}
        self._ids = torch.cat([self._ids, new])

    def remove(self, ids: Tensor | list[int]) -> None:
        """Remove points by id."""
        rows = torch.tensor(self._rows_of(ids), dtype=torch.long).unique()
        if isinstance(self._engine, FANNG):
            self._engine.remove(rows)
            self._ids[rows] = -1
        else:
            assert isinstance(self._engine, Exact)
            keep = torch.ones(len(self._ids), dtype=torch.bool)
            keep[rows] = False
            self._engine = Exact(self._engine.points[keep], threads=self._threads)
            self._ids = self._ids[keep]
        self._rows = {int(i): row for row, i in enumerate(self._ids.tolist()) if i >= 0}

    def search(self, x: Points, k: int, *, allowed: Tensor | list[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return the ``k`` best points of each query: values (n, k) and ids (n, k).

        ``allowed`` names the ids among which to search; the others are as if they were not there.
        """
        x = checked(x, "queries", self.dim, dtype=torch.float32)
        k = whole(k, "k")
        rows = None if allowed is None else torch.tensor(self._rows_of(allowed), dtype=torch.long).unique()
        available = len(self) if rows is None else len(rows)
        if k > available:
            what = "points that the index holds" if rows is None else "points that are allowed"
            raise InputError(f"k must be at most {available}, the number of {what}; got {k}.")
        queries = self._placed(x, query=True)
        if rows is None:
            distances, found = self._engine.search(queries, k)
        elif len(rows) <= FEW * len(self) or self._kind == "exact":
            distances, nearest = Exact(self._vectors(rows), threads=self._threads).search(queries, k)
            found = rows[nearest]
        else:
            distances, found = self._among(queries, k, rows)
        if self.measure != "l2":
            distances, found = self._similar(x, found)
        return distances, torch.where(found < 0, -1, self._ids[found])

    def _among(self, queries: Tensor, k: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Search an engine for more and more neighbours, until ``k`` of them are among the rows."""
        mask = torch.zeros(len(self._ids) + 1, dtype=torch.bool)
        mask[rows] = True  # the last one stands for -1
        distances, found = queries.new_full((len(queries), k), torch.inf), torch.full((len(queries), k), -1)
        waiting = torch.arange(len(queries))
        wanted = min(len(self), int(1.5 * k * len(self) / len(rows)) + 1)
        while len(waiting):
            d, i = self._engine.search(queries[waiting], wanted)
            fits = mask[i]
            enough = fits.sum(1) >= k
            if wanted == len(self):  # what an approximate search has not found by now, comparing with all of them does
                d, nearest = Exact(self._vectors(rows), threads=self._threads).search(queries[waiting], k)
                distances[waiting], found[waiting] = d, rows[nearest]
                break
            first = (fits & (fits.cumsum(1) <= k))[enough]
            done = waiting[enough]
            distances[done], found[done] = d[enough][first].view(-1, k), i[enough][first].view(-1, k)
            waiting, wanted = waiting[~enough], min(len(self), 4 * wanted)
        return distances, found

    def _empty(self) -> Engine:
        dim = self.dim + (self.measure == "inner product")
        return create_engine(self._kind, dim=dim, threads=self._threads)

    def _require_new(self, ids: Tensor, n: int) -> None:
        if len(ids) != n:
            raise InputError(f"There are {n} points but {len(ids)} ids: give one id per point.")
        if len(ids) and int(ids.min()) < 0:
            raise InputError(f"Ids count from 0, got {int(ids.min())}.")
        seen: set[int] = set()
        for i in ids.tolist():
            if i in self._rows or i in seen:
                raise InputError(f"The id {i} is given twice: remove the point that has it, or choose another id.")
            seen.add(i)

    def _rows_of(self, ids: Tensor | list[int]) -> list[int]:
        wanted = checked_ids(ids).tolist()
        unknown = next((i for i in wanted if i not in self._rows), None)
        if unknown is not None:
            raise InputError(f"No point has the id {unknown}.")
        return [self._rows[i] for i in wanted]

    def _placed(self, x: Tensor, query: bool = False) -> Tensor:
        """Return where points or queries lie for the engine, whose nearest are then the best by the measure."""
        if self.measure == "l2":
            return x
        if self.measure == "cosine":
            return normalize(x, dim=1)
        # The last dimension makes all points equally long, so that the nearest has the largest inner product.
        last = (
            torch.zeros(len(x)) if query else (self._longest - x.double().square().sum(1)).clamp(min=0).sqrt().float()
        )
        return torch.cat([x, last[:, None].to(x)], 1)

    def _lengthen(self) -> None:
        """Move the points that are there to the length of a longer one."""
        if not len(self):
            return
        kept = (self._ids >= 0).nonzero()[:, 0]
        moved = self._placed(self._vectors(kept)[:, : self.dim])
        self._engine.update(moved)

    def _vectors(self, rows: Tensor) -> Tensor:
        engine = self._engine
        return engine.points[rows] if isinstance(engine, Exact) else engine.vectors(rows)  # type: ignore[attr-defined]

    def _similar(self, x: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Return the similarities of what was found, and what was found in their order.

        Differences of large squares lose what products of the vectors keep.
        """
        queries = normalize(x, dim=1) if self.measure == "cosine" else x
        some = next(iter(self._rows.values()))  # in place of what was not found
        values = torch.empty(found.shape, dtype=torch.float32)
        for part in torch.arange(len(x)).split(max(1, VALUES // (found.shape[1] * self.dim))):
            rows = found[part].where(found[part] >= 0, some)
            vectors = self._vectors(rows.flatten())[:, : self.dim].view(*rows.shape, self.dim)
            values[part] = torch.einsum("nd,nkd->nk", queries[part].float(), vectors.float())
        values, order = values.masked_fill(found < 0, -torch.inf).sort(dim=1, descending=True, stable=True)
        return values, found.gather(1, order)
