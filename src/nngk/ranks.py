"""The processes that work on one thing together: which of them this is, and what they tell each other.

Everything here is a plain function of one process where there is only one: :data:`ALONE` sends nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Told = TypeVar("Told")


@dataclass
class Traffic:
    """What this rank has sent to others: bytes and messages, by kind, counted from the sizes of the tensors."""

    sent: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, size: int, messages: int) -> None:
        """Take in that so many bytes went out in so many messages."""
        self.sent[kind] += size
        self.messages[kind] += messages


@dataclass(frozen=True)
class Ranks:
    """``count`` processes, of which this is number ``rank``. Every method but :meth:`span` is called by all of them.

    >>> ALONE.first, ALONE.span(5), ALONE.gather(torch.ones(2), 2)
    (True, slice(0, 5, None), tensor([1., 1.]))
    """

    rank: int = 0
    count: int = 1
    group: Any = None  # of torch.distributed; None is the one that all processes share
    via_cpu: bool = False  # whether tensors on a GPU travel through the memory of the host, as gloo's do
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks to a person."""
        return self.rank == 0

    def span(self, n: int, rank: int | None = None) -> slice:
        """Return which of n rows a rank has: all have as many, but for the last, which may have fewer or none.

        >>> [Ranks(r, 3).span(4) for r in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 4, None)]
        """
        each = -(-n // self.count)
        start = min(n, each * (self.rank if rank is None else rank))
        return slice(start, min(n, start + each))

    def gather(self, part: Tensor, n: int) -> Tensor:
        """Return the n rows of which each rank gives its span."""
        if self.count == 1 or not n:
            return part
        return torch.cat(self.gather_parts(part, [_length(self.span(n, rank)) for rank in range(self.count)]))

    def gather_parts(self, part: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return the rows of every rank, whose numbers all ranks know."""
        return self.begin_gather(part, lengths)()

    def begin_gather(self, part: Tensor, lengths: list[int]) -> Callable[[], list[Tensor]]:
        """Begin to gather the rows of every rank; return a function that waits for them and returns them."""
        if self.count == 1:
            return lambda: [part]
        longest = max(lengths)
        sent = self._there(part)
        if len(part) < longest:  # gloo and NCCL want the same size of everybody
            sent = torch.cat([sent, sent.new_zeros(longest - len(part), *part.shape[1:])])
        found = [torch.empty_like(sent) for _ in range(self.count)]
        sent = sent.contiguous()
        work = dist.all_gather(found, sent, group=self.group, async_op=True)
        self._sent("gather", sent.nbytes * (self.count - 1), self.count - 1)

        def gathered() -> list[Tensor]:
            work.wait()
            return [rows[:length].to(part.device) for rows, length in zip(found, lengths)]

        return gathered

    def exchange(self, rows: Tensor, lengths: list[int], coming: list[int]) -> Tensor:
        """Send ``lengths[r]`` of these rows to rank r, in order; return those that the ranks sent, ``coming[r]``."""
        if self.count == 1:
            return rows
        sent = self._there(rows).contiguous()
        found = sent.new_empty(sum(coming), *rows.shape[1:])
        dist.all_to_all_single(found, sent, coming, lengths, group=self.group)
        size = sent[:1].nbytes if len(sent) else 0
        others = [length for rank, length in enumerate(lengths) if rank != self.rank]
        self._sent("exchange", size * sum(others), sum(length > 0 for length in others))
        return found.to(rows.device)

    def pass_on(self, rows: Tensor, coming: int) -> Tensor:
        """Give rows to the next rank of the ring; return those of the rank before, which are ``coming`` many."""
        return self.begin_pass_on(rows, coming)()

    def begin_pass_on(self, rows: Tensor, coming: int) -> Callable[[], Tensor]:
        """Begin to give rows to the next rank of the ring; return a function that waits for those of the rank before.

        Until then the rows must stay as they are.
        """
        if self.count == 1:
            return lambda: rows
        sent = self._there(rows).contiguous()
        found = sent.new_empty(coming, *rows.shape[1:])
        ahead, behind = self._global((self.rank + 1) % self.count), self._global((self.rank - 1) % self.count)
        # Receiving first: gloo sends nothing before it was told that somebody waits for it, and of two ranks, which
        # have one connection, the second would say so behind all that it sends.
        steps = [dist.P2POp(dist.irecv, found, behind, self.group)] if coming else []
        steps += [dist.P2POp(dist.isend, sent, ahead, self.group)] if len(sent) else []
        works = dist.batch_isend_irecv(steps) if steps else []
        self._sent("ring", sent.nbytes, bool(len(sent)))

        def passed() -> Tensor:
            for work in works:
                work.wait()
            return found.to(rows.device)

        return passed

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks, the same bits everywhere."""
        if self.count == 1:
            return tensor
        total = self._there(tensor).clone()
        dist.all_reduce(total, group=self.group)
        # A ring sends each part around twice: once to be added up, once to be told.
        self._sent("sum", round(2 * total.nbytes * (self.count - 1) / self.count), 2 * (self.count - 1))
        return total.to(tensor.device)

    def any(self, flag: bool) -> bool:
        """Return whether some rank says so."""
        return flag if self.count == 1 else bool(self.sum(torch.tensor(int(flag))))

    def all(self, flag: bool) -> bool:
        """Return whether every rank says so."""
        return not self.any(not flag)

    def same(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor, everywhere; all have the same shape."""
        if self.count == 1:
            return tensor
        told = self._there(tensor).clone()
        dist.broadcast(told, self._global(0), group=self.group)
        self._sent("same", told.nbytes if self.first else 0, self.count - 1 if self.first else 0)
        return told.to(tensor.device)

    def told(self, value: Told) -> Told:
        """Return what the first rank says, everywhere: a small thing, such as a decision."""
        return value if self.count == 1 else self._told_by(value, 0)

    def _told_by(self, value: Told, rank: int) -> Told:
        box = [value]
        dist.broadcast_object_list(box, self._global(rank), group=self.group, device=torch.device("cpu"))
        return box[0]

    def collect(self, value: Told) -> list[Told]:
        """Return what each rank says, in order: small things."""
        if self.count == 1:
            return [value]
        return [self._told_by(value, rank) for rank in range(self.count)]

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.count > 1:
            self.any(False)

    def apart(self) -> Ranks:
        """Return the same ranks with a line of their own, on which a thread may talk beside the others."""
        if self.count == 1:
            return self
        return Ranks(self.rank, self.count, dist.new_group(), self.via_cpu)

    def _there(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu() if self.via_cpu else tensor.detach()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _sent(self, kind: str, size: int, messages: int) -> None:
        self.traffic.add(kind, size, messages)


def _length(span: slice) -> int:
    return int(span.stop - span.start)


ALONE = Ranks()


def speaks() -> bool:
    """Return whether this process is the one of those that torchrun started which prints the answer."""
    return os.environ.get("RANK", "0") == "0"
