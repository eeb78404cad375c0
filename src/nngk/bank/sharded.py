"""A bank that no rank holds whole: each has some rows of the centres, of θ and of the neighbour lists.

The batch goes to the centres, not the centres to the batch: every rank knows the batch's embeddings, computes the
logarithms of the kernels over the centres that it holds, and the ranks add up the matrix (batch, neighbours) of them.
Each then knows the loss, the gradient of its own θ, and its part of the embeddings' gradient. That sends K numbers for
an example where its K centres would be K × D.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nngk.bank.centres import CentreBank, placed_in, recall_of_lists, require_finite
from nngk.errors import InputError
from nngk.kernel.formulas import attention_difference, list_gradients, log_kernels, poisoned, squared_distances
from nngk.ranks import Ranks
from nngk.search.engine import Engine
from nngk.search.exact import Exact
from nngk.search.ring import blocks, nearer, nothing, ring_answers, ring_neighbours, shared_search


class ShardedBank(CentreBank):
    """Rows ``ranks.span(m)`` of centres, θ and lists; the labels of all, which every rank asks for."""

    partial = True
    index_type = torch.int32  # half the memory, and half of what travels

    def __init__(
        self, labels: Tensor, dim: int, n_neighbours: int | None = 100, guaranteed: int = 1, *, ranks: Ranks
    ) -> None:
        if n_neighbours is None:
            raise InputError(
                "A sharded bank needs neighbour lists ('n_neighbours' is none): over all centres use --bank replicated."
            )
        span = ranks.span(len(labels))
        super().__init__(labels, dim, n_neighbours, guaranteed, held=span.stop - span.start)
        self.ranks, self.start = ranks, int(span.start)
        self._asked: list[tuple[Tensor, Callable[[], Tensor]]] = []  # batches, and what waits for their lists

    def whole(self) -> CentreBank:
        """Return a bank that holds all rows, on every rank."""
        bank = CentreBank(self.labels, self.dim, self.n_neighbours, self.guaranteed).to(self.centres.device)
        gather, m = self.ranks.gather, len(self)
        with torch.no_grad():
            bank.theta.copy_(self.weights())
        bank.theta.requires_grad_(self.theta.requires_grad)
        bank.replace(gather(self.centres, m), gather(self.neighbours, m), self.n_lonely, self.refreshed_at)
        return bank

    def weights(self) -> Tensor:
        return self.ranks.gather(self.theta.detach(), len(self))

    def nearest(self, centres: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return shared_search(centres, x, len(self), k, self.ranks)

    def lists(self, centres: Tensor, engine: Engine | None = None, ranks: Ranks | None = None) -> tuple[Tensor, int]:
        """Return the lists of the own rows, whose new centres these are, and how many of all had no same-class one."""
        ranks = self.ranks if ranks is None else ranks
        assert self.n_neighbours is not None
        require_finite(centres)
        m, labels = len(self), self.labels.to(centres.device)
        if engine is None or isinstance(engine, Exact):
            found = ring_neighbours(centres, m, self.n_neighbours, ranks)[1]
        else:
            if len(centres):
                placed_in(engine, centres)
            found = ring_answers(centres, engine, m, self.n_neighbours, ranks)[1]
        own = torch.arange(len(centres), device=centres.device) + self.start
        has_same = ((labels[found.clamp(min=0)] == labels[own][:, None]) & (found >= 0)).any(1)
        lonely = (~has_same).nonzero().squeeze(1)
        lists = found.new_full((len(found), found.shape[1] + self.guaranteed), -1)
        lists[:, : found.shape[1]] = found
        count = int(ranks.sum(torch.tensor(len(lonely))))
        if count and self.guaranteed:
            lists[lonely, found.shape[1] :] = self._same_class(centres, labels, lonely, ranks)
        return lists.to(self.index_type), count

    def _same_class(
        self, centres: Tensor, labels: Tensor, lonely: Tensor, ranks: Ranks, chunk: int = 1 << 16
    ) -> Tensor:
        """Return the nearest centres of their class for some own rows, (rows, guaranteed); -1 where there is none."""
        x, own = centres[lonely], lonely + self.start
        best = nothing(x, self.guaranteed)
        for first, block in blocks(centres, len(self), ranks):
            theirs = labels[first : first + len(block)]
            for label in labels[own].unique():
                members = (theirs == label).nonzero().squeeze(1)
                if not len(members):
                    continue
                for part in (labels[own] == label).nonzero().squeeze(1).split(max(1, chunk // len(members))):
                    candidates = members.expand(len(part), -1)
                    candidates = candidates.masked_fill(candidates + first == own[part][:, None], -1)
                    squared = squared_distances(x[part], block, candidates).to(x)
                    places = (candidates + first).masked_fill(candidates < 0, -1)
                    best[0][part], best[1][part] = nearer(best[0][part], best[1][part], squared, places)
        return best[1].masked_fill(best[0].isinf(), -1)

    def replace(self, centres: Tensor, neighbours: Tensor, n_lonely: int = 0, step: int = 0) -> None:
        for _, answer in self._asked:  # lists of the bank that was: all ranks have sent them, and none wants them
            answer()
        self._asked.clear()
        super().replace(centres, neighbours, n_lonely, step)

    def ask_ahead(self, *batches: Tensor) -> None:
        for indices in batches:
            if all(batch is not indices for batch, _ in self._asked):
                self._asked.append((indices, self._ask_holders(self.neighbours, indices)))

    def lists_of(self, indices: Tensor) -> Tensor:
        """Return the lists of some examples, which are the same on all ranks, from those who hold them."""
        while self._asked:
            batch, answer = self._asked.pop(0)
            lists = answer()  # also where they are no longer wanted
            if batch is indices:
                return lists.long()
        return self._from_holders(self.neighbours, indices).long()

    def _from_holders(self, held: Tensor, indices: Tensor) -> Tensor:
        """Return rows of which each rank holds its span; all ranks ask for the same."""
        return self._ask_holders(held, indices)()

    def _ask_holders(self, held: Tensor, indices: Tensor) -> Callable[[], Tensor]:
        """Begin to fetch such rows; return a function that waits for them."""
        spans = [self.ranks.span(len(self), rank) for rank in range(self.ranks.count)]
        places = [((indices >= span.start) & (indices < span.stop)).nonzero().squeeze(1) for span in spans]
        own = held[indices[places[self.ranks.rank]] - self.start]
        gathered = self.ranks.begin_gather(own, [len(where) for where in places])

        def arrived() -> Tensor:
            out = held.new_empty(len(indices), *held.shape[1:])
            out[torch.cat(places)] = torch.cat(gathered())
            return out

        return arrived

    def list_recall(self, centres: Tensor, lists: Tensor, sample: int = 200) -> float:
        rows = torch.linspace(0, len(self) - 1, min(sample, len(self))).long().to(centres.device)
        x = self._from_holders(centres, rows)
        found = self.nearest(centres, x, min(self.considered + 1, len(self)))[1]
        return recall_of_lists(rows, found, self._from_holders(lists, rows), self.considered)

    def neighbours_of(self, indices: Tensor) -> Tensor:
        lists = self.lists_of(indices)
        return lists.masked_fill(lists == indices[:, None], -1)

    def some_centres(self, chosen: Tensor) -> Tensor:
        return self._from_holders(self.centres, chosen)

    def left_out(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lists = self.neighbours_of(chosen)
        x = self.some_centres(chosen)
        local = self._local(lists)
        squared = squared_distances(x, self._rows(), local).masked_fill(local < 0, 0)
        theta = self._theta(local).masked_fill(local < 0, 0)
        squared = self.ranks.sum(squared).masked_fill(lists < 0, torch.inf)
        same = (self.labels[lists.clamp(min=0)] == self.labels[chosen][:, None]) & (lists >= 0)
        return squared, same, self.ranks.sum(theta)

    def neighbour_loss(
        self, x: Tensor, sigma: Tensor, lists: Tensor, labels: Tensor, own: Tensor, floor: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        if floor:
            raise InputError("A floor under the classes needs a bank that every rank holds whole: --bank replicated.")
        lists = lists.masked_fill(lists == own[:, None], -1)
        same = (self.labels[lists.clamp(min=0)] == labels[:, None]) & (lists >= 0)
        loss: Tensor = _ShardedLoss.apply(
            x, self.theta, sigma, self._rows(), self._local(lists), lists, same, self.ranks
        )
        return loss, same.any(1)

    def _local(self, lists: Tensor) -> Tensor:
        """Return lists of own rows, counted from 0, with -1 for those of others."""
        local = lists - self.start
        return local.masked_fill((lists < 0) | (local < 0) | (local >= len(self.centres)), -1)

    def _rows(self) -> Tensor:
        # A rank without rows still takes part: with one that nobody's list names.
        return self.centres if len(self.centres) else self.centres.new_zeros(1, self.dim)

    def _theta(self, local: Tensor) -> Tensor:
        theta = self.theta.detach()
        return (theta if len(theta) else theta.new_zeros(1))[local.clamp(min=0)]


class _ShardedLoss(torch.autograd.Function):
    """The loss of :func:`nngk.kernel.formulas.neighbour_loss`, of which each rank knows the kernels of its own rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        theta: Tensor,
        sigma: Tensor,
        centres: Tensor,
        local: Tensor,
        lists: Tensor,
        same: Tensor,
        ranks: Ranks,
    ) -> Tensor:
        # The own entries of each list, moved to the front: nobody computes what others do.
        held = local >= 0
        width = max(1, int(held.sum(1).max())) if len(local) else 1
        places = (~held).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        compact = local.gather(1, places)
        missing = compact < 0
        squared = squared_distances(x, centres, compact)
        weights = (theta if len(theta) else theta.new_zeros(1)).to(squared.dtype)[compact.clamp(min=0)]
        values = log_kernels(squared, sigma.to(squared.dtype), weights).masked_fill(missing, 0)
        everything = values.new_zeros(lists.shape).scatter_(1, places, values)
        everything = ranks.sum(everything).masked_fill_(lists < 0, -torch.inf)
        loss, difference = attention_difference(poisoned(everything, x), same)
        difference = difference.gather(1, places).masked_fill(missing, 0)
        by_sigma = ranks.sum((difference * squared.masked_fill(missing, 0)).sum(1)) / sigma**3
        ctx.save_for_backward(centres, theta, sigma, compact, difference, by_sigma)
        ctx.dtype = x.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, need_theta, need_sigma = ctx.needs_input_grad[:3]
        grad_x, grad_theta, grad_sigma = list_gradients(ctx, grad, True, need_theta, need_sigma)
        return grad_x, grad_theta, grad_sigma, None, None, None, None, None
