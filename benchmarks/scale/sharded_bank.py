"""How much memory does a rank need for its rows of a bank, and how many bytes does it send?

    PYTHONPATH=src python benchmarks/scale/sharded_bank.py [--commit HASH]

Every rank is a process that talks by gloo. Memory is the growth of the process's largest resident size while it makes
its part of a bank of 2 million centres, gives it lists and takes training steps with AdamW. Bytes are counted from the
sizes of what is sent, and stand beside the formulas of docs/scale.md. Rows: results/scale.csv.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from nngk.bank.sharded import ShardedBank
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.ranks import Ranks
from nngk.training.distributed import join, joined_ranks

QUICK = "--quick" in sys.argv
RANKS = (1, 2) if QUICK else (1, 2, 4)
LARGE = {"m": 2_000 if QUICK else 2_000_000, "dim": 128, "k": 100, "batch": 256}
SEARCHED = {"m": 300 if QUICK else 20_000, "dim": 128, "k": 100, "batch": 256}
FLOAT = INT = 4  # bytes
STEPS = 3


def resident(which: str) -> int:
    """Return a resident size of this process in bytes: VmRSS, or VmHWM for the largest so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(which)).split()[1])


def steps(bank: ShardedBank, ranks: Ranks, batch: int) -> dict[str, float]:
    """Take some steps of θ; return the bytes that one of them sent, by kind."""
    m, optimiser = len(bank), torch.optim.AdamW([bank.theta], lr=1e-3)
    span = ranks.span(batch)
    for step in range(STEPS):
        ranks.traffic.sent.clear()
        indices = torch.randperm(m, generator=torch.Generator().manual_seed(step))[:batch]
        x = torch.randn(span.stop - span.start, bank.dim, requires_grad=True)
        whole = join(x, batch, ranks, partial=True)
        loss, _ = bank.neighbour_loss(whole, torch.tensor(5.0), bank.lists_of(indices), bank.labels[indices], indices)
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
    return dict(ranks.traffic.sent)


def large(ranks: Ranks, m: int, dim: int, k: int, batch: int) -> dict[str, Any]:
    """Return the memory of a rank's part of a large bank; its lists are random, because nobody searches here."""
    before = resident("VmRSS")
    bank = ShardedBank(torch.arange(m) % (m // 10), dim, k, ranks=ranks)
    generator = torch.Generator().manual_seed(ranks.rank)
    bank.centres.normal_(generator=generator)
    bank.neighbours.random_(0, m, generator=generator)
    bank.refreshed_at = 0
    sent = steps(bank, ranks, batch)
    return {"memory": resident("VmHWM") - before, "held": held_bytes(bank), "rows": len(bank.centres), "step": sent}


def held_bytes(bank: ShardedBank) -> int:
    """Return the bytes of a bank's tensors and of AdamW's two moments."""
    return sum(t.nbytes for t in [*bank.buffers(), bank.theta]) + 2 * bank.theta.nbytes


def searched(ranks: Ranks, m: int, dim: int, k: int, batch: int) -> dict[str, Any]:
    """Return the bytes that a rank sends for exact lists over all ranks, all of whose classes have two far members."""
    points = torch.randn(m, dim, generator=torch.Generator().manual_seed(0))[ranks.span(m)]
    bank = ShardedBank(torch.arange(m) % (m // 2), dim, k, ranks=ranks)
    ranks.traffic.sent.clear()
    bank.replace(points, *bank.lists(points))
    return {"refresh": dict(ranks.traffic.sent), "lonely": bank.n_lonely}


def formulas(count: int, m: int, dim: int, k: int, batch: int) -> dict[str, float]:
    """Return the bytes that docs/scale.md says the first rank sends in a step and in a refresh."""
    width = k + 1  # with the guaranteed one
    others, share, rows = count - 1, -(-batch // count), -(-m // count)
    return {
        "step, embeddings": others * share * dim * FLOAT,
        "step, gradients": (batch - share) * dim * FLOAT,
        "step, log kernels": 2 * others / count * batch * (width + 1) * FLOAT,
        "refresh, ring": others * rows * dim * FLOAT,
    }


def in_ranks(count: int) -> list[dict[str, Any]]:
    """Return what each rank found."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as home:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
        words = [sys.executable, __file__, "--home", home] + ["--quick"] * QUICK
        started = [subprocess.Popen(words, env=shared | {"RANK": str(rank)}) for rank in range(count)]
        failed = [process for process in started if process.wait()]
        if failed:
            raise SystemExit(f"A rank of {count} failed; what it said is above.")
        return [json.loads(Path(home, f"{rank}.json").read_text()) for rank in range(count)]


def work(home: Path) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    with joined_ranks("cpu") as ranks:
        large(ranks, **LARGE | {"m": 400})  # connections and libraries are not the bank's memory
        found = large(ranks, **LARGE) | searched(ranks, **SEARCHED)
    (home / f"{ranks.rank}.json").write_text(json.dumps(found))


def rows_of(count: int, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of as many ranks."""
    first, mib = found[0], 2**20
    rows: list[dict[str, Any]] = [
        {"what": "memory of a rank, the largest", "value": max(one["memory"] for one in found) / mib, "unit": "MiB"},
        {"what": "tensors of a rank, the largest", "value": max(one["held"] for one in found) / mib, "unit": "MiB"},
    ]
    expected = formulas(count, **LARGE)
    step = expected["step, embeddings"] + lists_bytes(count)
    counted = {"embeddings and lists": first["step"].get("gather", 0), "gradients": first["step"].get("exchange", 0)}
    counted["log kernels"] = first["step"].get("sum", 0)
    wanted = {"embeddings and lists": step, "gradients": expected["step, gradients"]}
    wanted["log kernels"] = expected["step, log kernels"]
    for name, value in counted.items():
        rows.append({"what": f"step, {name}", "value": value, "formula": round(wanted[name]), "unit": "bytes"})
    rings = 2 if first["lonely"] else 1
    ring = rings * formulas(count, **SEARCHED)["refresh, ring"]
    rows.append({"what": "refresh, ring", "value": first["refresh"].get("ring", 0), "formula": ring, "unit": "bytes"})
    sizes = [SEARCHED if row["what"].startswith("refresh") else LARGE for row in rows]
    return [{"ranks": count, **size, **row} for size, row in zip(sizes, rows)]


def lists_bytes(count: int) -> int:
    """Return the bytes of the last step's lists: each rank sends as many as the one that has the most."""
    m, each = LARGE["m"], -(-LARGE["m"] // count)
    indices = torch.randperm(m, generator=torch.Generator().manual_seed(STEPS - 1))[: LARGE["batch"]]
    most = int(torch.bincount(indices // each).max())
    return (count - 1) * most * (LARGE["k"] + 1) * INT


def measure() -> None:
    """Measure one number of ranks after the other, and write the rows."""
    given = benchmark_options(benchmark_parser(__doc__, "results/scale.csv"))
    origin = provenance("cpu", given.commit)
    for count in RANKS:
        rows = rows_of(count, in_ranks(count))
        for row in rows:
            beside = f"  formula {row['formula']:,.0f}" if "formula" in row else ""
            print(f"{count} ranks  {row['what']:32} {row['value']:16,.1f} {row['unit']:6}{beside}", flush=True)
        append_rows(given.out, [{"formula": "", **row, **origin} for row in rows])


if __name__ == "__main__":
    if "--home" in sys.argv:
        work(Path(sys.argv[sys.argv.index("--home") + 1]))
    else:
        measure()
