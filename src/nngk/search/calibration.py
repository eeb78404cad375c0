"""How much effort a wanted recall takes, measured on a sample of the indexed points."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search.checks import real, whole
from nngk.search.native import empty_answer

SAMPLE = 200


class Effort(NamedTuple):
    """A pool of ``ef`` candidates, or a ``budget`` of distance computations."""

    ef: int = 0
    budget: int = 0


def one_effort(ef: int | None, budget: int | None, recall: float | None) -> Effort | None:
    """Return the effort that was asked for; None where it is to be found for a recall."""
    if sum(value is not None for value in (ef, budget, recall)) > 1:
        raise InputError("ef, budget and recall exclude each other: give one of them.")
    if recall is not None and real(recall, "recall", 0, 1) == 0:
        raise InputError("recall must be above 0.")
    if ef is not None:
        return Effort(ef=whole(ef, "ef"))
    return None if budget is None else Effort(budget=whole(budget, "budget"))


def found_share(found: Tensor, truth: Tensor) -> float:
    """Return the share of the true neighbours (n, k) that was found; -1 counts for nothing on either side.

    >>> found_share(torch.tensor([[1, 2, 9]]), torch.tensor([[2, 3, -1]]))
    0.5
    """
    hits = (found[:, :, None] == truth[:, None, :]) & (truth >= 0)[:, None, :]
    return int(hits.any(1).sum()) / max(1, int((truth >= 0).sum()))


def sample_truth(index: Any, k: int, threads: int) -> tuple[Tensor, Tensor]:
    """Return some indexed points and their exact neighbours."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(index.id_count, (4 * SAMPLE,), generator=generator).unique()
    alive = [int(i) for i in ids if index.alive(int(i))]
    chosen = torch.tensor(alive, dtype=torch.long)
    chosen = chosen[torch.randperm(len(chosen), generator=generator)[:SAMPLE]]
    distances, truth = empty_answer(len(chosen), k)
    index.scan_points(chosen, k, threads, distances, truth)
    return chosen, truth


def find_effort(index: Any, k: int, recall: float, threads: int) -> Effort:
    """Return the least pool that reaches the recall on the sample, each point searched as if it were not indexed.

    Of few points the pool takes all: a sample of them says little about other queries, and there is little to save.
    """
    if len(index) <= SAMPLE:
        return Effort(ef=max(k, len(index)))
    ids, truth = sample_truth(index, k, threads)
    distances, found = empty_answer(len(ids), k)

    def reaches(ef: int) -> bool:
        index.search_points(ids, k, ef, 0, False, threads, distances, found)
        return found_share(found, truth) >= recall

    high = k
    while high < len(index) and not reaches(high):
        high = max(high + 8, high * 3 // 2)
    low = k if high == k else high * 2 // 3
    while high - low > max(1, low // 16):  # a step of six hundredths is finer than the sample
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return Effort(ef=min(high, max(k, len(index))))
