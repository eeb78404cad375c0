"""Recall@K, R-precision and MAP@R: every example asks for its nearest others.

An example's own index is never among its answers; a duplicate of it is another index and may be. A query
whose class has no other member has nothing to find: it takes part as an answer, but not in the mean, as in
pytorch-metric-learning.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.metrics.inputs import class_numbers, matrix, numbers
from nngk.ranks import ALONE, Ranks
from nngk.search import Exact
from nngk.search.checks import without_own

BLOCK = 1 << 22  # neighbours of one block of queries


def retrieval_scores(
    embeddings: Any,
    labels: Any,
    ks: Sequence[int] = (1, 2, 4, 8),
    ranks: Ranks = ALONE,
    *,
    queries: Any = None,
    gallery: Any = None,
) -> dict[str, float]:
    """Return all retrieval metrics in one pass: 'recall@K' for K in ``ks``, 'r_precision', 'map@r'.

    A K beyond the number of other examples counts all of them. Several ranks share out the queries. Of very many
    examples a sample may ask: ``queries`` are their indices, all by default. Everybody answers, or those of the
    ``gallery`` alone, which are indices too.

    >>> retrieval_scores([[0.0], [1.0], [5.0], [5.5]], [0, 0, 1, 0], ks=(1, 2))
    {'recall@1': 0.6666666666666666, 'recall@2': 1.0, 'r_precision': 0.5, 'map@r': 0.4166666666666667}
    """
    x, y = _checked(embeddings, labels)
    ks = sorted(set(ks))
    if ks and ks[0] < 1:
        raise InputError(f"K of Recall@K must be at least 1, got {ks[0]}.")
    everybody = torch.arange(len(x), device=x.device)
    asking = everybody if queries is None else _indices(queries, len(x), x.device, "Queries")
    answering = everybody if gallery is None else _indices(gallery, len(x), x.device, "Gallery").unique()
    inverse = y.unique(return_inverse=True)[1]
    counts = torch.bincount(inverse[answering], minlength=len(x))
    relevant = counts[inverse] - torch.isin(everybody, answering).long()  # R of every example
    count = int((relevant[asking] > 0).sum())
    if not count:
        raise InputError(
            f"Every class {'' if queries is None else 'of a query '}has a single example, so no query has anything to "
            "find. Retrieval metrics need at least one class with two examples."
            if gallery is None
            else "No image of the gallery has the class of a query, so that there is nothing to find."
        )
    depth = min(max([*ks, int(relevant[asking].max())]), len(answering) - int(torch.isin(asking, answering).any()))
    total = torch.zeros(len(ks) + 2, dtype=torch.float64)
    for rows, nearest in _rankings(x, depth, asking[ranks.span(len(asking))], answering):
        hits = y[nearest] == y[rows, None]  # (rows, depth), nearest first
        total += _sums(hits, relevant[rows], ks).cpu()
    names = [f"recall@{k}" for k in ks] + ["r_precision", "map@r"]
    return dict(zip(names, (ranks.sum(total) / count).tolist()))


def recall_at_k(embeddings: Any, labels: Any, k: int = 1) -> float:
    """Return the share of queries with one of their class among the ``k`` nearest others.

    Queries whose class has no other member are left out of the mean, as pytorch-metric-learning does.

    >>> recall_at_k([[0.0], [1.0], [5.0], [5.5]], [0, 0, 1, 0], k=2)
    1.0
    """
    return retrieval_scores(embeddings, labels, (k,))[f"recall@{k}"]


def r_precision(embeddings: Any, labels: Any) -> float:
    """Return the mean share of the query's class among its R nearest others, of which R have its class.

    >>> r_precision([[0.0], [1.0], [5.0], [5.5]], [0, 0, 1, 0])
    0.5
    """
    return retrieval_scores(embeddings, labels, ())["r_precision"]


def mean_average_precision_at_r(embeddings: Any, labels: Any) -> float:
    """Return MAP@R: ``1/R Σ_{i ≤ R} precision at i · [the i-th is right]``, the mean over queries.

    >>> mean_average_precision_at_r([[0.0], [1.0], [5.0], [5.5]], [0, 0, 1, 1])
    1.0
    """
    return retrieval_scores(embeddings, labels, ())["map@r"]


def has_pairs(labels: Tensor) -> bool:
    """Return whether some class has two examples, so that one can be looked for with the other.

    >>> has_pairs(torch.tensor([0, 1, 1])), has_pairs(torch.tensor([0, 1]))
    (True, False)
    """
    return bool(len(labels) > len(labels.unique()))


def _checked(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    x = matrix(embeddings, "Embeddings")
    if len(x) < 2:
        raise InputError("Retrieval metrics need at least two examples, got one.")
    return x, class_numbers(labels, len(x), "embeddings", x.device)


def _indices(given: Any, n: int, device: torch.device, name: str) -> Tensor:
    """Return which of n examples ask or answer."""
    rows = numbers(given, name, device)
    whole = not (rows.is_floating_point() or rows.dtype == torch.bool)
    if rows.ndim != 1 or not len(rows) or not whole or int(rows.min()) < 0 or int(rows.max()) >= n:
        raise InputError(f"{name} must be indices of examples, at least one, from 0 to {n - 1}.")
    return rows.long()


def _rankings(x: Tensor, depth: int, asking: Tensor, answering: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of queries (rows,) and the indices of the ``depth`` nearest others that answer (rows, depth)."""
    # Where each point stands among those that answer; one that does not stands nowhere.
    place = torch.full((len(x),), -1, device=x.device)
    place[answering] = torch.arange(len(answering), device=x.device)
    engine = Exact(x if len(answering) == len(x) else x[answering])
    k = min(depth + 1, len(engine))
    for rows in asking.split(max(1, BLOCK // k)):
        if len(rows):
            # Half-precision products would reorder neighbours, so the caller's autocast stays outside.
            with torch.autocast(x.device.type, enabled=False):
                distances, found = engine.search(x[rows], k)
            if k > depth:
                found = without_own(distances, found, place[rows])[1]
            yield rows, answering[found]


def _sums(hits: Tensor, relevant: Tensor, ks: Sequence[int]) -> Tensor:
    """Return the block's sums of every Recall@K, R-precision and average precision at R, in float64."""
    hits, relevant = hits[relevant > 0], relevant[relevant > 0]
    rank = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    within = hits & (rank <= relevant[:, None])
    precision = hits.cumsum(1).double() / rank
    recalls = [hits[:, :k].any(1).sum().double() for k in ks]
    return torch.stack(
        [
            *recalls,
            (within.sum(1).double() / relevant).sum(),
            ((precision * within).sum(1) / relevant).sum(),
        ]
    )
