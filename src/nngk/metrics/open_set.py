"""How well an unknown score tells images of unknown classes from images of known ones.

A score is high where an image looks unknown. ``known`` and ``unknown`` are the scores (n,) and (u,) of images of known
and of unknown classes.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.metrics.inputs import numbers


def auroc(known: Any, unknown: Any) -> float:
    """Return the share of pairs in which the unknown image has the higher score; a tie counts half.

    >>> auroc([0.1, 0.2, 0.7], [0.7, 0.9])
    0.9166666666666666
    """
    known, unknown = _scores(known, "known"), _scores(unknown, "unknown")
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown, right=False)
    up_to = torch.searchsorted(ordered, unknown, right=True)
    return float((below + up_to).double().mean()) / (2 * len(known))


def false_alarms(known: Any, unknown: Any, detection: float = 0.95) -> float:
    """Return the share of known images flagged at the highest threshold that flags ``detection`` of the unknown ones.

    >>> false_alarms([0.1, 0.2, 0.7], [0.6, 0.9], detection=1.0)
    0.3333333333333333
    """
    known, unknown = _scores(known, "known"), _scores(unknown, "unknown")
    if not 0 < detection <= 1:
        raise InputError(f"The share to detect must lie above 0 and be at most 1; got {detection}.")
    flagged = math.ceil(detection * len(unknown) - 1e-9)  # 0.95 of 20 is 19, whatever its rounding
    threshold = unknown.sort(descending=True).values[flagged - 1]
    return float((known >= threshold).double().mean())


def open_set_classification_rate(known: Any, right: Any, unknown: Any) -> float:
    """Return OSCR: the area under the share of known images accepted and classified right, over the share of unknown
    images accepted, as the threshold rises. ``right`` (n,) says which known images are classified right.

    >>> open_set_classification_rate([0.1, 0.3], [True, False], [0.2, 0.9])
    0.5
    """
    known, unknown = _scores(known, "known"), _scores(unknown, "unknown")
    correct = numbers(right, "Right answers", known.device).bool()
    if correct.shape != known.shape:
        raise InputError(
            f"Expected one mark per known image, {len(known)} in all; got the shape {tuple(correct.shape)}."
        )
    # Accepted at a threshold: all that score at or below it. Ties move together, so the curve crosses them straight.
    thresholds = torch.cat([known, unknown]).unique()
    accepted = torch.searchsorted(unknown.sort().values, thresholds, right=True).double() / len(unknown)
    rate = torch.searchsorted(known[correct].sort().values, thresholds, right=True).double() / len(known)
    zero = accepted.new_zeros(1)
    return float(torch.trapezoid(torch.cat([zero, rate]), torch.cat([zero, accepted])))


def open_set_scores(known: Any, right: Any, unknown: Any) -> dict[str, float]:
    """Return all three: 'auroc', 'false_alarms' (at 95% detection) and 'oscr'.

    >>> open_set_scores([0.1, 0.2], [True, True], [0.8, 0.9])
    {'auroc': 1.0, 'false_alarms': 0.0, 'oscr': 1.0}
    """
    return {
        "auroc": auroc(known, unknown),
        "false_alarms": false_alarms(known, unknown),
        "oscr": open_set_classification_rate(known, right, unknown),
    }


def _scores(values: Any, what: str) -> Tensor:
    """Return scores (n,), n > 0, in float64. Raise InputError if they are anything else."""
    scores = numbers(values, f"The {what} scores").double()
    if scores.ndim != 1 or not len(scores):
        raise InputError(f"The {what} scores must be a list of numbers, at least one; got shape {tuple(scores.shape)}.")
    if scores.isnan().any():
        raise InputError(f"The {what} scores hold NaN.")
    return scores
