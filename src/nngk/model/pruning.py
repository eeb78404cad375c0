"""Fewer centres that answer as well: those go that are missed least, and the others take over what they stood for."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.kernel.formulas import class_log_probabilities, log_kernels
from nngk.model.classes import Classes, keeping
from nngk.model.left_out import leave_each_out

STEP = 0.05  # of the centres that are left go before the others are asked again
WORST = -50.0  # the least log-probability: an image that is lost already cannot be lost further
REACH = 2  # lists are so many times as long as an answer's: half of the centres may go


@dataclass(frozen=True)
class Kept:
    """A point of the curve: how many centres are left, and how well they answer for all images."""

    centres: int
    accuracy: float  # of all images, each judged without its own centre
    loss: float  # the mean negative log-probability of their own classes

    def to_dict(self) -> dict[str, float]:
        """Return plain values, ready for JSON."""
        return {"centres": self.centres, "accuracy": self.accuracy, "loss": self.loss}


class Lists:
    """Neighbour lists of all images among the centres that are left, without each image's own centre."""

    def __init__(self, known: Classes, sigma: float, k: int | None) -> None:
        left = leave_each_out(known, sigma, None if k is None else REACH * k)
        self.known, self.neighbours = known, left.neighbours
        self.index = left.neighbours.clamp(min=0)
        self.kernels = log_kernels(left.squared, sigma).double()
        self.same = known.labels[self.index] == known.labels[:, None]
        self.totals = class_totals(known.theta, known.labels, len(known.names))

    def theta(self, left: Tensor) -> Tensor:
        """Return θ of the centres that are left (m,), -inf of the others: a class weighs what it did."""
        theta = self.known.theta.double().masked_fill(~left, -torch.inf)
        now = class_totals(theta, self.known.labels, len(self.known.names))
        shift = (self.totals - now).nan_to_num(0.0, posinf=0.0)
        return theta + shift[self.known.labels]

    def usefulness(self, left: Tensor) -> tuple[Tensor, Kept]:
        """Return what the images would lose without each centre (m,), and how well those that are left answer.

        Without centre j, an image loses ln(1 - its share of all kernels) and, if j is of its class, gains
        -ln(1 - its share of that class's): both are known from one pass over the lists.
        """
        values = self.kernels + self.theta(left)[self.index]
        of_class = values.masked_fill(~self.same, -torch.inf)
        share, own_share = (_shares(rows) for rows in (values, of_class))
        missed = torch.log1p(-share) - torch.log1p(-own_share)
        missed = missed.clamp(max=-WORST).masked_fill(self.neighbours < 0, 0.0)
        lost = values.new_zeros(len(values)).index_add_(0, self.index.flatten(), missed.flatten())
        return lost, self._kept(left, values)

    def _kept(self, left: Tensor, values: Tensor) -> Kept:
        labels = self.known.labels
        logs = class_log_probabilities(values, labels[self.index], len(self.known.names)).nan_to_num(nan=-torch.inf)
        best, called = logs.max(1)
        right = (called == labels) & best.isfinite()
        own = logs.gather(1, labels[:, None]).clamp(min=WORST)
        return Kept(int(left.sum()), float(right.double().mean()), float(-own.mean()))


def _shares(values: Tensor) -> Tensor:
    """Return the softmax of each row, a little less than one at most; zeros of a row that has nothing."""
    return values.softmax(1).nan_to_num(nan=0.0).clamp(max=1 - 1e-15)


def class_totals(theta: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the logarithm of the summed weights of each class; -inf of one without a centre."""
    theta = theta.double()
    base = theta.amax() if len(theta) else theta.new_zeros(())
    return theta.new_zeros(classes).index_add_(0, labels, (theta - base).exp()).log() + base


def pruned(known: Classes, sigma: float, k: int | None, count: int, least: int = 2) -> tuple[Classes, list[Kept]]:
    """Return the classes with ``count`` centres, and the curve on the way there, from all centres down.

    The curve is of the centres as they were; those that are left then move to the mean of the images that they stand
    for (:func:`absorbed`). No class is left with fewer than ``least`` centres, or than it has. Raise InputError where
    that allows no so few.
    """
    sizes = torch.bincount(known.labels, minlength=len(known.names))
    fewest = int(sizes.clamp(max=least).sum())
    if not fewest <= count <= len(known.centres):
        raise InputError(
            f"The model has {len(known.centres)} centres and keeps {least} or more of each class, so that {fewest} to "
            f"{len(known.centres)} can be kept; got {count}."
        )
    lists, left = Lists(known, sigma, k), torch.ones_like(known.labels, dtype=torch.bool)
    lost, kept = lists.usefulness(left)
    curve = [kept]
    while kept.centres > count:
        goes = min(kept.centres - count, max(1, int(STEP * kept.centres)))
        left = left & ~_least_missed(known.labels, lost, left, goes, least)
        lost, kept = lists.usefulness(left)
        curve.append(kept)
    return absorbed(known, left), curve


def absorbed(known: Classes, left: Tensor) -> Classes:
    """Return the centres that are left (m,), each at the mean of the images of its class that it is nearest to.

    It takes over their weights, so that a class weighs what it did, and stays at unit length where all centres are. A
    softmax layer does not know of it and goes.
    """
    nearest = torch.arange(len(left), device=left.device)
    for label in known.labels.unique():
        mine = known.labels == label
        stays = (mine & left).nonzero().flatten()
        nearest[mine] = stays[torch.cdist(known.centres[mine], known.centres[stays]).argmin(1)]
    nearest[left] = left.nonzero().flatten()  # also beside one that is the same
    weights = (known.theta.double() - known.theta.double().amax()).exp()
    total = weights.new_zeros(len(left)).index_add_(0, nearest, weights)

    def mean(rows: Tensor) -> Tensor:
        sums = rows.double().new_zeros(rows.shape).index_add_(0, nearest, rows.double() * weights[:, None])
        return sums[left] / total[left, None]

    centres, norms = mean(known.centres), known.centres.norm(dim=1)
    if (norms - 1).abs().max() < 1e-3:
        centres = torch.nn.functional.normalize(centres)
    theta = total.log() + known.theta.double().amax()
    coordinates = None if known.coordinates is None else mean(known.coordinates).to(known.coordinates)
    kept = keeping(known, left)
    return replace(
        kept,
        centres=centres.to(kept.centres),
        theta=theta[left].to(kept.theta),
        coordinates=coordinates,
        softmax=None,
    )


def _least_missed(labels: Tensor, lost: Tensor, left: Tensor, count: int, least: int) -> Tensor:
    """Return which ``count`` of the centres that are left (m,) are missed least, ``least`` of each class set aside."""
    order = lost.masked_fill(~left, torch.inf).argsort(stable=True)[: int(left.sum())]
    spare = (torch.bincount(labels[left], minlength=int(labels.max()) + 1) - least).tolist()
    chosen = torch.zeros_like(left)
    for place in order.tolist():
        if count and spare[int(labels[place])] > 0:
            chosen[place] = True
            spare[int(labels[place])] -= 1
            count -= 1
    return chosen
