"""The references of an embedded gallery in memory: a state that is searched while the next one is made."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nngk.gallery.interface import Ids
from nngk.gallery.references import Found, References, joined
from nngk.search.choose import create_engine
from nngk.search.engine import Engine
from nngk.search.exact import Exact

FEW = 1024  # rows that may be new, or gone, before the engine is made anew
_NEIGHBOURS = 100  # that an answer asks for


@dataclass(frozen=True)
class Indexed:
    """References that never change, with an engine to search them and a way to find one by its id."""

    rows: References
    engine: Engine
    by_id: tuple[Tensor, Tensor] = field(init=False)  # ids in order, and the place of each

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", tuple(self.rows.ids.sort()))

    @classmethod
    def of(cls, rows: References, engine_name: str) -> "Indexed":
        """Index references by an engine of this name; 'auto' chooses by their number."""
        if not len(rows):
            return cls(rows, Exact())
        engine = create_engine(engine_name, dim=rows.vectors.shape[1], n=len(rows), k=_NEIGHBOURS)
        engine.add(rows.vectors)
        return cls(rows, engine)

    def places(self, ids: Tensor) -> Tensor:
        """Return the place of each id, -1 where it is not there."""
        order, where = self.by_id
        if not len(order):
            return torch.full_like(ids, -1)
        at = torch.searchsorted(order, ids).clamp(max=len(order) - 1)
        return torch.where(order[at] == ids, where[at], -1)

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return squared distances and places of the ``k`` nearest rows, or of all."""
        k = min(k, len(self.rows))
        if not k:
            return torch.empty(len(x), 0), torch.empty(len(x), 0, dtype=torch.int64)
        return self.engine.search(x, k)


@dataclass(frozen=True)
class Table:
    """Many references that were indexed together, which of them are gone, and those that came since."""

    old: Indexed
    gone: Tensor  # (len(old.rows),) bool
    new: Indexed
    engine_name: str

    @classmethod
    def of(cls, rows: References, engine_name: str) -> "Table":
        """Return a table of references."""
        none = Indexed.of(rows.select(torch.empty(0, dtype=torch.int64)), "exact")
        return cls(Indexed.of(rows, engine_name), torch.zeros(len(rows), dtype=torch.bool), none, engine_name)

    def __len__(self) -> int:
        return len(self.old.rows) - int(self.gone.sum()) + len(self.new.rows)

    def changed(self, added: References, removed: Tensor) -> "Table":
        """Return the table without some rows and with others; a row whose id is there is replaced."""
        out = torch.cat([removed, added.ids])
        places = self.old.places(out)
        gone = self.gone.clone()
        gone[places[places >= 0]] = True
        new = joined([self.new.rows.select(~torch.isin(self.new.rows.ids, out)), added])
        if len(new) > FEW or int(gone.sum()) > FEW:
            return Table.of(joined([self.old.rows.select(~gone), new]), self.engine_name)
        return Table(self.old, gone, Indexed.of(new, "exact"), self.engine_name)

    def parts(self) -> list[References]:
        """Return all rows, older ones first."""
        return [self.old.rows.select(~self.gone) if self.gone.any() else self.old.rows, self.new.rows]

    def holds(self, ids: Tensor) -> Tensor:
        """Return which ids are there."""
        places = self.old.places(ids)
        return ((places >= 0) & ~self._is_gone(places)) | (self.new.places(ids) >= 0)

    def get(self, ids: Ids) -> References:
        """Return the rows with these ids, in this order; ids that are not there are left out."""
        wanted = torch.as_tensor(ids, dtype=torch.int64)
        wanted = wanted[self.holds(wanted)]
        fresh = self.new.places(wanted)
        both = joined(
            [self.old.rows.select(self.old.places(wanted)[fresh < 0]), self.new.rows.select(fresh[fresh >= 0])]
        )
        order = torch.cat([(fresh < 0).nonzero().flatten(), (fresh >= 0).nonzero().flatten()]).argsort()
        return both.select(order)

    def search(self, x: Tensor, k: int) -> Found:
        """Return the ``k`` nearest rows of each query."""
        squared, places = self.old.search(x, k + int(self.gone.sum()))
        squared = squared.masked_fill(self._is_gone(places), torch.inf)
        more, fresh = self.new.search(x, k)
        squared, order = torch.cat([squared, more], 1).sort(dim=1, stable=True)
        # Places of new rows count on behind the old ones.
        places = torch.cat([places, fresh + len(self.old.rows)], 1).gather(1, order)
        squared, places = squared[:, :k], places[:, :k]
        return self._found(squared, places.masked_fill(squared.isinf(), -1))

    def _is_gone(self, places: Tensor) -> Tensor:
        return (self.gone[places.clamp(min=0)] | (places < 0)) if len(self.gone) else places < 0

    def _found(self, squared: Tensor, places: Tensor) -> Found:
        both, split = (self.old.rows, self.new.rows), len(self.old.rows)

        def text(which: str) -> list[list[str]]:
            old, new = (getattr(rows, which) for rows in both)
            rows = places.tolist()
            return [["" if p < 0 else old[p] if p < split else new[p - split] for p in row] for row in rows]

        def values(which: str) -> Tensor:
            old, new = (getattr(rows, which) for rows in both)
            out = old.new_zeros(places.shape)
            for part, inside, shift in ((old, (places >= 0) & (places < split), 0), (new, places >= split, split)):
                out[inside] = part[places[inside] - shift]
            return out

        ids = values("ids").masked_fill(places < 0, -1)
        return Found(ids, squared, text("labels"), values("theta"), text("sources"))
