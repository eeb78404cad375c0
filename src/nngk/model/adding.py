"""How much the centres of a new class should weigh, and what they take from the classes around them."""

import math

import torch
from torch import Tensor

from nngk.kernel.formulas import log_kernels, squared_distances
from nngk.kernel.predict import answer
from nngk.model.classes import Classes, comes_untrained, drawn_together, share_drawn, without_class
from nngk.search import Engine

# How far a new class's weight goes from what serves all images to what an average class has.
BOLDNESS = 1 / 2
LIMIT = 50.0  # of a log weight: beyond it nothing changes any more


def added_log_weight(
    engine: Engine,
    centres: Tensor,
    theta: Tensor,
    sigma: float,
    rows: Tensor,
    k: int,
    usual: float,
    positions: Tensor | None = None,
    drawn: float = 0.0,
) -> float:
    """Return θ of the new centres of one class, whose images are ``rows`` (n, dim).

    It lies half way between two numbers. One has the least leave-one-out loss, summed over the new images, each left
    out in turn, and over the old ones around them, whose class the new one may take from them: it is fair to every
    image, and the old images are many, so that it would silence a class that was shown in a few. The other is the
    ``usual`` weight of a class, which is fair to every class, and the most that it can be: the embedding was trained
    on the old images, so that they seem to keep to their classes more firmly than images that were never seen do.
    A single image leaves none to recognise it by: its class has the usual weight. ``centres`` are the old images,
    which ``engine`` finds at the ``positions`` of their kernels (the images themselves, where none are given); the new
    kernels are drawn together, by the share ``drawn`` at least.
    """
    if len(rows) < 2 or not len(centres):
        return usual
    k = min(k, len(centres))
    squared, found = engine.search(rows, k)
    near = found[found >= 0].unique().to(centres.device)
    rivals = _log_sums(squared, sigma, theta[found.clamp(min=0)])  # what the old centres say at each new image
    reached = _log_sums(_squared(centres[near], drawn_together(rows, drawn)), sigma)
    held = _held(engine, centres, centres if positions is None else positions, theta, sigma, near, k)
    balanced = min(usual, balanced_weight(_own(rows, sigma, drawn), rivals, reached, held))
    return balanced + (usual - balanced) * BOLDNESS


def lag(known: Classes, rows: Tensor, sigma: float) -> float:
    """Return by how much kernels drawn to the mean of few images say less of their class than those of a trained one.

    The mean of n images lies off that of the class, by a squared distance of 1/n of the spread: an image is farther
    from a class shown in five than from one that was trained on thirty, and the more, the further kernels are drawn.
    Never below zero: where trained kernels stand at their images, the nearest ones count and not the average one.
    """
    n = len(rows)
    if n < 2 or not len(known.centres):
        return 0.0
    spread = float((rows - rows.mean(0)).double().square().sum()) / (n - 1)
    many = len(known.centres) / len(known.labels.unique())
    farther = _from_its_class(share_drawn(n, known.drawn), n) - _from_its_class(known.drawn, many)
    return min(max(0.0, spread * farther / (2 * sigma**2)), LIMIT)


def less_lag(known: Classes, name: str, rows: Tensor, sigma: float) -> float:
    """Return by how much the weight of a known class sinks when images ``rows`` join it, whose mean lacks less then.

    It is that of a class that came without training. Those that were trained lack nothing.
    """
    if not comes_untrained(known, name):
        return 0.0
    own, others = known.centres[known.of(name)], without_class(known, name)
    return BOLDNESS * (lag(others, own, sigma) - lag(others, torch.cat([own, rows]), sigma))


def _from_its_class(share: float, n: float) -> float:
    """Return the squared distance of a kernel from the mean of its class, in spreads.

    >>> _from_its_class(0.0, 5), _from_its_class(1.0, 5)
    (1.0, 0.2)
    """
    return (1 - share) ** 2 + (2 * share * (1 - share) + share**2) / n


def _own(rows: Tensor, sigma: float, drawn: float) -> Tensor:
    """Return what the kernels of the other new images say at each, at weight one and as if there were as many."""
    n, said = len(rows), []
    for i in range(n):
        others = torch.cat([rows[:i], rows[i + 1 :]])
        said.append(_log_sums(_squared(rows[i : i + 1], drawn_together(others, drawn)), sigma))
    return torch.cat(said) + math.log(n / (n - 1))


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x.double(), y.double()).square()


def balanced_weight(own: Tensor, rivals: Tensor, reached: Tensor, held: Tensor) -> float:
    """Return the t with the least ``Σ ln(1 + exp(rivals - own - t)) + Σ ln(1 + exp(reached + t - held))``.

    The sums are over new images and over old ones. The loss is convex in t, so its slope is bisected.

    >>> round(balanced_weight(*(torch.tensor([x]).double() for x in (0.0, 3.0, 0.0, 1.0))), 6)
    2.0
    """
    low, high = -LIMIT, LIMIT
    while high - low > 1e-9:
        middle = (low + high) / 2
        slope = torch.sigmoid(reached + middle - held).sum() - torch.sigmoid(rivals - own - middle).sum()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return (low + high) / 2


def _held(
    engine: Engine, centres: Tensor, positions: Tensor, theta: Tensor, sigma: float, near: Tensor, k: int
) -> Tensor:
    """Return what all kernels but its own say at each of the ``near`` old images."""
    _, found = engine.search(centres[near], min(k + 1, len(centres)))
    found = found.to(near.device)
    found = found.masked_fill(found == near[:, None], -1)
    return _log_sums(squared_distances(centres[near], positions, found), sigma, theta[found.clamp(min=0)])


def _log_sums(squared: Tensor, sigma: float, theta: Tensor | None = None) -> Tensor:
    """Return the logarithm of the summed kernels in float64; a finite floor stands for none at all."""
    values = log_kernels(squared.double().cpu(), sigma, None if theta is None else theta.double().cpu())
    return values.logsumexp(1).clamp(min=-1e12)


def taken_over(before: Classes, after: Classes, name: str, sigma: float, k: int | None) -> dict[str, tuple[int, int]]:
    """Return how many images of each class would be called ``name`` now, and how many images it has.

    Counted are the images, each judged by the others, that were answered right before ``name`` had its new centres.
    """
    if not len(before.centres) or name not in after.names:
        return {}
    label, many = after.names.index(name), k or len(after.centres)
    shown = after.centres[len(before.centres) :]
    near = before.kernels.search(shown, min(many, len(before.centres)))[1]
    asked = near[near >= 0].unique().to(before.labels.device)
    asked = asked[before.labels[asked] != label]
    answers = [_left_out(classes, asked, sigma, many) for classes in (before, after)]
    lost = asked[(answers[0] == before.labels[asked]) & (answers[1] == label)]
    counts = torch.bincount(before.labels[lost], minlength=len(before.names)).tolist()
    sizes = torch.bincount(before.labels, minlength=len(before.names)).tolist()
    return {before.names[i]: (count, sizes[i]) for i, count in enumerate(counts) if count}


def _left_out(known: Classes, asked: Tensor, sigma: float, k: int) -> Tensor:
    """Return the label that the other centres give each of the ``asked`` ones."""
    found = known.kernels.search(known.centres[asked], min(k + 1, len(known.centres)))[1].to(asked.device)
    found = found.masked_fill(found == asked[:, None], -1)
    squared = squared_distances(known.centres[asked], known.positions, found)
    return answer(squared, found, known.labels, known.theta, sigma, len(known.names)).log_probabilities.argmax(1)
