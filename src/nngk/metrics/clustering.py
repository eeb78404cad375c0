"""K-means and the normalised mutual information of its clusters with the classes."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from nngk.errors import InputError
from nngk.metrics.inputs import TILE, class_numbers, matrix, numbers
from nngk.ranks import ALONE, Ranks
from nngk.search.exact import Exact

SEEDING = 10**7  # points × clusters from which on samples of the points give the start
LEAST_PER_SEED = 10  # points for each cluster, from which on they may
POWERS = 3  # of a cluster's covariance, to find its longest direction
SAMPLES = (8, 4, 2, 2, 2)  # parts of all points: one of so many
CAREFUL = 1.00001  # bounds closer than this are not trusted: they were rounded
CACHED = 1 << 20  # elements of rows that are looked at one by one: on a CPU they should stay in its cache
TABLE = 8192  # points up to which all their distances are kept while seeds are drawn


class KMeans(NamedTuple):
    """What ``kmeans`` found: the cluster of every row, the centres, the sum of squared distances."""

    clusters: Tensor  # (n,)
    centres: Tensor  # (k, dim)
    inertia: float


def kmeans(
    x: Any, k: int, *, seed: int = 0, restarts: int = 1, iterations: int = 100, tolerance: float = 1e-4
) -> KMeans:
    """Cluster with Lloyd's algorithm from greedy k-means++ seeds; the best of ``restarts``.

    Very many points start from samples of them, on which clusters are also merged where splitting others gains more.
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
        runs = [_lloyd(points, _start(points, k, generator), iterations, enough) for _ in range(restarts)]
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


def _start(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return centres to start from: seeds, or for very many points what growing samples of them make of seeds."""
    enough = max(SEEDING // k, LEAST_PER_SEED * k)
    if len(x) <= enough:
        return _seeds(x, k, generator)
    order = torch.randperm(len(x), generator=generator).to(x.device)
    centres = _seeds(x[order[: max(TABLE, LEAST_PER_SEED * k) // 2]], k, generator)
    for part in SAMPLES:
        sample = x[order[: max(enough // 2, len(x) // part)]]
        assigned = _assigned(sample, centres)
        centres = _swapped(sample, assigned.clusters, _means(sample, assigned, centres))
    return centres


def _seeds(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw greedy k-means++ seeds: of a few draws by squared distance, the one that lowers the sum most."""
    trials = 2 + int(math.log(k))
    norms = x.square().sum(1)
    # One large product is far faster than many narrow ones, if a good part of it is asked for.
    table = _squared(x, norms, slice(None)) if len(x) <= min(TABLE, 4 * k * trials) else None
    chosen = torch.randint(len(x), (1,), generator=generator).tolist()
    nearest = _squared(x, norms, x.new_tensor(chosen).long())[0]
    for _ in range(1, k):
        cumulative = nearest.double().cumsum(0)
        draws = torch.rand(trials, generator=generator, dtype=torch.float64).to(x.device)
        if float(cumulative[-1]) > 0:
            candidates = torch.searchsorted(cumulative, draws * cumulative[-1], right=True).clamp(max=len(x) - 1)
        else:  # every point coincides with a seed
            candidates = (draws * len(x)).long()
        found = _squared(x, norms, candidates) if table is None else table[candidates]
        distances = torch.minimum(nearest, found)
        best = int(distances.sum(1).argmin())
        chosen.append(int(candidates[best]))
        nearest = distances[best]
    return x[chosen]


def _squared(x: Tensor, norms: Tensor, chosen: Tensor | slice) -> Tensor:
    """Return the squared distances (chosen, n) of some of the centred points to all, by a product."""
    both = norms[chosen][:, None] + norms
    distances = torch.addmm(both, x[chosen], x.T, alpha=-2)
    # What is left of a point's distance to itself, or to its double, is rounding: never to be drawn.
    return torch.where(distances > 1e-6 * both, distances, 0.0)


def _swapped(x: Tensor, clusters: Tensor, means: Tensor) -> Tensor:
    """Merge two clusters and split a third in their stead wherever that lowers the sum of squared distances.

    A merged pair with n and m points whose means are d apart costs n m / (n + m) d², and a split gains as much.
    """
    counts = torch.bincount(clusters, minlength=len(means)).to(x.dtype)
    halves, gains = _halves(x, clusters, means)
    costs, mates = _cheapest_merges(means, counts)
    splits, taken = iter(gains.argsort(descending=True, stable=True).tolist()), set[int]()
    gain, cost, mate, means = gains.tolist(), costs.tolist(), mates.tolist(), means.clone()
    for one in costs.argsort(stable=True).tolist():
        other = mate[one]
        if taken & {one, other}:
            continue
        split = next((each for each in splits if each not in taken | {one, other}), None)
        if split is None or gain[split] <= cost[one]:
            break
        taken |= {one, other, split}
        weights = counts[[one, other]] / counts[[one, other]].sum().clamp(min=1)
        means[one] = weights @ means[[one, other]]
        means[[split, other]] = halves[split]
    return means


def _cheapest_merges(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every cluster what the cheapest merge with another costs, and that other."""
    costs, mates = [], []
    for rows in torch.arange(len(means), device=means.device).split(_rows_at_once(means)):
        weights = counts[rows, None] * counts / (counts[rows, None] + counts).clamp(min=1)
        table = torch.cdist(means[rows], means).square_().mul_(weights)
        table[torch.arange(len(rows), device=means.device), rows] = math.inf
        cost, mate = table.min(1)
        costs.append(cost)
        mates.append(mate)
    return torch.cat(costs), torch.cat(mates)


def _halves(x: Tensor, clusters: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Split every cluster across its longest direction; return the halves' means (k, 2, dim) and what that gains."""
    k, size = len(means), _cached_rows(x)
    counts = torch.bincount(clusters, minlength=k)
    order = clusters.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    direction = normalize(x[order[starts.clamp(max=len(x) - 1)]] - means)  # the first point of each cluster
    for power in range(POWERS + 1):
        offset = (means * direction).sum(1)
        parts = zip(x.split(size), clusters.split(size))
        along = torch.cat([(part * direction[own]).sum(1) - offset[own] for part, own in parts])
        if power < POWERS:  # the covariance times the direction; about the mean, where what lies along it adds up to 0
            direction = normalize(embedding_bag(order, x, starts, mode="sum", per_sample_weights=along[order]))
    half = 2 * clusters + (along > 0)
    sizes = torch.bincount(half, minlength=2 * k)
    halves = embedding_bag(half.argsort(stable=True), x, sizes.cumsum(0) - sizes, mode="mean").view(k, 2, -1)
    one, other = sizes.view(k, 2).to(x.dtype).unbind(1)
    return halves, one * other / (one + other).clamp(min=1) * (halves[:, 0] - halves[:, 1]).square().sum(1)


class Assigned(NamedTuple):
    """The cluster of every point, with bounds that tell which points the next move of the centres can take from it."""

    clusters: Tensor  # (n,)
    within: Tensor  # (n,): the distance from its centre is at most this
    beyond: Tensor  # (n,): that from every other centre is at least this


def _lloyd(x: Tensor, centres: Tensor, iterations: int, enough: float) -> KMeans:
    """Assign every point to its nearest centre and move the centres to the means, in turns.

    The centres soon move by little: a point that lies deep inside its cluster is not looked at again.
    """
    assigned = _assigned(x, centres)
    for _ in range(iterations):
        means = _means(x, assigned, centres)
        moves = (means - centres).square().sum(1)
        centres = means
        assigned = _reassigned(x, centres, moves.sqrt(), assigned)
        if float(moves.sum()) <= enough:
            break
    clusters = assigned.clusters
    parts = zip(x.split(_cached_rows(x)), clusters.split(_cached_rows(x)))
    return KMeans(clusters, centres, sum(float((p - centres[own]).square().sum().double()) for p, own in parts))


def _assigned(x: Tensor, centres: Tensor) -> Assigned:
    """Assign every point to the nearest of all centres."""
    distances, nearest = Exact(centres).search(x, min(2, len(centres)))
    distances = distances.to(x).sqrt_()
    beyond = distances[:, 1] if len(centres) > 1 else torch.full_like(distances[:, 0], math.inf)
    return Assigned(nearest[:, 0].to(x.device), distances[:, 0], beyond)


def _reassigned(x: Tensor, centres: Tensor, moves: Tensor, before: Assigned) -> Assigned:
    """Return the nearest centres after each has moved by so much: as :func:`_assigned`, but for looser bounds.

    A point whose bounds stay apart keeps its centre. All points are compared with the few centres that moved farthest,
    as many as pay off, because the others then widen the bounds by little.
    """
    n, k = len(x), len(centres)
    within, beyond = before.within + moves[before.clusters], before.beyond
    order = moves.argsort(descending=True, stable=True)
    widest = torch.cat([moves[order], moves.new_zeros(1)])  # the largest move if that many centres are left out
    doubtful = torch.searchsorted((beyond - within).sort().values, widest, right=True)
    costs = torch.arange(k + 1, device=x.device) * n + doubtful * k
    fast = order[: int(costs.argmin())]
    if int(costs[len(fast)]) >= n * k:
        return _assigned(x, centres)
    beyond = beyond - widest[len(fast)]
    if len(fast):
        found = _assigned(x, centres[fast])
        beyond = torch.minimum(beyond, found.within.where(fast[found.clusters] != before.clusters, found.beyond))
    clusters = before.clusters.clone()
    engine = Exact(centres)
    unsure = within * CAREFUL >= beyond
    for rows in unsure.nonzero().flatten().split(_cached_rows(x)):
        within[rows] = (x[rows] - centres[clusters[rows]]).square_().sum(1).sqrt_()
    unsure = within * CAREFUL >= beyond
    for rows in unsure.nonzero().flatten().split(_rows_at_once(centres)):
        if not len(rows):
            continue
        distances, nearest = engine.search(x[rows], 2)
        clusters[rows] = nearest[:, 0].to(x.device)
        within[rows], beyond[rows] = distances.to(x).sqrt_().unbind(1)
    return Assigned(clusters, within, beyond)


def _cached_rows(x: Tensor) -> int:
    return max(1, (TILE if x.is_cuda else CACHED) // x.shape[1])


def _rows_at_once(centres: Tensor) -> int:
    return max(1, TILE // max(centres.shape))


def _means(x: Tensor, assigned: Assigned, centres: Tensor) -> Tensor:
    """Return the clusters' means; an empty cluster moves to the point that lies farthest from its centre."""
    # Each cluster adds up its own points in their order: the same sums on every run, and nothing of n × dim is made.
    counts = torch.bincount(assigned.clusters, minlength=len(centres))
    means = embedding_bag(assigned.clusters.argsort(stable=True), x, counts.cumsum(0) - counts, mode="mean")
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        # Bounds grow from move to move: they say of no point that it lies far.
        parts = zip(x.split(_cached_rows(x)), assigned.clusters.split(_cached_rows(x)))
        distances = torch.cat([(part - centres[own]).square_().sum(1) for part, own in parts])
        means[empty] = x[distances.topk(len(empty)).indices]
    return means
