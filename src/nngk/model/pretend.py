"""Finding the unknown score: some known classes pretend to be unknown, and some other images to be new."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nngk.defaults import FALSE_ALARMS
from nngk.kernel.predict import predictions
from nngk.model.classes import FEW, Classes, keeping
from nngk.model.features import Described
from nngk.model.space import Space, fit_space, spread_over
from nngk.model.unknown import Familiar, Measured, deviations, measured, required_images, tightness

# What the kernels say is not among them: a trained embedding has seen the pretended unknowns.
PARTS: tuple[str, ...] = ("closeness", "contrast", "lead", "certainty", "gap")
USUAL = 0.5  # the weight of each, where there are too few classes to learn from
PRIOR = 3.0  # how strongly the weights are held to it: as so many images would
FOLDS = 5
HELD_FOLDS = 10  # of images that were held out of training: each sees a space of nearly all images
ASKED = 2_000  # images of each kind that a fold asks about at most
# How much the kernels' confidence counts, for a spread of all others together: it names images better than any of them.
CONFIDENCE = 0.5
BOUND = 10.0  # deviations: what is stranger still says no more
BLOCK = 1 << 24  # elements of one block of images by neighbours

Parts = tuple[str, ...]
Weights = tuple[float, ...]
# Measures of images of known classes, and of pretended unknowns, and the likeness to these if they were taught.
Fold = tuple[Measured, Measured, Tensor]


def learn_familiar(
    known: Classes,
    features: Tensor,
    sigma: float,
    k: int | None,
    new: Described | None = None,
    false_alarms: float = FALSE_ALARMS,
    confident: bool = False,
) -> tuple[Familiar, Tensor | None]:
    """Return what is familiar to a model with these classes, and the coordinates (m, d) of their images.

    ``features`` (m, channels) are those of the centres' images. Folds of the classes pretend to be unknown: the
    measures get the weights that tell them apart best. ``new`` are images of the known classes that are not among the
    centres: their values are the familiar ones. Where there are too few, images that the folds left out stand for them.

    ``confident`` says that the kernels' confidence counts too, by a share that no fold can tell: their embedding was
    trained on the classes that pretend to be unknown. That takes new images, which it was not trained on.
    """
    folds = list(_pretend(known, features, sigma, k))
    here, space = _placed(known, features)
    told = new is not None and len(new.embeddings) >= required_images(false_alarms)
    if new is not None and told:
        values = _measure(here, sigma, k, new.embeddings, new.features, space)
    else:
        values = _joined([usual for usual, _, _ in folds]) if folds else {"density": torch.empty(0)}
    values = {name: value.cpu() for name, value in values.items()}
    like = torch.cat([told for _, _, told in folds]).cpu() if folds else torch.empty(0)
    if "likeness" in values and len(like):
        # An image of a taught class is compared with images of classes that were taught.
        values["likeness"] = as_many(like, len(values["likeness"]))
    if not all(part in values for part in PARTS):
        return Familiar(values, false_alarms=false_alarms, space=space), here.coordinates
    parts, weights = PARTS, _learnt_weights(folds)
    if confident and told:
        parts, weights = _with_confidence(values, parts, weights)
    return Familiar(values, parts, false_alarms, space, weights), here.coordinates


def measured_in_folds(known: Classes, features: Tensor, held: Tensor, sigma: float, k: int | None) -> Measured:
    """Return the measures, in a space of the network's own features, of some of the images: the rows ``held`` (n,).

    A fold of them at a time is left out of the space and of the class means, so that each is seen as a new image will
    be by a model of all images. What the kernels say is not among the measures: they have seen these images.
    """
    fold = torch.empty_like(held)
    fold[known.labels[held].argsort(stable=True)] = torch.arange(len(held), device=held.device) % HELD_FOLDS
    parts = []
    for number in fold.unique().tolist():
        out = held[fold == number]
        rest = torch.ones_like(known.labels, dtype=torch.bool).index_fill_(0, out, False)
        left, space = _placed(keeping(known, rest), features[rest])
        parts.append(_measure(left, sigma, k, known.centres[out], features[out], space))
    back = fold.argsort(stable=True).argsort()
    return {name: values[back] for name, values in _joined(parts).items() if name in PARTS}


def _with_confidence(values: Measured, parts: Parts, weights: Weights) -> tuple[Parts, Weights]:
    """Return the measures that count, and their weights, with the kernels' confidence among them."""
    together = deviations(values, values, parts) @ torch.tensor(weights, dtype=torch.float64)
    return (*parts, "confidence"), (*weights, round(CONFIDENCE * float(together.std(correction=0)), 6))


def _learnt_weights(folds: list[Fold]) -> tuple[float, ...]:
    """Return the weights that tell pretended unknowns from known images best, over all folds."""
    rows, unknown = [], []
    for usual, strange, _ in folds:
        if all(part in kind for part in PARTS for kind in (usual, strange)) and len(strange["density"]):
            for which, kind in enumerate((usual, strange)):
                rows.append(deviations(usual, kind, PARTS))
                unknown.append(torch.full((len(rows[-1]),), float(which), dtype=torch.float64))
    start = torch.full((len(PARTS),), USUAL, dtype=torch.float64)
    found = logistic_weights(torch.cat(rows), torch.cat(unknown), start) if rows else start
    return tuple(round(w, 6) for w in found.tolist())


def logistic_weights(x: Tensor, y: Tensor, usual: Tensor, steps: int = 20) -> Tensor:
    """Return the weights (d,) of a logistic regression of ``y`` (n,), 0 or 1, on ``x`` (n, d), by Newton's method.

    Zeros and ones count the same in all, however many there are. The weights are held to the ``usual`` ones and none is
    negative, so that what looks stranger by one measure is never more familiar for it: those that would be are zero.

    >>> x = torch.tensor([[0.0, 3.0], [1.0, 2.0], [2.0, 1.0], [3.0, 0.0]]).double().repeat(50, 1)
    >>> y = torch.tensor([0.0, 0.0, 1.0, 1.0]).double().repeat(50)
    >>> weights = logistic_weights(x, y, torch.ones(2).double())
    >>> bool(weights[0] > 1), float(weights[1])
    (True, 0.0)
    """
    counts = torch.where(y > 0, 0.5 / y.sum(), 0.5 / (1 - y).sum()) * len(y)
    x = torch.cat([x.clamp(-BOUND, BOUND), x.new_ones(len(x), 1)], 1)
    start = torch.cat([usual, usual.new_zeros(1)])
    prior = torch.cat([torch.full_like(usual, PRIOR), usual.new_full((1,), 1e-6)])
    free = torch.ones(len(start), dtype=torch.bool, device=x.device)

    def loss(w: Tensor) -> Tensor:
        told = torch.nn.functional.softplus(torch.where(y > 0, -1.0, 1.0) * (x @ w))
        return (counts * told).sum() + (prior * (w - start).square()).sum() / 2

    while True:
        w = start * free
        for _ in range(steps):
            p = torch.sigmoid(x @ w)
            slope = x.T @ (counts * (p - y)) + prior * (w - start)
            curvature = (x.T * (counts * p * (1 - p))) @ x + prior.diag()
            step = torch.zeros_like(w)
            step[free] = torch.linalg.solve(curvature[free][:, free], slope[free])
            sizes = 0.5 ** torch.arange(30)  # where the loss is far from a parabola, a whole step leads astray
            w = w - step * next((float(size) for size in sizes if loss(w - step * size) <= loss(w)), 0.0)
        if bool((w[:-1] >= 0).all()):
            return w[:-1]
        free[w[:-1].argmin()] = False


def _pretend(known: Classes, features: Tensor, sigma: float, k: int | None) -> Iterator[Fold]:
    """Yield measures of images of known classes that pretend to be new, and of classes that pretend to be unknown.

    Neither are among the images that they are measured by, nor in the space that closeness is measured in.
    """
    images, classes = _image_folds(known.labels), _class_folds(known.labels)
    for fold in range(FOLDS):
        unknown = classes == fold
        if len(known.labels[~unknown].unique()) < 2:
            unknown = torch.zeros_like(unknown)
        new = (images == fold) & ~unknown
        if not new.any() or (new | unknown).all():
            continue
        rest = ~(new | unknown)
        left, space = _placed(keeping(known, rest), features[rest])
        asked = []
        for which in (new, unknown):
            chosen = which.nonzero().flatten()
            chosen = chosen[spread_over(len(chosen), ASKED).to(chosen.device)]
            asked.append(_measure(left, sigma, k, known.centres[chosen], features[chosen], space))
        yield asked[0], asked[1], _taught_likeness(left, features[unknown], known.labels[unknown], space)


def _taught_likeness(known: Classes, features: Tensor, labels: Tensor, space: Space | None) -> Tensor:
    """Return the likeness of images (n, channels) of classes that a space does not know, taught by the first few.

    Those that teach, half of them where there are few, have none. ``known`` are the classes of the space.
    """
    if space is None or space.plain is None or known.class_means is None:
        return features.new_empty(0)
    _, plain = space.apart(space.coordinates(features))
    _, means = space.apart(known.class_means)
    assert plain is not None and means is not None
    classes = [rows for rows in (plain[labels == label] for label in labels.unique().tolist()) if len(rows) > 1]
    if not classes:
        return features.new_empty(0)
    few = [min(FEW, len(rows) // 2) for rows in classes]
    taught = torch.stack([rows[:n].mean(0) for rows, n in zip(classes, few)])
    sizes = torch.cat([known.class_sizes, torch.tensor(few).to(known.class_sizes)])
    tighter = tightness(torch.cat([means, taught.to(means)]), sizes)[len(means) :]
    return torch.cat([rows[n:] @ mean - more for rows, n, mean, more in zip(classes, few, taught, tighter)])


def as_many(values: Tensor, count: int) -> Tensor:
    """Return so many values, spread as others are.

    >>> as_many(torch.tensor([4.0, 0.0]), 3)
    tensor([0., 2., 4.])
    """
    return values.double().quantile(torch.linspace(0, 1, count, dtype=torch.float64)).to(values)


def _placed(known: Classes, features: Tensor) -> tuple[Classes, Space | None]:
    """Return the classes with the coordinates of their images in a space of their own; one class alone has none."""
    if len(known.labels.unique()) < 2:
        return replace(known, coordinates=None), None
    space = fit_space(features, known.labels)
    return replace(known, coordinates=space.coordinates(features)), space


def _measure(
    known: Classes, sigma: float, k: int | None, embeddings: Tensor, features: Tensor, space: Space | None
) -> Measured:
    """Return the measures of images that are not among the centres, some at a time; none of no images."""
    k = min(k or len(known.centres), len(known.centres))
    many, classes = max(1, BLOCK // k), len(known.names)
    places = [None] * len(embeddings) if space is None else space.coordinates(features).split(many)
    found = predictions(
        embeddings.to(known.centres), known.kernels, known.labels, known.theta, sigma, k, classes, chunk=many
    )
    how: dict[str, Any] = {"space": space, "counts": known.class_sizes}
    return _joined([measured(part, known.class_means, place, **how) for part, place in zip(found, places)])


def _joined(parts: list[Measured]) -> Measured:
    """Return measures of several lots of images as of one; a measure that one lot lacks is left out."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {name: torch.cat([part[name] for part in parts]) for name in sorted(common)}


def _image_folds(labels: Tensor) -> Tensor:
    """Return a fold of each image (m,), dealt out class by class; -1 for the only image of its class.

    Where every class has one image alone, all of them are dealt out.

    >>> _image_folds(torch.tensor([0] * 7 + [1])).sort().values.tolist()
    [-1, 0, 0, 1, 1, 2, 3, 4]
    """
    order = _shuffled(len(labels)).to(labels.device)
    order = order[labels[order].argsort(stable=True)]
    sizes = torch.bincount(labels)
    first = (sizes.cumsum(0) - sizes)[labels[order]]
    folds = torch.empty_like(labels)
    folds[order] = (torch.arange(len(labels), device=labels.device) - first) % FOLDS
    alone = sizes[labels] == 1
    return torch.arange(len(labels), device=labels.device) % FOLDS if alone.all() else folds.masked_fill(alone, -1)


def _class_folds(labels: Tensor) -> Tensor:
    """Return the fold of each image's class (m,); the same on every machine."""
    present, which = labels.unique(return_inverse=True)
    return (_shuffled(len(present)).to(labels.device) % FOLDS)[which]


def _shuffled(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))
