"""What the benchmarks of the GPU share: a report of figures, and times and memory of the device.

A quick run walks through the same code with tiny sizes on the CPU.
"""

import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nngk import progress
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

QUICK = "--quick" in sys.argv
DEVICE = "cpu" if QUICK else "cuda"


class Report:
    """Figures of one section, printed as they come and added to a CSV file at the end."""

    def __init__(self, section: str, given: Namespace) -> None:
        self.section, self.given, self.begun = section, given, time.time()
        self.rows: list[dict[str, Any]] = []

    def __call__(self, what: str, value: float, unit: str, note: str = "", section: str = "") -> None:
        """Record one figure."""
        row = {"section": section or self.section, "what": what, "value": value, "unit": unit, "note": note}
        self.rows.append(row)
        print(f"[{time.time() - self.begun:6.1f}s] {what:58} {value:12.5g} {unit:8} {note}", flush=True)

    def late(self, needed: float = 0.0) -> bool:
        """Return whether the budget of seconds leaves no time for something that needs as many."""
        return time.time() - self.begun + needed > self.given.budget

    def write(self) -> None:
        """Add the rows to the file."""
        origin = provenance(DEVICE, self.given.commit) | {"torch": torch.__version__, "triton": _triton_version()}
        append_rows(self.given.out, [row | origin for row in self.rows])


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def report_of(
    section: str,
    doc: str | None,
    out: str,
    measure: Callable[[Report], None],
    options: Callable[[Any], None] | None = None,
) -> None:
    """Run a benchmark from its command line and write its rows, also those of one that fails half-way.

    Args:
        section: the name of its rows in the column 'section'.
        doc: the docstring of the script.
        out: the CSV file of its rows.
        options: adds options of its own to the parser.
    """
    parser = benchmark_parser(doc, out)
    parser.add_argument("--budget", type=float, default=225, help="Begin nothing new after as many seconds.")
    if options is not None:
        options(parser)
    report = Report(section, benchmark_options(parser))
    progress.quiet = True
    torch.manual_seed(0)
    try:
        measure(report)
    except Exception:
        traceback.print_exc()
        report("FAILED", float("nan"), "")
    report.write()
    if any(row["what"] == "FAILED" for row in report.rows):
        raise SystemExit(1)


def wait() -> None:
    """Wait until the device has done everything."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Any, repeats: int = 20, warm: int = 3) -> float:
    """Return the median time of a run between device events."""
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
    """Return the time until a run is queued, whatever the device does meanwhile."""
    repeats = 1 if QUICK else repeats
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
    """Return the time of a captured graph: the kernels without the time that Python takes to launch them."""
    if DEVICE == "cpu":
        return milliseconds(run)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay, repeats)


def peak_mib(run: Any) -> float:
    """Return the memory that a run takes beyond what is there before it."""
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
    """Return the relative error of a tensor; NaN where it is not finite."""
    found, truth = found.detach().double(), truth.detach()
    if not torch.isfinite(found).all():
        return float("nan")
    return float((found - truth).norm() / truth.norm().clamp(min=1e-300))
