"""Does a simulation of the ring that finds exact lists foretell how long the ring takes?

    PYTHONPATH=src python benchmarks/scale/simulation.py [--commit HASH]

The simulation moves from event to event: a rank has searched a block, a block has arrived. What it is told: how fast a
rank searches its own block while the others search theirs, and how long a small and a large message take on the line,
between ranks of this machine, or between two network namespaces (where root may make them). A line that is told as it
was set, by its delay and its rate, is simulated too. Both are put beside measured rings of 2 and 4
ranks. Rows: results/scale_simulation.csv.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from two_machines import ADDRESSES, can_make_machines, machines

from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.ranks import ALONE, Ranks
from nngk.search.ring import ring_neighbours
from nngk.training.distributed import joined_ranks

QUICK = "--quick" in sys.argv
ROWS, DIM, K = (400, 16, 5) if QUICK else (16_000, 128, 100)
REPEATS = 3
SLOW = [(20.0, 50.0), (50.0, 20.0)]  # milliseconds and megabits a second of lines between two machines


def simulated(ranks: int, rows: int, dim: int, rate: float, latency: float, bandwidth: float) -> float:
    """Return the seconds of a ring in which each rank searches a block and then passes it on.

    Args:
        rate: products of two numbers that a rank computes and sorts in a second while the others do the same.
        latency: seconds until the first byte of a message arrives.
        bandwidth: bytes a second of a rank's line.
    """
    held = [span.stop - span.start for span in (Ranks(0, ranks).span(rows, rank) for rank in range(ranks))]
    now = [0.0] * ranks
    for step in range(ranks):
        now = [at + held[rank] * held[(rank - step) % ranks] * dim / rate for rank, at in enumerate(now)]
        if step + 1 < ranks:
            sent = [latency + held[(rank - step - 1) % ranks] * dim * 4 / bandwidth for rank in range(ranks)]
            now = [max(now[rank], now[rank - 1]) + sent[rank] for rank in range(ranks)]
    return max(now)


def ring_seconds(ranks: Ranks) -> float:
    """Return the median of the seconds that exact lists take."""
    points = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))[ranks.span(ROWS)]
    taken = []
    for _ in range(REPEATS):
        ranks.wait()
        started = time.perf_counter()
        ring_neighbours(points, ROWS, K, ranks)
        ranks.wait()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def search_rate(ranks: Ranks) -> float:
    """Return the products a second of a rank that searches its own block, while all others search theirs."""
    points = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))[ranks.span(ROWS)]
    taken = []
    for _ in range(REPEATS):
        ranks.wait()
        started = time.perf_counter()
        ring_neighbours(points, len(points), K, ALONE)
        taken.append(time.perf_counter() - started)
    return len(points) ** 2 * DIM / statistics.median(taken)


def message_seconds(ranks: Ranks, size: int) -> float:
    """Return the median of the seconds that a message of some bytes takes around the ring."""
    message, taken = torch.zeros(max(1, size // 4)), []
    for _ in range(9):
        ranks.wait()
        started = time.perf_counter()
        ranks.pass_on(message, len(message))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def work(home: Path) -> None:
    """Be one rank, and let the first write down what was measured."""
    torch.set_num_threads(1)
    with joined_ranks("cpu") as ranks:
        found = {"ring": ring_seconds(ranks), "rate": search_rate(ranks)}
        found |= {"small": message_seconds(ranks, 64), "large": message_seconds(ranks, 1 << 22)}
    if ranks.first:
        (home / "found.json").write_text(json.dumps(found))


def in_ranks(count: int, places: list[tuple[list[str], str]] | None = None) -> dict[str, float]:
    """Return what the ranks measured, here or in two other places."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    host = "127.0.0.1" if places is None else ADDRESSES[0]
    with tempfile.TemporaryDirectory() as home:
        shared = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--home", home] + ["--quick"] * QUICK
        started = []
        for rank in range(count):
            inside, device = ([], "lo") if places is None else places[rank]
            own = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": device}
            started.append(subprocess.Popen([*inside, *words], env=own))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"A rank of {count} failed; what it said is above.")
        return dict(json.loads(Path(home, "found.json").read_text()))


def measured_rings() -> Iterator[tuple[int, str, dict[str, float], tuple[float, float] | None]]:
    """Yield the ranks and the line of each ring, what was measured, and latency and bandwidth where they were set."""
    for count in (2,) if QUICK else (2, 4):
        yield count, "this machine", in_ranks(count), None
    if not QUICK and can_make_machines():
        for delay, megabits in SLOW:
            with machines(delay, 0.0, megabits) as places:
                found = in_ranks(2, places)
            yield 2, f"{delay:g} ms, {megabits:g} Mbit/s", found, (delay / 1e3, megabits * 1e6 / 8)


def measure(given: argparse.Namespace) -> None:
    """Measure rings, simulate the same, and write both."""
    torch.set_num_threads(1)
    origin = provenance("cpu", given.commit)
    for count, name, found, line_as_set in measured_rings():
        told = {"measured by messages": (found["small"], (1 << 22) / max(1e-9, found["large"] - found["small"]))}
        if line_as_set is not None:
            told["as set"] = line_as_set
        rows: list[dict[str, Any]] = []
        for how, (latency, bandwidth) in told.items():
            foretold = simulated(count, ROWS, DIM, found["rate"], latency, bandwidth)
            rows.append({"ranks": count, "line": name, "told": how, "measured": found["ring"], "m": ROWS, "dim": DIM})
            rows[-1] |= {"k": K, "latency_ms": latency * 1e3, "bytes_per_second": bandwidth, "simulated": foretold}
            rows[-1] |= {"ratio": foretold / found["ring"], **origin}
            print(f"{count} ranks, {name:20} {how:22} {found['ring']:8.3f} s, simulated {foretold:8.3f} s", flush=True)
        append_rows(given.out, rows)


if __name__ == "__main__":
    if "--home" in sys.argv:
        work(Path(sys.argv[sys.argv.index("--home") + 1]))
    else:
        measure(benchmark_options(benchmark_parser(__doc__, "results/scale_simulation.csv")))
