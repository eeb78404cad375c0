"""Which labels are doubtful: each image is judged by a discriminant that has not seen it.

The discriminant is the linear regression of class memberships on the network's own features, shrunk; what it says about
an image when that image is left out follows exactly from one fit to all of them: with the image's own influence h on
its fitted value, the value without it is (fitted - h · given) / (1 - h). How much is shrunk, and how sharp the
probabilities are, is chosen where the left-out images' own labels are likeliest.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nngk.errors import InputError

SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # for the mean variance of a feature
SHARPNESSES = tuple(math.exp(step / 4) for step in range(4, 21))  # what left-out scores are multiplied by
CHUNK = 4096


class Judged(NamedTuple):
    """What the other images say about each of n."""

    own: Tensor  # (n,), the log-probability of its label
    called: Tensor  # (n,), the likeliest label
    called_log: Tensor  # (n,), its log-probability


def second_look(features: Tensor, labels: Tensor, classes: int) -> Judged:
    """Return what all other images say about each image, from features (n, channels) and labels (n,).

    Raise InputError if the features are not finite numbers, or the images are of fewer than two classes.
    """
    if features.ndim != 2 or len(features) != len(labels) or not torch.isfinite(features).all():
        raise InputError(f"Features must be finite rows, one for each of {len(labels)} images.")
    if len(labels.unique()) < 2:
        raise InputError("Labels can be doubted where there are two classes or more; the model has images of one.")
    features = torch.nn.functional.layer_norm(features.float(), features.shape[1:])
    best, best_loss = None, math.inf
    fit = _Regression(features, labels, classes)
    for shrinkage in SHRINKAGES:
        scores = fit.without_each(shrinkage)
        for sharpness in SHARPNESSES:
            logs = (sharpness * scores).log_softmax(1)
            loss = float(torch.nn.functional.nll_loss(logs, labels))
            if loss < best_loss:
                best, best_loss = _judged(logs, labels), loss
    assert best is not None
    return best


def _judged(logs: Tensor, labels: Tensor) -> Judged:
    called_log, called = logs.max(1)
    return Judged(logs.gather(1, labels[:, None])[:, 0], called, called_log)


class _Regression:
    """The regression of class memberships on features, for any shrinkage after one decomposition."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self.features, self.labels, self.classes = features, labels, classes
        n, channels = features.shape
        self.mean = features.double().mean(0)
        self.rate = torch.bincount(labels, minlength=classes).double() / n
        spread = self.mean.new_zeros(channels, channels)
        joint = self.mean.new_zeros(channels, classes)
        for rows, given in self._chunks():
            spread += rows.T @ rows
            joint += rows.T @ given
        values, self.directions = torch.linalg.eigh(spread)
        self.values = values.clamp(min=0)
        self.joint = self.directions.T @ joint

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield centred features and memberships of some images at a time."""
        for rows, which in zip(self.features.split(CHUNK), self.labels.split(CHUNK)):
            given = torch.nn.functional.one_hot(which, self.classes).double()
            yield rows.double() - self.mean, given - self.rate

    def without_each(self, shrinkage: float) -> Tensor:
        """Return each image's scores (n, classes) without itself."""
        n, channels = self.features.shape
        strength = 1 / (self.values + shrinkage * self.values.sum() / channels + 1e-12)
        scores = []
        for rows, given in self._chunks():
            places = rows @ self.directions
            fitted = (places * strength) @ self.joint
            own = ((places.square() * strength).sum(1) + 1 / n).clamp(max=1 - 1e-9)[:, None]
            scores.append(((fitted - own * given) / (1 - own)).float())
        return torch.cat(scores)
