"""Smart mining's walk along an anchor's neighbours, and the controller that sets how far it looks."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nngk.data.sampling import Classes
from nngk.losses.samplers import random_pair

# An error this close to its target is left alone when the past does not say how κ would change it.
NEAR = 0.02


class Mined(NamedTuple):
    """A triplet and whether it was mined or drawn at random."""

    anchor: int
    positive: int
    negative: int
    mined: bool


def walk(
    neighbours: Sequence[int], distances: Sequence[float], same: Sequence[bool], kappa: float
) -> Iterator[tuple[int | None, int]]:
    """Yield pairs (positive, negative) of one anchor from its neighbours in order of squared distance, softest first.

    Everything up to the first positive, and everything nearer than ``kappa`` times its squared distance, is passed
    over. Each negative after that comes with the nearest positive farther than it that is not yet used by a nearer
    negative; None where the list has no such positive.

    >>> list(walk([5, 6, 7, 8, 9], [1.0, 2.0, 3.0, 4.0, 5.0], [True, False, False, True, False], kappa=2.5))
    [(8, 7), (None, 9)]
    """
    first = next((i for i, positive in enumerate(same) if positive), len(same))
    if first == len(same):
        return
    bound = kappa * distances[first]
    beyond = [i for i in range(first + 1, len(same)) if distances[i] >= bound]
    for i in (i for i in beyond if not same[i]):
        farther = next((neighbours[j] for j in beyond if j > i and same[j]), None)
        yield farther, neighbours[i]


def mine(
    anchor: int,
    neighbours: Sequence[int],
    distances: Sequence[float],
    classes: Classes,
    kappa: float,
    rng: np.random.Generator,
) -> Mined:
    """Return the anchor's first mined triplet, or a random one where its neighbours hold no negative to learn from.

    A negative without a farther positive in the list takes a random positive from outside it, which is farther than
    the whole list; where there is none, every positive is nearer than the negative and nothing is left to mine.
    """
    same = [bool(classes.of[j] == classes.of[anchor]) for j in neighbours]
    for positive, negative in walk(neighbours, distances, same, kappa):
        if positive is not None:
            return Mined(anchor, positive, negative, True)
        own = classes.members[classes.of[anchor]]
        outside = np.setdiff1d(own, [anchor, *neighbours])
        if len(outside):
            return Mined(anchor, int(rng.choice(outside)), negative, True)
        break
    return Mined(anchor, *random_pair(anchor, classes, rng), False)


def next_kappa(
    history: Sequence[tuple[float, float]], target: float, *, lowest: float, highest: float, step: float = 1.5
) -> float:
    """Return the κ to use after epochs with (training error, κ), so that the error comes to ``target``.

    A line κ = α·error + β through the past, by least squares, read at the target. A larger κ means softer triplets,
    so α must be negative; while the past shows no such line (one epoch, or the network's own progress hides it), κ
    moves by the factor ``step`` in the right direction, unless the error is near the target already. ``step`` also is
    the most it moves at a time.

    >>> next_kappa([(0.9, 1.0), (0.8, 1.2)], target=0.7, lowest=1, highest=100)
    1.4
    """
    error, kappa = history[-1]
    smallest, largest = max(lowest, kappa / step), min(highest, kappa * step)
    errors, kappas = np.array(history, dtype=np.float64).T
    spread = float(((errors - errors.mean()) ** 2).sum())
    slope = float(((errors - errors.mean()) * (kappas - kappas.mean())).sum()) / spread if spread > 1e-12 else 0.0
    if slope >= 0:
        if abs(error - target) < NEAR:
            return kappa
        return largest if error > target else smallest
    wanted = slope * (target - float(errors.mean())) + float(kappas.mean())
    return round(min(largest, max(smallest, wanted)), 12)
