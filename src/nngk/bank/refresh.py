"""When and how the bank is renewed.

The paper stores the centres and renews all of them at a fixed *update interval*, asynchronously. Here a refresh
computes every centre with the network in evaluation mode (no dropout, no augmentation) and the neighbour lists of the
new centres, either while training waits or in a thread, from a snapshot of the weights, while training goes on with the
old bank. The new bank is swapped in between two steps.
"""

import copy
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nngk.bank.centres import CentreBank
from nngk.errors import InputError
from nngk.ranks import ALONE, Ranks
from nngk.search.engine import Engine
from nngk.search.exact import Exact


def interval_in_steps(interval: float | str, steps_per_epoch: int) -> int:
    """Return an update interval in steps, from a number of epochs (fractions allowed) or ``"50 steps"``.

    >>> interval_in_steps(0.5, 40), interval_in_steps("7 steps", 40), interval_in_steps("10", 40)
    (20, 7, 400)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?)?\s*", str(interval))
    number = float(match[1]) if match else 0.0
    if match is None or number <= 0:
        raise InputError(
            f"The update interval must be a number of epochs such as 1 or 0.5, or '50 steps'; got {interval!r}."
        )
    steps = number if (match[2] or "").startswith("step") else number * steps_per_epoch
    return max(1, round(steps))


@dataclass
class Refreshed:
    """What one refresh did, for the log."""

    snapshot_step: int  # the step whose weights the centres come from
    swapped_step: int  # the step at which training began to use them
    seconds: float
    n_lonely: int  # examples with no same-class centre in their list
    list_recall: float = 1.0  # share of the true neighbours in the lists, measured on a sample

    @property
    def staleness(self) -> int:
        """Steps of training that the new bank had missed when it came into use."""
        return self.swapped_step - self.snapshot_step


class Refresher:
    """Renews a bank every ``every`` steps; call :meth:`before_step` at each step boundary.

    Args:
        bank: the bank to renew.
        embed: computes all centres (m, dim) with the network it is given.
        every: the interval in steps.
        engine: neighbour search; it is kept from refresh to refresh, so that a graph can be updated instead of rebuilt.
        background: compute in a thread, from a snapshot of the weights.
        prepare: what the snapshot is called through, where there is a faster way than the network itself.
        ranks: the processes that renew the same bank together; ``embed`` gives the centres of all.
    """

    def __init__(
        self,
        bank: CentreBank,
        embed: Callable[[nn.Module], Tensor],
        every: int,
        engine: Engine | None = None,
        background: bool = False,
        prepare: Callable[[nn.Module], nn.Module] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.bank, self.embed, self.every, self.engine, self.background = bank, embed, every, engine, background
        self.prepare, self.ranks = prepare, ranks
        # A refresh in the background talks beside the steps.
        self.beside = ranks.apart() if background else ranks
        self.history: list[Refreshed] = []
        self._list_recall = 1.0
        self.overrun = 0  # refreshes that fell due while one was still under way; reported, never piled up
        self._answered = -1  # the last step for which a refresh was due; a loop may come to a boundary twice
        self._shadow: tuple[nn.Module, nn.Module] | None = None  # the snapshot, and what it is called through
        self._stream: torch.cuda.Stream | None = None  # one for all refreshes: each would keep memory of its own
        self._pending: _Pending | None = None

    @property
    def approximate(self) -> bool:
        """Whether the lists come from a search that may miss a neighbour."""
        return self.engine is not None and not isinstance(self.engine, Exact)

    def before_step(self, step: int, network: nn.Module) -> None:
        """Swap in a bank that is ready, and start a refresh if one is due."""
        if self._pending is not None and self.ranks.all(self._pending.done()):
            self._swap(step)
        due = step % self.every == 0 and step not in (self.bank.refreshed_at, self._answered)
        if not due:
            return
        self._answered = step
        if self._pending is not None:
            self.overrun += 1
        elif self.background and self.bank.filled:
            shadow = self._snapshot(network)
            self._pending = _Pending(step, shadow, self._compute, self._side_stream(shadow))
        else:  # the first bank has no predecessor to train with in the meantime
            self.refresh(step, network)

    def renews_before(self, step: int) -> bool:
        """Return whether the bank will surely be another one at that step."""
        return step % self.every == 0 and not self.background

    def refresh(self, step: int, network: nn.Module) -> None:
        """Renew the bank now."""
        started = time.perf_counter()
        self._take(step, step, started, self._compute(network))

    def finish(self, step: int) -> None:
        """Wait for a refresh that is under way and swap it in."""
        if self._pending is not None:
            self._swap(step)

    def _compute(self, network: nn.Module) -> tuple[Tensor, Tensor, int]:
        centres = self.embed(network)
        neighbours, n_lonely = self.bank.lists(centres, self.engine, self.beside)
        if self.approximate:
            self._list_recall = self.bank.list_recall(centres, neighbours)
        return centres, neighbours, n_lonely

    def _snapshot(self, network: nn.Module) -> nn.Module:
        # Train or eval mode belongs to a module, so the snapshot needs a module of its own.
        if self._shadow is None:
            shadow = copy.deepcopy(network).requires_grad_(False)
            self._shadow = shadow, shadow if self.prepare is None else self.prepare(shadow)
        else:
            self._shadow[0].load_state_dict(network.state_dict())
        return self._shadow[1]

    def _side_stream(self, network: nn.Module) -> "torch.cuda.Stream | None":
        parameter = next(network.parameters(), None)
        if self._stream is None and parameter is not None and parameter.is_cuda:
            self._stream = torch.cuda.Stream(parameter.device)
        return self._stream

    def _swap(self, step: int) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        self._take(pending.step, step, pending.started, pending.result())

    def _take(self, snapshot: int, step: int, started: float, result: tuple[Tensor, Tensor, int]) -> None:
        centres, neighbours, n_lonely = result
        self.bank.replace(centres, neighbours, n_lonely, step=snapshot)
        self.history.append(Refreshed(snapshot, step, time.perf_counter() - started, n_lonely, self._list_recall))


class _Pending:
    """A computation in a thread, on a GPU in a stream of its own; its failure is raised to whoever asks."""

    def __init__(
        self,
        step: int,
        network: nn.Module,
        compute: Callable[[nn.Module], tuple[Tensor, Tensor, int]],
        stream: "torch.cuda.Stream | None" = None,
    ) -> None:
        self.step, self.started = step, time.perf_counter()
        self._network, self._compute = network, compute
        self._value: tuple[Tensor, Tensor, int] | None = None
        self._error: BaseException | None = None
        self._stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # the snapshot's copies come first
        # Not a daemon: the end of a program waits the second that it takes, instead of tearing it out of the GPU.
        self._thread = threading.Thread(target=self._run, name="nngk-refresh")
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._stream is None:
                self._value = self._compute(self._network)
            else:
                with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
                    self._value = self._compute(self._network)
                self._stream.synchronize()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> tuple[Tensor, Tensor, int]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        if self._stream is not None:
            # They belong to the side stream: its next refresh must not write there before the copy that reads them.
            for tensor in self._value[:2]:
                tensor.record_stream(torch.cuda.current_stream(self._stream.device))
        return self._value
