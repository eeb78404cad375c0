"""Points that do not fit memory, parted by k-means into files of neighbours."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search.checks import Points, checked
from nngk.search.exact import Exact

SAMPLE = 1 << 16  # points that tell where the others lie
ROUNDS = 10  # of k-means
SPARSE = 0.25  # of the mean size: a smaller cell's centre moves into the largest cell
BLOCK = 1 << 16  # points in memory at a time
ASKED = 200  # points whose true neighbours tell how far queries must look
DEEP = 100  # of these neighbours


class Parted(NamedTuple):
    """Which points are in which part, and what is needed to search: all tensors."""

    centres: Tensor  # (parts, dim)
    starts: Tensor  # (parts + 1,): part p has the points order[starts[p]:starts[p + 1]]
    order: Tensor  # (n,)
    queries: Tensor  # (asked, dim): some of the points,
    own_part: Tensor  # (asked,): the part that each is in,
    own_row: Tensor  # (asked,): and its row there
    near: Tensor  # (asked, deep): the squared distances of their nearest others,
    near_parts: Tensor  # (asked, deep): and the parts that those are in


def rows_file(folder: Path, number: int) -> Path:
    """Return the file of the vectors of one part, as long as it has no graph."""
    return folder / f"part{number:05d}.rows"


def read_rows(path: Path, dim: int, first: int = 0, count: int = -1) -> Tensor:
    """Return rows of a file of float32 values."""
    values = np.fromfile(path, np.float32, count if count < 0 else count * dim, offset=first * dim * 4)
    return torch.from_numpy(values).view(-1, dim)


def part_points(folder: Path, pieces: Iterable[Points], size: int, seed: int = 0) -> tuple[Parted, int]:
    """Write the points of all pieces into one file for each part of about ``size`` points; return where each went.

    Also returns the dimensions.
    """
    everything, generator = folder / "points.rows", torch.Generator().manual_seed(seed)
    n, sample, dim = _gathered(everything, pieces, generator)
    try:
        centres = k_means(sample, max(1, round(n / size)), generator)
        asked = torch.randperm(n, generator=generator)[:ASKED].sort().values
        queries = torch.cat([read_rows(everything, dim, int(i), 1) for i in asked])
        parts, truth = torch.empty(n, dtype=torch.long), _Nearest(queries, asked)
        for first in range(0, n, BLOCK):
            x = read_rows(everything, dim, first, min(BLOCK, n - first))
            own = parts[first : first + len(x)] = torch.cdist(x, centres).argmin(1)
            for number in own.unique().tolist():
                with rows_file(folder, number).open("ab") as out:
                    x[own == number].numpy().tofile(out)
            truth.see(x, first)
    finally:
        everything.unlink(missing_ok=True)
    order = parts.argsort(stable=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), parts.bincount(minlength=len(centres)).cumsum(0)])
    rows = torch.empty_like(order)
    rows[order] = torch.arange(n)
    own_part = parts[asked]
    own_row = rows[asked] - starts[own_part]
    return Parted(centres, starts, order, queries, own_part, own_row, truth.distances, parts[truth.ids]), dim


def _gathered(path: Path, pieces: Iterable[Points], generator: torch.Generator) -> tuple[int, Tensor, int]:
    """Write all points into one file; return their number, some of them at random, and the dimensions."""
    n, dim, sample, keys = 0, None, torch.empty(0), torch.empty(0)
    with path.open("wb") as out:
        for x in _blocks(pieces):
            x = checked(x, "points", dim, dtype=torch.float32).float().cpu().contiguous()
            n, dim = n + len(x), x.shape[1]
            x.numpy().tofile(out)
            luck = torch.cat([keys, torch.rand(len(x), generator=generator)])
            keys, kept = luck.topk(min(SAMPLE, len(luck)))
            sample = torch.cat([sample.view(-1, dim), x])[kept]
    if n < 2 or dim is None:
        raise InputError(f"An index on disk needs at least two points, got {n}.")
    return n, sample, dim


def _blocks(pieces: Iterable[Points]) -> Iterator[Points]:
    for piece in pieces:
        for first in range(0, len(piece), BLOCK):
            yield piece[first : first + BLOCK]


def k_means(x: Tensor, cells: int, generator: torch.Generator) -> Tensor:
    """Return centres of cells of similar sizes.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> k_means(x, 2, torch.Generator().manual_seed(0)).sort(0).values.tolist()
    [[0.5], [10.5]]
    """
    centres = x[torch.randperm(len(x), generator=generator)[:cells]].clone()
    for step in range(ROUNDS):
        own = torch.cdist(x, centres).argmin(1)
        counts = own.bincount(minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, own, x)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        sparse = (counts < SPARSE * len(x) / len(centres)).nonzero()[:, 0]
        if step < ROUNDS - 2 and len(sparse):
            crowd = (own == counts.argmax()).nonzero()[:, 0]
            centres[sparse] = x[crowd[torch.randint(len(crowd), (len(sparse),), generator=generator)]]
    return centres


class _Nearest:
    """The nearest others of some points, among blocks that come one after the other."""

    def __init__(self, queries: Tensor, own: Tensor) -> None:
        self.queries, self.own = queries, own
        self.distances, self.ids = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)

    def see(self, x: Tensor, first: int) -> None:
        distances, near = Exact(x).search(self.queries, min(DEEP + 1, len(x)))
        distances = distances.masked_fill(near + first == self.own[:, None], torch.inf)
        both, ids = torch.cat([self.distances, distances], 1), torch.cat([self.ids, near + first], 1)
        kept = both.topk(min(DEEP, int((both < torch.inf).sum(1).min())), largest=False)
        self.distances, self.ids = kept.values, ids.gather(1, kept.indices)
