"""What is doubtful about the images that a model goes by: labels, duplicates, classes, centres."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nngk.model.classes import Classes
from nngk.model.left_out import LeftOut, leave_each_out
from nngk.model.model import Model
from nngk.model.pruning import Lists
from nngk.model.second_look import second_look
from nngk.model.space import Space
from nngk.search import Exact

# Two images are near duplicates if they lie this many times closer than an image usually lies to its nearest.
CLOSER = 3.0
NEAREST = 8  # images among which each one's duplicates are looked for


@dataclass(frozen=True)
class Suspect:
    """An image whose label the other images contradict."""

    place: int  # which centre it is
    image: str
    label: str
    probability: float  # of its label, by the other images
    called: str  # what they call it
    called_probability: float

    def __str__(self) -> str:
        return (
            f"{self.probability:7.2%} {self.label}, rather {self.called} ({self.called_probability:.1%}): {self.image}"
        )


@dataclass(frozen=True)
class Duplicates:
    """Two images that are nearly the same."""

    places: tuple[int, int]
    images: tuple[str, str]
    labels: tuple[str, str]
    closeness: float  # their distance, as a share of the usual distance to the nearest image

    def __str__(self) -> str:
        one, two = self.labels
        return f"{' = '.join(self.images)} ({one if one == two else f'{one}, but also {two}'})"


@dataclass(frozen=True)
class Confusion:
    """Images of one class that the others would call another."""

    label: str
    called: str
    count: int
    images: int  # of the class in all

    def __str__(self) -> str:
        return f"{self.count} of {self.images} images of {self.label} would be called {self.called}"


@dataclass(frozen=True)
class Useless:
    """A centre without which the images around it would be answered better, or no worse."""

    place: int
    image: str
    label: str
    missed: float  # log-probability that all images together lose without it

    def __str__(self) -> str:
        return f"{self.missed:9.4f} {self.label}: {self.image}"


@dataclass(frozen=True)
class Audit:
    """The findings about a model's own images, the worst of each kind first."""

    images: int
    accuracy: float  # of the images, each judged by the others
    looked: str  # 'embeddings' if suspects were judged by the model's own, 'photos' if by their features, anew
    suspects: list[Suspect]
    duplicates: list[Duplicates]
    confused: list[Confusion]
    useless: list[Useless]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def sections(self) -> list[tuple[str, Sequence[object]]]:
        """Return what was found of each kind, under its title."""
        return [
            ("Labels that are probably wrong", self.suspects),
            ("Near duplicates", self.duplicates),
            ("Classes that are confused", self.confused),
            ("Centres that serve nothing", self.useless),
        ]

    def rows(self) -> Iterator[tuple[str, str, str, str, str, float]]:
        """Yield each finding: its kind, image, label, the other image and label, and the figure that says how bad."""
        for s in self.suspects:
            yield "label", s.image, s.label, "", s.called, s.probability
        for d in self.duplicates:
            yield "duplicate", d.images[0], d.labels[0], d.images[1], d.labels[1], d.closeness
        for c in self.confused:
            yield "confused", "", c.label, "", c.called, c.count / c.images
        for u in self.useless:
            yield "useless", u.image, u.label, "", "", u.missed


def audit_model(model: Model, features: Tensor | None = None) -> Audit:
    """Return what is doubtful about the images of a model, each judged by the others.

    ``features`` (m, channels) are the network's own of the images (:meth:`Model.describe`). The embedding has learnt
    from the labels that are in question, and features have not: with them wrong labels are found far better.
    """
    known = model.classes
    left = leave_each_out(known, model.sigma, model.n_neighbours)
    right = left.called == known.labels
    judged = left if features is None else second_look(features.to(known.centres), known.labels, len(known.names))
    return Audit(
        images=len(known.sources),
        accuracy=float(right.double().mean()),
        looked="embeddings" if features is None else "photos",
        suspects=_suspects(known, judged.own, judged.called, judged.called_log),
        duplicates=_duplicates(known, model.familiar.space),
        confused=_confused(known, left),
        useless=_useless(known, model),
    )


def _suspects(known: Classes, own: Tensor, called: Tensor, called_log: Tensor) -> list[Suspect]:
    alone = torch.bincount(known.labels, minlength=len(known.names))[known.labels] == 1  # nothing speaks for these
    doubted = ((called != known.labels) & ~alone).nonzero().flatten()
    doubted = doubted[own[doubted].argsort(stable=True)]
    return [
        Suspect(
            place,
            known.sources[place],
            known.names[int(known.labels[place])],
            float(own[place].exp()),
            known.names[int(called[place])],
            float(called_log[place].exp()),
        )
        for place in doubted.tolist()
    ]


def _duplicates(known: Classes, space: Space | None) -> list[Duplicates]:
    """Return pairs of images that are nearly the same, nearest first.

    They are looked for among the network's own features where the model has them: a trained embedding brings whole
    classes together.
    """
    rows = known.centres if known.coordinates is None or space is None else space.apart(known.coordinates)[0]
    squared, found = Exact(rows).all_neighbours(min(NEAREST, len(rows) - 1))
    distances = squared.sqrt()
    usual = distances[:, 0].median()
    near = (distances * CLOSER <= usual) & (found >= 0) if usual > 0 else distances == 0
    pairs = {}
    for one, rank in near.nonzero().tolist():
        two = int(found[one, rank])
        pairs[min(one, two), max(one, two)] = float(distances[one, rank] / usual) if usual > 0 else 0.0
    return [
        Duplicates(
            pair,
            (known.sources[pair[0]], known.sources[pair[1]]),
            (known.names[int(known.labels[pair[0]])], known.names[int(known.labels[pair[1]])]),
            pairs[pair],
        )
        for pair in sorted(pairs, key=lambda pair: (pairs[pair], pair))
    ]


def _confused(known: Classes, left: LeftOut) -> list[Confusion]:
    sizes = torch.bincount(known.labels, minlength=len(known.names)).tolist()
    wrong = left.called != known.labels
    pairs = Counter(zip(known.labels[wrong].tolist(), left.called[wrong].tolist()))
    ordered = sorted(pairs, key=lambda pair: (-pairs[pair] / sizes[pair[0]], pair))
    return [Confusion(known.names[one], known.names[two], pairs[one, two], sizes[one]) for one, two in ordered]


def _useless(known: Classes, model: Model) -> list[Useless]:
    everything = torch.ones_like(known.labels, dtype=torch.bool)
    missed, _ = Lists(known, model.sigma, model.n_neighbours).usefulness(everything)
    order = missed.argsort(stable=True)
    order = order[missed[order] <= 0]
    return [
        Useless(place, known.sources[place], known.names[int(known.labels[place])], float(missed[place]))
        for place in order.tolist()
    ]
