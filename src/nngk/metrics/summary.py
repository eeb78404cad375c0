"""One call that judges embeddings."""

from collections.abc import Sequence
from typing import Any

from nngk.metrics.clustering import nmi
from nngk.metrics.retrieval import retrieval_scores
from nngk.ranks import ALONE, Ranks


def evaluate(
    embeddings: Any,
    labels: Any,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    nmi_seeds: int = 10,
    seed: int = 0,
    ranks: Ranks = ALONE,
    queries: Any = None,
    gallery: Any = None,
) -> dict[str, float]:
    """Return Recall@K, R-precision, MAP@R and NMI of embeddings (n, dim) with class labels (n,), as fractions.

    Runs on the embeddings' device in blocks of bounded memory. A query whose class has no other member is
    left out of the retrieval means. ``nmi_seeds=0`` leaves 'nmi' out, which costs the most. Several ranks that hold
    the same embeddings share out the queries and the runs of k-means. ``queries``, the indices of some examples, lets
    only these ask for their nearest others, and ``gallery`` lets only these answer; NMI is that of all.

    >>> evaluate([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1], ks=(1,))
    {'recall@1': 1.0, 'r_precision': 1.0, 'map@r': 1.0, 'nmi': 1.0}
    """
    scores = retrieval_scores(embeddings, labels, ks, ranks, queries=queries, gallery=gallery)
    if nmi_seeds:
        scores["nmi"] = nmi(embeddings, labels, seeds=nmi_seeds, seed=seed, ranks=ranks)
    return scores
