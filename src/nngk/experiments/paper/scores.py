"""From rows of results to means over seeds, and the published figures to hold them against."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

from nngk.experiments.record import Row
from nngk.experiments.record.seeds import Score, score_over_seeds

SHOWN = {
    "recall@1": "R@1",
    "recall@2": "R@2",
    "recall@4": "R@4",
    "recall@8": "R@8",
    "nmi": "NMI",
    "map@r": "MAP@R",
    "accuracy": "accuracy",
}
CONFIGURATION = ("preset", "dataset", "variant", "network", "loss", "dim", "examples")


@dataclass
class Group:
    """The runs of one trial, over its seeds."""

    facts: dict[str, str]  # the columns of CONFIGURATION
    rows: list[Row] = field(default_factory=list)

    def __getattr__(self, name: str) -> str:
        if name in CONFIGURATION:
            return self.facts[name]
        raise AttributeError(name)

    @property
    def done(self) -> list[Row]:
        return [row for row in self.rows if not row.get("error")]

    @property
    def seeds(self) -> int:
        return len(self.done)

    def score(self, metric: str) -> Score | None:
        """Return mean and deviation of a metric as fractions; None where no run has it."""
        return score_over_seeds([float(row[metric]) for row in self.done if row.get(metric)])


def group_rows(rows: Iterable[Row]) -> list[Group]:
    """Group rows by trial. Where settings have changed between runs, only those of the latest settings count.

    >>> rows = [{"dim": "64", "seed": "0", "key": "a", "finished": "1"}, {"dim": "64", "seed": "1", "key": "b"}]
    >>> [len(group.rows) for group in group_rows(rows)]
    [1]
    """
    found: dict[tuple[str, ...], Group] = {}
    for row in rows:
        facts = {name: row.get(name, "") for name in CONFIGURATION}
        found.setdefault(tuple(facts.values()), Group(facts)).rows.append(row)
    for group in found.values():
        latest = max(group.rows, key=lambda row: row.get("finished", "")).get("key")
        group.rows = [row for row in group.rows if row.get("key") == latest]
    return list(found.values())


@lru_cache
def published_rows() -> tuple[Row, ...]:
    """Return the paper's printed figures, in per cent."""
    text = files("nngk.experiments.paper").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published(experiment: str, metric: str, **where: str) -> Row | None:
    """Return the row of one printed figure; None where the paper has none.

    >>> published("birds-metric", "recall@1", method="nngk", dim="64")["value"]
    '51.15'
    """
    where |= {"experiment": experiment, "metric": metric}
    return next((row for row in published_rows() if all(row[name] == value for name, value in where.items())), None)


def comparable(network: str, printed: Row) -> bool:
    """Return whether a printed figure is of the same network; where the paper names none, any may stand beside it.

    >>> comparable("googlenet-bvlc", {"network": "GoogLeNet"}), comparable("resnet50-v1", {"network": "VGG16"})
    (True, False)
    """
    return network.startswith(printed["network"].lower())
