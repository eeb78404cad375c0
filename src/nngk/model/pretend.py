"""Choosing the measures of the unknown score, by pretending that some of the known classes are unknown."""

import torch
from torch import Tensor

from nngk.defaults import FALSE_ALARMS
from nngk.kernel.predict import answer
from nngk.metrics import auroc
from nngk.model.classes import Classes, keeping
from nngk.model.features import Described
from nngk.model.unknown import Familiar, Measured, measured, others

# The first stands where the others are not clearly better, or where there are too few classes to tell.
CANDIDATES: tuple[tuple[str, ...], ...] = (
    ("nearness", "lead"),
    ("density", "nearness", "lead"),
    ("density", "lead"),
    ("nearness",),
    ("density",),
)
CLEARLY = 0.01  # of AUROC
FOLDS = 5
IMAGES = 10_000  # that the familiar values are taken from
ASKED = 1_000  # images of each kind that a fold asks about
BLOCK = 1 << 24  # elements of one block of images by neighbours


def learn_familiar(
    known: Classes, sigma: float, k: int | None, new: Described | None = None, false_alarms: float = FALSE_ALARMS
) -> Familiar:
    """Return what is familiar to a model with these classes, and the measures that tell the unknown apart best.

    ``new`` are images of the known classes that are not among the centres. Without any, the centres' own images stand
    for them, each measured among the others; those of a trained network lie closer together than any new image will.
    """
    if new is not None and len(new.embeddings):
        values = measure(known, sigma, k, *_some(new))
    else:
        chosen = spread_over(len(known.centres), IMAGES)
        values = measure_own(known, sigma, k, chosen)
    values = {name: value.cpu() for name, value in values.items()}
    return Familiar(values, choose_parts(known, sigma, k), false_alarms)


def choose_parts(known: Classes, sigma: float, k: int | None) -> tuple[str, ...]:
    """Return the measures whose added ranks tell pretended unknowns from known images best, over folds of classes."""
    candidates = [parts for parts in CANDIDATES if known.features is not None or "nearness" not in parts]
    folds = [fold for fold in _folds(known) if fold.any() and len(known.labels[~fold].unique()) > 1]
    if not folds:
        return candidates[0]
    scores = torch.tensor([_tell_apart(known, sigma, k, fold, candidates) for fold in folds]).mean(0)
    best = int(scores.argmax())
    return candidates[best if scores[best] > scores[0] + CLEARLY else 0]


def _tell_apart(
    known: Classes, sigma: float, k: int | None, hidden: Tensor, candidates: list[tuple[str, ...]]
) -> list[float]:
    """Return the AUROC of each candidate where the ``hidden`` centres (m,) stand for images of unknown classes."""
    left = keeping(known, ~hidden)
    chosen = spread_over(len(left.centres), ASKED)
    usual = measure_own(left, sigma, k, chosen)
    asked = hidden.nonzero().flatten()
    asked = asked[spread_over(len(asked), ASKED).to(asked.device)]
    features = None if known.features is None else known.features[asked]
    strange = measure(left, sigma, k, known.centres[asked], features)
    reference = {name: value.cpu() for name, value in usual.items()}
    out = []
    for parts in candidates:
        familiar = Familiar(reference, parts)
        out.append(auroc(-familiar.alike(usual), -familiar.alike(strange)))
    return out


def measure(known: Classes, sigma: float, k: int | None, embeddings: Tensor, features: Tensor | None) -> Measured:
    """Return the measures of images that are not among the centres."""
    return _measure(known, sigma, k, embeddings, features, None)


def measure_own(known: Classes, sigma: float, k: int | None, chosen: Tensor) -> Measured:
    """Return the measures of the chosen centres' own images, each among the others."""
    chosen = chosen.to(known.centres.device)
    features = None if known.features is None else known.features[chosen]
    return _measure(known, sigma, k, known.centres[chosen], features, chosen)


def _measure(
    known: Classes, sigma: float, k: int | None, embeddings: Tensor, features: Tensor | None, own: Tensor | None
) -> Measured:
    """Return the measures of images, some at a time; ``own`` are the places of their own centres, to be left out."""
    k = min(k or len(known.centres), len(known.centres))
    blocks = torch.arange(len(embeddings), device=embeddings.device).split(max(1, BLOCK // k))
    made = []
    for block in blocks:
        mine = None if own is None else own[block]
        squared, places = others(known.engine, embeddings[block].to(known.centres), k, mine)
        found = answer(squared, places, known.labels, known.theta, sigma, len(known.names))
        made.append(measured(found, known, None if features is None else features[block], mine))
    return {name: torch.cat([part[name] for part in made]) for name in made[0]}


def spread_over(total: int, limit: int) -> Tensor:
    """Return at most ``limit`` of ``total`` places, evenly over all of them: images lie class by class.

    >>> spread_over(9, 3).tolist(), spread_over(2, 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    return torch.linspace(0, total - 1, min(limit, total), dtype=torch.float64).round().long()


def _folds(known: Classes) -> list[Tensor]:
    """Return marks of centres (m,), one fold of the classes after another; the same on every machine."""
    present = known.labels.unique()
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(0)).to(present.device)
    return [torch.isin(known.labels, present[order[i::FOLDS]]) for i in range(FOLDS)]


def _some(new: Described) -> tuple[Tensor, Tensor]:
    chosen = spread_over(len(new.embeddings), IMAGES).to(new.embeddings.device)
    return new.embeddings[chosen], new.features[chosen]
