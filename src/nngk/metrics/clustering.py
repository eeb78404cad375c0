"""K-means and the normalised mutual information of its clusters with the classes."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from nngk.errors import InputError
from nngk.metrics.inputs import TILE, class_numbers, matrix, numbers
from nngk.ranks import ALONE, Ranks

SEEDING = 10**7  # points × seeds from which on seeds are drawn among a sample
LEAST_PER_SEED = 10  # points of that sample


class KMeans(NamedTuple):
    """What ``kmeans`` found: the cluster of every row, the centres, the sum of squared distances."""

    clusters: Tensor  # (n,)
    centres: Tensor  # (k, dim)
    inertia: float


def kmeans(
    x: Any, k: int, *, seed: int = 0, restarts: int = 1, iterations: int = 100, tolerance: float = 1e-4
) -> KMeans:
    """Cluster with Lloyd's algorithm from greedy k-means++ seeds; the best of ``restarts``.

    Stops after ``iterations`` or when the centres move, in squared distance, by less than ``tolerance`` times
    the mean variance of the columns.

    >>> kmeans([[0.0], [1.0], [10.0], [11.0]], k=2).centres.sort(0).values.tolist()
    [[0.5], [10.5]]
    """
    points = matrix(x, "Points")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= len(points):
        raise InputError(f"k-means needs between 1 and {len(points)} clusters for {len(points)} points, got {k}.")
    if restarts < 1 or iterations < 1:
        raise InputError(f"k-means needs at least one restart and one iteration, got {restarts} and {iterations}.")
    shift = points.mean(0)
    points = points - shift
    enough = tolerance * float(points.var(0, correction=0).mean())
    # The draws come from the CPU, so that a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(points.device.type, enabled=False):
        runs = [_lloyd(points, _seeds(points, k, generator), iterations, enough) for _ in range(restarts)]
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centres=best.centres + shift)


def nmi(
    embeddings: Any, labels: Any, *, seeds: int = 10, seed: int = 0, restarts: int = 1, ranks: Ranks = ALONE
) -> float:
    """Return the NMI of the classes with as many k-means clusters of the embeddings; the mean over ``seeds`` runs.

    Several ranks share out the runs.

    >>> nmi([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1])
    1.0
    """
    x = matrix(embeddings, "Embeddings")
    y = class_numbers(labels, len(x), "embeddings", x.device)
    if seeds < 1:
        raise InputError(f"NMI needs at least one k-means seed, got {seeds}.")
    k = len(y.unique())
    runs = (kmeans(x, k, seed=seed + i, restarts=restarts) for i in range(ranks.rank, seeds, ranks.count))
    found = math.fsum(normalised_mutual_information(y, run.clusters) for run in runs)
    return float(ranks.sum(torch.tensor(found, dtype=torch.float64))) / seeds


def normalised_mutual_information(a: Any, b: Any) -> float:
    """Return ``2 I(a; b) / (H(a) + H(b))``: the arithmetic normaliser; 1 when both have one cluster.

    >>> round(normalised_mutual_information([0, 0, 1, 1], [0, 0, 1, 2]), 3)
    0.8
    """
    first = numbers(a, "Labels")
    first = class_numbers(first, first.numel(), "the labelling", first.device)
    second = class_numbers(b, len(first), "the other labelling", first.device)
    if not len(first):
        raise InputError("NMI needs at least one label, got none.")
    rows, i = first.unique(return_inverse=True)
    columns, j = second.unique(return_inverse=True)
    # Occupied cells only: a full contingency table of two large labellings would not fit.
    cells, counts = (i * len(columns) + j).unique(return_counts=True)
    n = float(len(first))
    joint = counts.double() / n
    p = torch.bincount(i).double() / n
    q = torch.bincount(j).double() / n
    entropy = float(-(p * p.log()).sum() - (q * q.log()).sum())
    if len(rows) == len(columns) == 1:
        return 1.0
    independent = p[cells // len(columns)] * q[cells % len(columns)]
    information = float((joint * (joint.log() - independent.log())).sum())
    return min(1.0, max(0.0, 2 * information / entropy))


def _seeds(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw greedy k-means++ seeds: of a few draws by squared distance, the one that lowers the sum most.

    Every seed costs a walk over the points; where points × seeds are very many, a sample of the points stands for all.
    """
    enough = max(SEEDING // k, LEAST_PER_SEED * k)
    if len(x) > enough:
        x = x[torch.randperm(len(x), generator=generator)[:enough].to(x.device)]
    trials = 2 + int(math.log(k))
    norms = x.square().sum(1)
    chosen = [int(torch.randint(len(x), (1,), generator=generator))]
    nearest = _squared(x, norms, x.new_tensor(chosen).long())[:, 0]
    for _ in range(1, k):
        cumulative = nearest.double().cumsum(0)
        draws = torch.rand(trials, generator=generator, dtype=torch.float64).to(x.device)
        if float(cumulative[-1]) > 0:
            candidates = torch.searchsorted(cumulative, draws * cumulative[-1], right=True).clamp(max=len(x) - 1)
        else:  # every point coincides with a seed
            candidates = (draws * len(x)).long()
        distances = torch.minimum(nearest[:, None], _squared(x, norms, candidates))
        best = int(distances.sum(0).argmin())
        chosen.append(int(candidates[best]))
        nearest = distances[:, best]
    return x[chosen]


def _squared(x: Tensor, norms: Tensor, chosen: Tensor) -> Tensor:
    """Return the squared distances (n, chosen) of centred points to some of them, by a product."""
    both = norms[:, None] + norms[chosen]
    distances = torch.addmm(both, x, x[chosen].T, alpha=-2)
    # What is left of a point's distance to itself, or to its double, is rounding: never to be drawn.
    return torch.where(distances > 1e-6 * both, distances, 0.0)


def _lloyd(x: Tensor, centres: Tensor, iterations: int, enough: float) -> KMeans:
    """Assign every point to its nearest centre and move the centres to the means, in turns.

    Most centres soon rest: what lies nearest to one of those is compared with the centres that moved, and no others.
    """
    nearest = x.new_zeros(len(x), dtype=torch.long), x.new_zeros(len(x))
    moved = centres.new_ones(len(centres), dtype=torch.bool)
    for _ in range(iterations):
        nearest = _reassigned(x, centres, moved, *nearest)
        means = _means(x, *nearest, centres)
        moved = (means != centres).any(1)
        shift = float((means - centres).square().sum())
        centres = means
        if shift <= enough:
            break
    clusters = _reassigned(x, centres, moved, *nearest)[0]
    parts = zip(x.split(_rows_at_once(centres)), clusters.split(_rows_at_once(centres)))
    return KMeans(clusters, centres, sum(float((p - centres[own]).square().sum().double()) for p, own in parts))


def _reassigned(x: Tensor, centres: Tensor, moved: Tensor, clusters: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of every point and its score, |c|² - 2xc, given those before some centres moved."""
    norms, which = centres.square().sum(1), moved.nonzero().flatten()
    clusters, scores = clusters.clone(), scores.clone()
    many = 2 * len(which) > len(centres)
    for rows in torch.arange(len(x), device=x.device).split(_rows_at_once(centres)):
        part, own, score = (each[rows[0] : rows[-1] + 1] for each in (x, clusters, scores))  # views
        left = moved[own]  # by their own centre
        if not many and len(which):
            found, place = torch.addmm(norms[which], part, centres[which].T, alpha=-2).min(1)
            nearer = ~left & (found < score)
            score[nearer], own[nearer] = found[nearer], which[place[nearer]]
        some: Tensor | slice = slice(None) if many else left.nonzero().flatten()
        score[some], own[some] = torch.addmm(norms, part[some], centres.T, alpha=-2).min(1)
    return clusters, scores


def _rows_at_once(centres: Tensor) -> int:
    return max(1, TILE // max(centres.shape))


def _means(x: Tensor, clusters: Tensor, scores: Tensor, centres: Tensor) -> Tensor:
    """Return the clusters' means; an empty cluster moves to a point that lies far from its centre."""
    # Each cluster adds up its own points in their order: the same sums on every run, and nothing of n × dim is made.
    counts = torch.bincount(clusters, minlength=len(centres))
    means = embedding_bag(clusters.argsort(stable=True), x, counts.cumsum(0) - counts, mode="mean")
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        means[empty] = x[(scores + x.square().sum(1)).topk(len(empty)).indices]
    return means
