"""Does a simulation of the ring that finds exact lists foretell how long the ring takes?

    PYTHONPATH=src python benchmarks/scale/simulation.py [--commit HASH] [--ranks 2] [--here]

The simulation moves from event to event: a rank has searched a block, a block has arrived. It is told how fast a rank
searches while so many of them search at once, and what a line is like: as it was set, by its delay and its rate, or
as a small and a large message found it. All of this is measured apart from the rings that stand beside it: those of
some ranks of this machine, and of some machines (``machines.py``) with slow lines, where root may make them.
Rows: results/scale_simulation.csv.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machines import ADDRESSES, Places, can_make_machines, machines

from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.ranks import ALONE, Ranks
from nngk.search.ring import ring_neighbours
from nngk.training.distributed import joined_ranks

QUICK = "--quick" in sys.argv
ROWS, DIM, K = (400, 16, 5) if QUICK else (32_000, 128, 100)
REPEATS = 2 if QUICK else 3
SETTLING, MESSAGES = (1, 2) if QUICK else (4, 5)  # TCP takes some messages to find out how fast a line is
LARGE = 1 << 22  # bytes of a large message
RANKS = (2,) if QUICK else (2, 3, 4)
SLOW = [(20.0, 50.0), (50.0, 20.0)]  # milliseconds and megabits a second of lines between machines


@dataclass
class Ring:
    """A ring in which each rank passes a block on while it searches it, and then waits for the next one.

    Args:
        rates: products of two numbers that a rank computes and sorts in a second, while 1, 2, … ranks search.
        latency: seconds until the first byte of a message arrives.
        bandwidth: bytes a second of what a rank sends.
    """

    ranks: int
    rows: int
    dim: int
    rates: list[float]
    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        spans = [Ranks(0, self.ranks).span(self.rows, rank) for rank in range(self.ranks)]
        self.held = [span.stop - span.start for span in spans]
        self.begun = [[0.0] for _ in spans]  # when each rank has begun with each of its blocks
        self.left: dict[tuple[int, int], float] = {}  # when the last byte of a rank's block has left it

    def seconds(self) -> float:
        """Return when the last rank has searched its last block."""
        now, work = 0.0, [self._work(rank) for rank in range(self.ranks)]
        while any(work) or any(len(begun) < self.ranks for begun in self.begun):
            searching = [rank for rank in range(self.ranks) if work[rank]]
            rate = self.rates[max(0, len(searching) - 1)]
            waiting = [rank for rank in range(self.ranks) if not work[rank] and len(self.begun[rank]) < self.ranks]
            due = {rank: max(now, self._arrival(rank)) for rank in waiting}
            soonest = min([now + work[rank] / rate for rank in searching] + list(due.values()))
            for rank in searching:
                rest = work[rank] - (soonest - now) * rate
                work[rank] = rest if rest > 1e-9 * rate else 0.0
            now = soonest
            for rank in (rank for rank in waiting if due[rank] <= now):
                self.begun[rank].append(now)
                work[rank] = self._work(rank)
        return now

    def _work(self, rank: int) -> float:
        """Return the products of the rank's present block."""
        return float(self.held[rank] * self.held[rank + 1 - len(self.begun[rank])] * self.dim)

    def _arrival(self, rank: int) -> float:
        """Return when the block that a rank waits for has arrived, as far as is known."""
        step, sender = len(self.begun[rank]) - 1, (rank - 1) % self.ranks
        if len(self.begun[sender]) <= step:
            return math.inf
        # Nothing leaves before the receiver has said that it waits, nor before what was sent last has left.
        asked, free = self.begun[rank][step] + self.latency, self.left.get((sender, step - 1), 0.0)
        size = self.held[(sender - step) % self.ranks] * self.dim * 4
        self.left[sender, step] = max(self.begun[sender][step], asked, free) + size / self.bandwidth
        return self.left[sender, step] + self.latency


def points_of(ranks: Ranks) -> torch.Tensor:
    """Return the rows of a rank."""
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))[ranks.span(ROWS)]


def together(ranks: Ranks, work: Callable[[], object], among: int) -> list[float]:
    """Let the first ranks work, ``among`` of them, from one moment on; return how long each of them took."""
    # All ranks are on this machine and see one clock; on a slow line it takes a while until all know the moment.
    begin = ranks.told(time.monotonic() + 1.0)
    time.sleep(max(0.0, begin - time.monotonic()))
    if ranks.rank < among:
        work()
    return ranks.collect(time.monotonic() - begin)[:among]


def ring_seconds(ranks: Ranks) -> float:
    """Return the median of the seconds until all ranks have their exact lists."""
    points = points_of(ranks)
    taken = [
        max(together(ranks, lambda: ring_neighbours(points, ROWS, K, ranks), ranks.count)) for _ in range(1 + REPEATS)
    ]
    return statistics.median(taken[1:])


def search_rate(ranks: Ranks, among: int) -> float:
    """Return the products a second of a rank that searches its own block, while so many search theirs.

    The seconds are those of the processor, of which more ranks than cores have a share each: by the clock, those that
    the system lets finish first would seem to be all.
    """
    points, used = points_of(ranks), [0.0]

    def search() -> None:
        before = time.process_time()
        ring_neighbours(points, len(points), K, ALONE)
        used.append(time.process_time() - before)

    for _ in range(1 + REPEATS):
        together(ranks, search, among)
    seconds = statistics.mean(ranks.collect(statistics.median(used[2:] or used))[:among])
    return len(points) ** 2 * DIM / (seconds * max(1.0, among / len(os.sched_getaffinity(0))))


def message_seconds(ranks: Ranks, size: int) -> float:
    """Return the median of the seconds after which a rank has a message of some bytes, while each sends one."""
    message, taken = torch.zeros(size // 4), []
    for _ in range(SETTLING + MESSAGES):
        taken.append(statistics.mean(together(ranks, lambda: ranks.pass_on(message, len(message)), ranks.count)))
    return statistics.median(taken[SETTLING:])


def work(home: Path) -> None:
    """Be one rank, and let the first write down what was measured."""
    torch.set_num_threads(1)
    with joined_ranks("cpu") as ranks:
        found: dict[str, Any] = {"large": message_seconds(ranks, LARGE), "small": message_seconds(ranks, 64)}
        found["ring"] = ring_seconds(ranks)
        if "--rates" in sys.argv:
            found["rates"] = [search_rate(ranks, among) for among in range(1, ranks.count + 1)]
    if ranks.first:
        (home / "found.json").write_text(json.dumps(found))


def in_ranks(count: int, places: Places | None = None) -> dict[str, Any]:
    """Return what the ranks measured, here or in other places."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    host = "127.0.0.1" if places is None else ADDRESSES[0]
    with tempfile.TemporaryDirectory() as home:
        shared = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--home", home] + ["--quick"] * QUICK + ["--rates"] * (places is None)
        started = []
        for rank in range(count):
            inside, device = ([], "lo") if places is None else places[rank]
            own = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": device}
            started.append(subprocess.Popen([*inside, *words], env=own))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"A rank of {count} failed; what it said is above.")
        return dict(json.loads(Path(home, "found.json").read_text()))


def measured_rings(
    counts: Sequence[int], lines: bool
) -> Iterator[tuple[int, str, dict[str, Any], tuple[float, float] | None]]:
    """Yield the ranks and the line of each ring, what was measured, and latency and bandwidth where they were set."""
    for count in counts:
        here = in_ranks(count)
        yield count, "this machine", here, None
        for delay, megabits in SLOW if lines and can_make_machines() else ():
            with machines(delay, 0.0, megabits, count) as places:
                there = in_ranks(count, places)
            yield count, f"{delay:g} ms, {megabits:g} Mbit/s", here | there, (delay / 1e3, megabits * 1e6 / 8)


def measure(given: argparse.Namespace) -> None:
    """Measure rings, simulate the same, and write both."""
    origin = provenance("cpu", given.commit)
    for count, name, found, line_as_set in measured_rings(given.ranks or RANKS, not (QUICK or given.here)):
        # A small message takes two ways: that somebody waits for it has to be said first.
        told = {"by messages": (found["small"] / 2, LARGE / max(1e-9, found["large"] - found["small"]))}
        if line_as_set is not None:
            told["as set"] = line_as_set
        rows: list[dict[str, Any]] = []
        for how, (latency, bandwidth) in told.items():
            foretold = Ring(count, ROWS, DIM, found["rates"], latency, bandwidth).seconds()
            rows.append({"ranks": count, "line": name, "told": how, "measured": found["ring"], "m": ROWS, "dim": DIM})
            rows[-1] |= {"k": K, "latency_ms": latency * 1e3, "bytes_per_second": bandwidth, "simulated": foretold}
            rows[-1] |= {"ratio": foretold / found["ring"], **origin}
            print(f"{count} ranks, {name:20} {how:12} {found['ring']:8.3f} s, simulated {foretold:8.3f} s", flush=True)
        append_rows(given.out, rows)


if __name__ == "__main__":
    if "--home" in sys.argv:
        work(Path(sys.argv[sys.argv.index("--home") + 1]))
    else:
        parser = benchmark_parser(__doc__, "results/scale_simulation.csv")
        parser.add_argument("--ranks", type=int, action="append", choices=RANKS, help="Rings of so many alone.")
        parser.add_argument("--here", action="store_true", help="Rings of this machine alone.")
        measure(benchmark_options(parser))
