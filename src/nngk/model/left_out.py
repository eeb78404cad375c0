"""What a model says about its own images when each is left out: the others answer for it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nngk.bank.centres import with_same_class
from nngk.errors import InputError
from nngk.kernel.formulas import squared_distances
from nngk.kernel.predict import answer
from nngk.model.classes import Classes

CHUNK = 4096  # images that are answered for at a time


@dataclass(frozen=True)
class LeftOut:
    """The answers about the m images of a model, each without its own centre."""

    neighbours: Tensor  # (m, k), the nearest other centres; -1 where there is none
    squared: Tensor  # (m, k), infinite where there is none
    own: Tensor  # (m,), the log-probability of the image's own class; -inf for the only image of a class
    called: Tensor  # (m,), the likeliest label
    called_log: Tensor  # (m,), its log-probability


def leave_each_out(known: Classes, sigma: float, k: int | None) -> LeftOut:
    """Return what the other centres say about each image of a model.

    Each considers its ``k`` nearest (None: all), and the nearest of its own class where none is among them, so that
    every image has a probability that can be compared.

    >>> rows = torch.tensor([[0.0], [1.0], [9.0], [8.0], [0.5]])
    >>> known = Classes(["a", "b"], rows, torch.tensor([0, 0, 1, 1, 1]), torch.zeros(5), list("12345"))
    >>> left = leave_each_out(known, sigma=1.0, k=None)
    >>> left.called.tolist(), bool(left.own.argmin() == 4)  # the last one lies among the others' images
    ([1, 1, 1, 1, 0], True)
    """
    m = len(known.centres)
    if m < 2:
        raise InputError(f"Images are judged by one another, so that two or more are needed; the model has {m}.")
    found = known.engine.all_neighbours(min(k or m, m - 1))[1].to(known.labels.device)
    found, _ = with_same_class(found, known.centres, known.labels, 1)
    squared = squared_distances(known.centres, known.centres, found)
    own, called, called_log = [], [], []
    for rows in torch.arange(m, device=found.device).split(CHUNK):
        logs = answer(squared[rows], found[rows], known.labels, known.theta, sigma, len(known.names)).log_probabilities
        own.append(logs.gather(1, known.labels[rows, None])[:, 0])
        best = logs.max(1)
        called.append(best.indices)
        called_log.append(best.values)
    return LeftOut(found, squared, torch.cat(own), torch.cat(called), torch.cat(called_log))
