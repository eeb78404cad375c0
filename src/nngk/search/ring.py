"""Neighbours among points of which each rank holds a part: blocks of them go around, and the nearest are kept.

Rank r holds the rows ``ranks.span(n, r)`` of n points. Indices count all n. Beside its own part nobody ever holds more
than two: the one that it works on, and the one that comes in meanwhile.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from nngk.ranks import Ranks
from nngk.search.engine import Engine
from nngk.search.exact import Exact


def blocks(own: Tensor, n: int, ranks: Ranks) -> Iterator[tuple[int, Tensor]]:
    """Yield the parts of all ranks, the own one first, each with the index of its first row.

    While the caller works on a part, it is on its way to the next rank already, and the one after it comes in: it must
    stay as it is, and all parts be asked for.
    """
    block, source = own, ranks.rank
    for step in range(ranks.count):
        first = int(ranks.span(n, source).start)
        if step + 1 == ranks.count:
            yield first, block
            return
        source = (source - 1) % ranks.count
        span = ranks.span(n, source)
        arrived = ranks.begin_pass_on(block, span.stop - span.start)
        yield first, block
        block = arrived()


def ring_neighbours(own: Tensor, n: int, k: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return the k nearest others of each own row among all n: squared distances and indices (rows, k), exactly."""
    best = nothing(own, k)
    for first, block in blocks(own, n, ranks):
        if len(block) and len(own):
            at_home = first == ranks.span(n).start
            squared, found = Exact(block).search(own, min(k + at_home, len(block)))
            squared, found = squared.to(own), found.to(own.device)
            if at_home:
                is_own = found == torch.arange(len(own), device=own.device)[:, None]
                squared, found = squared.masked_fill(is_own, torch.inf), found.masked_fill(is_own, -1 - first)
            best = nearer(*best, squared, found + first)
    return best


def ring_answers(own: Tensor, engine: Engine, n: int, k: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return the same from an engine over the own rows: questions go around, and each rank answers from its part."""
    here = ranks.span(n).start
    best = nothing(own, k)
    for step, (_, questions) in enumerate(blocks(own, n, ranks)):
        if step:  # the best so far come behind their questions
            best = ranks.pass_on(best[0], len(questions)), ranks.pass_on(best[1], len(questions))
        if step and len(own) and len(questions):
            squared, found = engine.search(questions, min(k, len(own)))
        elif not step and len(own) > 1:
            squared, found = engine.all_neighbours(min(k, len(own) - 1))
        else:
            continue
        best = nearer(*best, *shifted(squared, found, here, questions))
    home = ranks.span(n)
    return ranks.pass_on(best[0], home.stop - home.start), ranks.pass_on(best[1], home.stop - home.start)


def shared_search(own: Tensor, x: Tensor, n: int, k: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return the k nearest of all n points to each query; all ranks ask the same queries."""
    best = nothing(x, k)
    if len(own):
        squared, found = Exact(own).search(x, min(k, len(own)))
        best = nearer(*best, *shifted(squared, found, ranks.span(n).start, x))
    lengths = [len(x)] * ranks.count
    distances, indices = ranks.gather_parts(best[0], lengths), ranks.gather_parts(best[1], lengths)
    best = nothing(x, k)
    for squared, found in zip(distances, indices):
        best = nearer(*best, squared, found)
    return best


def shifted(squared: Tensor, found: Tensor, first: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return answers of a part as answers of the whole: indices count from its first row, and -1 stays."""
    found = found.to(like.device)
    return squared.to(like), torch.where(found < 0, found, found + first)


def nothing(like: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the answer before anything was found."""
    return like.new_full((len(like), k), torch.inf), torch.full((len(like), k), -1, device=like.device)


def nearer(squared: Tensor, indices: Tensor, more: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest of two answers, as many as the first has.

    >>> nearer(torch.tensor([[1.0, 3.0]]), torch.tensor([[7, 8]]), torch.tensor([[2.0]]), torch.tensor([[9]]))
    (tensor([[1., 2.]]), tensor([[7, 9]]))
    """
    both, where = torch.cat([squared, more], 1), torch.cat([indices, at], 1)
    nearest, order = both.topk(squared.shape[1], largest=False)
    return nearest, where.gather(1, order)
