"""Points of many kinds for measuring search engines: like deep features before and after training, and unlike them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from nngk.errors import InputError


class Family(NamedTuple):
    """Indexed points (n, dim), and queries that are not among them."""

    points: Tensor
    queries: Tensor


def clustered_features(n: int, dim: int, *, seed: int = 0, intrinsic: int = 25) -> Tensor:
    """Return unit vectors (n, dim) in up to a thousand classes, each spread over about ``intrinsic`` dimensions.

    >>> clustered_features(10, 4).shape
    torch.Size([10, 4])
    """
    return torch.cat([*clustered_pieces(n, dim, seed=seed, intrinsic=intrinsic)])


def clustered_pieces(n: int, dim: int, *, seed: int = 0, intrinsic: int = 25) -> Iterator[Tensor]:
    """Yield the rows of :func:`clustered_features` some at a time, for more of them than fit memory."""
    generator = torch.Generator().manual_seed(seed)
    classes = max(20, min(1000, n // 200))
    shapes = classes // 10 + 1  # ten classes share the directions in which they spread
    centres = torch.randn(classes, 2 * intrinsic, generator=generator)
    spreads = torch.randn(shapes, intrinsic, 2 * intrinsic, generator=generator) * 0.7 / intrinsic**0.5
    projection = torch.randn(2 * intrinsic, dim, generator=generator) / (2 * intrinsic) ** 0.5
    labels = torch.randint(classes, (n,), generator=generator)
    for part in labels.split(65536):
        inside = torch.randn(len(part), intrinsic, generator=generator)
        low = 0.5 * centres[part]
        for shape in range(shapes):
            chosen = part % shapes == shape
            low[chosen] += inside[chosen] @ spreads[shape]
        yield normalize(torch.tanh(low @ projection) + 0.05 * torch.randn(len(part), dim, generator=generator))


def class_labels(n: int, classes: int, generator: Generator, unequal: bool = False) -> Tensor:
    """Return classes (n,) of equal chances, or as many as have sizes from 10 to 10,000 where ``unequal``.

    >>> class_labels(1000, 4, torch.Generator().manual_seed(0)).bincount().min() > 200
    tensor(True)
    """
    if not unequal:
        return torch.randint(classes, (n,), generator=generator)
    most = min(10_000.0, n / 4)
    sizes = (10 * (most / 10) ** torch.rand(n // 10, generator=generator)).long()
    labels = torch.arange(len(sizes)).repeat_interleave(sizes)[:n]
    return labels[torch.randperm(n, generator=generator)]


def separate_classes(
    n: int,
    dim: int,
    generator: Generator,
    *,
    apart: float,
    classes: int = 400,
    directions: int = 24,
    unit: bool = False,
    unequal: bool = False,
) -> Tensor:
    """Return classes as after training: centres ``apart`` times as far from each other as a class's points are.

    Each class spreads over ``directions`` of its own.
    """
    directions = min(directions, dim)
    labels = class_labels(n, max(2, min(classes, n // 25)), generator, unequal)
    classes = int(labels.max()) + 1
    centres = apart * torch.randn(classes, dim, generator=generator) / dim**0.5
    x = centres[labels]
    for c in range(classes):
        members = (labels == c).nonzero()[:, 0]
        basis = torch.randn(directions, dim, generator=generator) / dim**0.5
        x[members] += torch.randn(len(members), directions, generator=generator) @ basis / directions**0.5
    x += 0.05 * torch.randn(n, dim, generator=generator) / dim**0.5
    return normalize(x) if unit else x


def duplicates(n: int, dim: int, generator: Generator) -> Tensor:
    """Return overlapping features of which every other point comes again, some of them many times."""
    x = clustered_features(n, dim, seed=int(torch.randint(1 << 30, (1,), generator=generator)))
    copies = torch.arange(1, n, 2)
    x[copies] = x[(torch.rand(len(copies), generator=generator) ** 3 * n).long() // 2 * 2]
    return x


def far_cluster(n: int, dim: int, generator: Generator) -> Tensor:
    """Return overlapping features of which one in fifty lies a hundred lengths away, in a cluster as wide."""
    x = clustered_features(n, dim, seed=int(torch.randint(1 << 30, (1,), generator=generator)))
    x[torch.rand(n, generator=generator) < 0.02] += 100 * normalize(torch.randn(1, dim, generator=generator))
    return x


def heavy_tails(n: int, dim: int, generator: Generator) -> Tensor:
    """Return overlapping features whose lengths have a heavy tail (Student's t with two degrees of freedom)."""
    x = clustered_features(n, dim, seed=int(torch.randint(1 << 30, (1,), generator=generator)))
    t = torch.randn(n, 1, generator=generator) / torch.randn(n, 2, generator=generator).square().mean(1, True).sqrt()
    return x * (1 + t.abs()).clamp(max=1000)


def uniform(n: int, dim: int, generator: Generator, *, intrinsic: int) -> Tensor:
    """Return uniform points of a cube of ``intrinsic`` dimensions, turned into ``dim``."""
    intrinsic = min(intrinsic, dim)
    basis = torch.linalg.qr(torch.randn(dim, intrinsic, generator=generator)).Q
    return torch.rand(n, intrinsic, generator=generator) @ basis.T


def manifold(n: int, dim: int, generator: Generator, *, intrinsic: int) -> Tensor:
    """Return points of a curved surface of ``intrinsic`` dimensions."""
    low = torch.randn(n, intrinsic, generator=generator) @ torch.randn(intrinsic, dim, generator=generator)
    return torch.cos(0.7 * low + 6.3 * torch.rand(dim, generator=generator)) / dim**0.5


def overlapping(n: int, dim: int, generator: Generator) -> Tensor:
    """Return ``clustered_features``."""
    return clustered_features(n, dim, seed=int(torch.randint(1 << 30, (1,), generator=generator)))


FAMILIES: dict[str, Callable[[int, int, Generator], Tensor]] = {
    "overlapping": overlapping,
    "touching": partial(separate_classes, apart=1.5),
    "apart": partial(separate_classes, apart=4.0),
    "far apart": partial(separate_classes, apart=30.0, unit=True),
    "unequal": partial(separate_classes, apart=4.0, unequal=True),
    "duplicates": duplicates,
    "far cluster": far_cluster,
    "heavy tails": heavy_tails,
    "low dimension": partial(manifold, intrinsic=5),
    "uniform": partial(uniform, intrinsic=24),
    "high dimension": partial(uniform, intrinsic=48),
}


def held_out(x: Tensor, queries: int, *, seed: int = 0) -> Family:
    """Return some of the points as queries, and the others to be indexed.

    >>> held_out(torch.randn(50, 3), 10).points.shape
    torch.Size([40, 3])
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return Family(x[order[queries:]].contiguous(), x[order[:queries]].contiguous())


def family(name: str, n: int, dim: int, queries: int = 1000, *, seed: int = 0) -> Family:
    """Return points of a kind of ``FAMILIES``, and queries of the same kind.

    'unseen' are the classes of 'apart' with queries from classes that have no points.

    >>> family("apart", 500, 8, 20).queries.shape
    torch.Size([20, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "unseen":
        x = FAMILIES["apart"](n, dim, generator)
        return Family(x, FAMILIES["apart"](queries, dim, generator))
    if name not in FAMILIES:
        raise InputError(f"There is no family {name!r}; take one of {', '.join([*FAMILIES, 'unseen'])}.")
    return held_out(FAMILIES[name](n + queries, dim, generator), queries, seed=seed)
