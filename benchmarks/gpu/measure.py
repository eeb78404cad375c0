"""What the sections of gpu.py share: the options, rows of figures, and times and memory of a device."""

import argparse
import csv
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

PARSER = argparse.ArgumentParser(description="Fused losses, exact search and GoogLeNet's fused passes on a GPU.")
PARSER.add_argument("--out", type=Path, required=True)
PARSER.add_argument("--commit", default="")
PARSER.add_argument("--only", nargs="*", default=[])
PARSER.add_argument("--quick", action="store_true")
PARSER.add_argument("--budget", type=float, default=225, help="seconds after which no new variant is tried")
ARGS = PARSER.parse_args()
if ARGS.quick:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

DEVICE = "cpu" if ARGS.quick else "cuda"
START = time.time()
ROWS: list[dict[str, Any]] = []


def record(section: str, what: str, value: float, unit: str, note: str = "") -> None:
    ROWS.append({"section": section, "what": what, "value": value, "unit": unit, "note": note})
    print(f"[{time.time() - START:6.1f}s] {section:9} {what:58} {value:12.5g} {unit:8} {note}", flush=True)


def late() -> bool:
    return time.time() - START > ARGS.budget


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Any, repeats: int = 20, warm: int = 3) -> float:
    """Median time of a run between device events."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    for _ in range(warm):
        run()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for first, last in marks:
        first.record()
        run()
        last.record()
    wait()
    times = sorted(first.elapsed_time(last) for first, last in marks)
    return times[len(times) // 2]


def host_ms(run: Any, repeats: int = 30) -> float:
    """Time until a run is queued, whatever the device does meanwhile."""
    repeats = 1 if ARGS.quick else repeats
    run()
    wait()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    wait()
    return sorted(times)[repeats // 2]


def replayed(run: Any, repeats: int = 20) -> float:
    """The same for a captured graph: the kernels without the time Python takes to launch them."""
    if DEVICE == "cpu":
        return milliseconds(run)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay, repeats)


def peak_mib(run: Any) -> float:
    """Memory that a run takes beyond what is there before it."""
    if DEVICE == "cpu":
        return 0.0
    run()
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    wait()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def poison() -> None:
    """Leave NaN in the memory that the allocator hands out next, so that an element nobody wrote is seen."""
    parts = [torch.full((n,), torch.nan, device=DEVICE) for n in [1 << 22, 1 << 18] + [1 << 12] * 64]
    del parts


def error(found: Tensor, truth: Tensor) -> float:
    found, truth = found.detach().double(), truth.detach()
    if not torch.isfinite(found).all():
        return float("nan")
    return float((found - truth).norm() / truth.norm().clamp(min=1e-300))


def write() -> None:
    ARGS.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "cpu"
    same = {
        "commit": ARGS.commit,
        "command": " ".join(["benchmarks/gpu.py", *sys.argv[1:]]),
        "machine": platform.machine(),
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    for section in {row["section"] for row in ROWS}:
        with (ARGS.out / f"gpu_{section}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["section", "what", "value", "unit", "note", *same])
            writer.writeheader()
            writer.writerows({**row, **same} for row in ROWS if row["section"] == section)
