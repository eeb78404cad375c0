"""Scores over seeds: their mean and deviation, and which differences between them are noise."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from nngk.errors import MissingExtra

NOISE = 0.05  # a difference that chance alone makes this often, or more often, is noise


class Score(NamedTuple):
    """Mean and standard deviation over seeds; one seed has no deviation."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


def score_over_seeds(values: Sequence[float]) -> Score | None:
    """Return the score of the values of several seeds; None where there are none.

    >>> str(score_over_seeds([0.5, 0.7]))
    '60.00 ± 14.14'
    """
    return Score(fmean(values), stdev(values) if len(values) > 1 else None, len(values)) if values else None


def within_noise(a: Score, b: Score) -> bool | None:
    """Return whether Welch's test at 95% sees no difference between two means; None where one has a single seed.

    >>> within_noise(Score(0.5, 0.01, 3), Score(0.51, 0.01, 3)), within_noise(Score(0.5, 0.01, 3), Score(0.6, 0.01, 3))
    (True, False)
    """
    if a.deviation is None or b.deviation is None:
        return None
    if a.deviation == b.deviation == 0:
        return a.mean == b.mean
    try:
        from scipy.stats import ttest_ind_from_stats
    except ImportError:
        raise MissingExtra("scipy", "datasets", "Welch's test of a comparison") from None
    return bool(ttest_ind_from_stats(*a, *b, equal_var=False).pvalue > NOISE)
