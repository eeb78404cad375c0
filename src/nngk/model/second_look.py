"""Which labels are doubtful: each image is judged by two classifiers that have not seen it, and both have half a say.

One has a Gaussian at the mean of each class, all of one shape: the covariance of the network's own features within
classes, shrunk. What it says about an image when that image is left out of the mean of its class and of the covariance
follows exactly from one fit to all of them. How much is shrunk, and how sharp the probabilities are, is chosen where
the left-out images' own labels are likeliest. The other is a softmax of the features, trained on four fifths of the
images for the fifth that it judges, and stopped early: what it learns last are the wrong labels.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm

from nngk.errors import InputError

SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # for the mean variance of a feature within classes
SHARPNESSES = tuple(math.exp(step / 4) for step in range(-20, 5))  # what left-out scores are multiplied by
CHUNK = 4096
FOLDS = 5
STRENGTH, STEPS = 0.1, 20  # of the softmax: C, and the steps of L-BFGS


class Judged(NamedTuple):
    """What the other images say about each of n."""

    own: Tensor  # (n,), the log-probability of its label
    called: Tensor  # (n,), the likeliest label
    called_log: Tensor  # (n,), its log-probability


def second_look(features: Tensor, labels: Tensor, classes: int) -> Judged:
    """Return what all other images say about each image, from features (n, channels) and labels (n,).

    Nothing can be said against the only image of a class. Raise InputError if the features are not finite numbers, or
    the images are of fewer than two classes.
    """
    if features.ndim != 2 or len(features) != len(labels) or not torch.isfinite(features).all():
        raise InputError(f"Features must be finite rows, one for each of {len(labels)} images.")
    if len(labels.unique()) < 2:
        raise InputError("Labels can be doubted where there are two classes or more; the model has images of one.")
    features = layer_norm(features.float(), features.shape[1:])
    fit = _Gaussians(features, labels, classes)
    losses = torch.zeros(len(SHRINKAGES), len(SHARPNESSES), dtype=torch.double)
    for rows, given in fit.chunks():
        for i, scores in enumerate(fit.without_each(rows, given, SHRINKAGES)):
            for j, sharpness in enumerate(SHARPNESSES):
                losses[i, j] += float(_losses((sharpness * scores).log_softmax(1), given).sum())
    i, j = divmod(int(losses.argmin()), len(SHARPNESSES))
    judged, others = [], _softmax_on_folds(features, labels, classes).split(CHUNK)
    for (rows, given), other in zip(fit.chunks(), others):
        (scores,) = fit.without_each(rows, given, SHRINKAGES[i : i + 1])
        logs = (((SHARPNESSES[j] * scores).log_softmax(1) + other) / 2).log_softmax(1)
        called_log, called = logs.max(1)
        judged.append((-_losses(logs, given), called, called_log))
    return Judged(*(torch.cat(parts) for parts in zip(*judged)))


def _losses(logs: Tensor, labels: Tensor) -> Tensor:
    return -logs.gather(1, labels[:, None])[:, 0]


def _folds(labels: Tensor) -> Tensor:
    """Return each image's fold (n,): the images of a class are dealt out by chance, and -1 is the only one of a class.

    >>> sorted(_folds(torch.tensor([0, 1, 1, 1])).tolist())
    [-1, 0, 1, 2]
    """
    luck = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    order = luck[labels[luck].argsort(stable=True)]  # by class
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts)[labels[order]]  # where its class begins
    folds = torch.empty_like(labels)
    folds[order] = (torch.arange(len(labels), device=labels.device) - first) % FOLDS
    return folds.masked_fill(counts[labels] == 1, -1)


def _softmax_on_folds(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return log-probabilities (n, classes) by a softmax trained on the other folds; zeros where there is no fold."""
    folds, logs = _folds(labels), features.new_zeros(len(labels), classes)
    for fold in folds[folds >= 0].unique():
        held = folds == fold
        weights = _softmax(features[~held], labels[~held], classes)
        logs[held] = (features[held] @ weights[:-1] + weights[-1]).log_softmax(1)
    return logs.masked_fill(torch.bincount(labels, minlength=classes) == 0, 0.0)


def _softmax(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the weights (channels + 1, classes) of a softmax after a few steps."""
    weights = features.new_zeros(features.shape[1] + 1, classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        penalty = weights[:-1].square().sum() / (2 * STRENGTH * len(features))
        value = cross_entropy(features @ weights[:-1] + weights[-1], labels) + penalty
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    return weights.detach()


class _Gaussians:
    """Means of classes and the covariance within them, for any shrinkage after one decomposition."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self.features, self.labels = features, labels
        self.middle = features.double().mean(0)
        self.counts = torch.bincount(labels, minlength=classes).double()
        sums = self.middle.new_zeros(classes, features.shape[1])
        for rows, given in self.chunks():
            sums.index_add_(0, given, rows)
        means = sums / self.counts.clamp(min=1)[:, None]
        spread = self.middle.new_zeros(features.shape[1], features.shape[1])
        for rows, given in self.chunks():
            apart = rows - means[given]
            spread += apart.T @ apart
        values, self.directions = torch.linalg.eigh(spread / len(features))
        self.values = values.clamp(min=0)
        self.means = means @ self.directions

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield centred features and labels of some images at a time."""
        for rows, given in zip(self.features.split(CHUNK), self.labels.split(CHUNK)):
            yield rows.double() - self.middle, given

    def without_each(self, rows: Tensor, given: Tensor, shrinkages: tuple[float, ...]) -> Iterator[Tensor]:
        """Yield, for each shrinkage, the scores (b, classes) of some images, each without itself.

        A score is minus half the squared distance to the mean of a class in the metric of the covariance. Without
        image i, which lies u from the mean of its class of m images, that mean is m / (m - 1) · u away from it, and the
        covariance has lost m / (m - 1) · u uᵀ / n: the inverse follows by Sherman and Morrison.
        """
        places, alone = rows @ self.directions, self.counts[given] == 1
        grown = (self.counts[given] / (self.counts[given] - 1)).masked_fill(alone, 1.0)
        lost, each = grown / len(self.features), torch.arange(len(given), device=given.device)
        for shrinkage in shrinkages:
            metric = (self.values + shrinkage * self.values.mean() + 1e-12).rsqrt()
            x, means = places * metric, self.means * metric
            apart = x - means[given]  # u
            own = apart.square().sum(1)
            squared = x.square().sum(1)[:, None] - 2 * x @ means.T + means.square().sum(1)
            along = (apart * x).sum(1)[:, None] - apart @ means.T  # u against the way to each mean
            squared[each, given], along[each, given] = grown.square() * own, grown * own
            squared += (lost / (1 - lost * own).clamp(min=1e-9))[:, None] * along.square()
            yield (-squared / 2).masked_fill(self.counts == 0, -torch.inf).float()
