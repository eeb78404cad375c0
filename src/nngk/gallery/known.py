"""What a model needs to know of all references in a gallery at once: the classes, and a few sums over each."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nngk.gallery.references import References
from nngk.model.classes import average_weight


@dataclass(frozen=True)
class OfClass:
    """The references of one class: where each came from, and sums over them in float64."""

    sources: dict[int, str]  # by id, in the order in which they came
    theta: float = 0.0  # Σ θ
    weight: float = 0.0  # Σ exp θ
    coordinates: Tensor | None = None  # Σ, (d,)

    def with_rows(self, rows: References, sign: int) -> "OfClass":
        """Return the class with some rows more (``sign`` 1), or less (-1)."""
        theta, ids = rows.theta.double(), rows.ids.tolist()
        gone = set(ids)
        sources = {number: source for number, source in self.sources.items() if number not in gone}
        total = rows.coordinates.double().sum(0)
        return replace(
            self,
            sources=sources | dict(zip(ids, rows.sources)) if sign > 0 else sources,
            theta=self.theta + sign * float(theta.sum()),
            weight=self.weight + sign * float(theta.exp().sum()),
            coordinates=sign * total if self.coordinates is None else self.coordinates + sign * total,
        )


@dataclass(frozen=True)
class Known:
    """The classes of a gallery by name. Never changed in place."""

    classes: dict[str, OfClass]

    @classmethod
    def of(cls, parts: Iterable[References]) -> "Known":
        """Return what is known of references that come in parts."""
        known = cls({})
        for part in parts:
            known = known.with_rows(part)
        return known

    @property
    def names(self) -> list[str]:
        """Return the names of the classes, in the order in which they came."""
        return list(self.classes)

    def count(self) -> int:
        """Return the number of references."""
        return sum(len(each.sources) for each in self.classes.values())

    def with_rows(self, rows: References) -> "Known":
        """Return what is known with more rows, none of which was there."""
        return self._changed(rows, 1)

    def without_rows(self, rows: References) -> "Known":
        """Return what is known without some rows, all of which were there; a class without any is no class."""
        return self._changed(rows, -1)

    def _changed(self, rows: References, sign: int) -> "Known":
        classes = dict(self.classes)
        for name in dict.fromkeys(rows.labels):
            own = rows.select(torch.tensor([label == name for label in rows.labels], dtype=torch.bool))
            classes[name] = classes.get(name, OfClass({})).with_rows(own, sign)
            if not classes[name].sources:
                del classes[name]
        return Known(classes)

    def means(self) -> Tensor | None:
        """Return the mean coordinates (c, d) of the classes, where coordinates are kept."""
        rows = [each.coordinates / len(each.sources) for each in self.classes.values() if each.coordinates is not None]
        return torch.stack(rows).float() if rows and rows[0].numel() else None

    def usual_weight(self, name: str, count: int) -> float:
        """Return θ of new rows, as :func:`nngk.model.classes.usual_weight` has it."""
        if not self.classes:
            return 0.0
        if name in self.classes:
            return self.classes[name].theta / len(self.classes[name].sources)
        return average_weight(math.log(sum(each.weight for each in self.classes.values())), len(self.classes), count)
