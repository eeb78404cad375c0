"""How long do the metrics of many embeddings take, and how much memory, beside pytorch-metric-learning's calculator?

    PYTHONPATH=src python benchmarks/scale/metrics.py [--commit HASH] [--rounds 3] [--size 200000x512] [--queries 4096]

Embeddings of 1,000 classes are made up. Each calculator is a process of its own, with the same number of threads; ours
asks for Recall@1, 2, 4, 8, R-precision and MAP@R, the other (with faiss, as it recommends) for precision at 1,
R-precision and MAP@R; then each clusters once for NMI. They take turns, several rounds long. To keep the run short a
sample of the examples asks, the same for both, and all answer; ``--queries 0`` lets all ask. Memory is the largest
resident size of the whole process, and the seconds of the processor, of all threads, stand beside those of the clock,
which other programs make longer.
Rows: results/scale_metrics.csv.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.metrics import nmi, retrieval_scores

SIZES = {"200000x512": (200_000, 512, ("pytorch-metric-learning", "nngk")), "1000000x128": (1_000_000, 128, ("nngk",))}
QUICK = {"3000x16": (3_000, 16, ("pytorch-metric-learning", "nngk"))}


def embeddings(n: int, dim: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return unit vectors around the centres of classes, which overlap, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    x = torch.randn(n, dim, generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    for rows in torch.arange(n).split(10_000):
        x[rows] = normalize(x[rows] * (dim / 8) ** 0.5 / 3 + centres[labels[rows]])
    return x, labels


def ours(x: Tensor, labels: Tensor, asking: Tensor) -> dict[str, Any]:
    """Return what nngk says and how long it took."""
    started = _clocks()
    scores = retrieval_scores(x, labels, queries=asking)
    between = _clocks()
    scores["nmi"] = nmi(x, labels, seeds=1)
    return _measured(scores, started, between)


def theirs(x: Tensor, labels: Tensor, asking: Tensor) -> dict[str, Any]:
    """Return the same of pytorch-metric-learning's calculator."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {"precision_at_1": "recall@1", "r_precision": "r_precision", "mean_average_precision_at_r": "map@r"}
    retrieval = AccuracyCalculator(include=tuple(names), k="max_bin_count", device=torch.device("cpu"))
    clustering = AccuracyCalculator(include=("NMI",), device=torch.device("cpu"))
    started = _clocks()
    found = retrieval.get_accuracy(x[asking], labels[asking], x, labels, ref_includes_query=True)
    between = _clocks()
    found |= clustering.get_accuracy(x, labels)
    return _measured({names.get(name, "nmi"): value for name, value in found.items()}, started, between)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _measured(scores: dict[str, float], started: tuple[float, float], between: tuple[float, float]) -> dict[str, Any]:
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1])
    seconds = {}
    for name, before, after in (("retrieval", started, between), ("clustering", between, _clocks())):
        seconds[name] = after[0] - before[0]
        seconds[f"{name}, processor"] = after[1] - before[1]
    return {"scores": scores, "seconds": seconds, "memory": peak / 2**10}


def in_a_process(calculator: str, n: int, dim: int, classes: int, queries: int, threads: int) -> dict[str, Any]:
    """Return what a calculator found in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, calculator, n, dim, classes, queries, threads))
    process.start()
    there.close()
    try:
        return json.loads(here.recv())
    except EOFError:
        raise SystemExit(f"{calculator} failed; what it said is above.") from None
    finally:
        process.join()


def _work(there: Any, calculator: str, n: int, dim: int, classes: int, queries: int, threads: int) -> None:
    torch.set_num_threads(threads)
    x, labels = embeddings(n, dim, classes)
    asking = torch.arange(queries or n)  # the rows have no order, and the other calculator wants the first ones
    there.send(json.dumps((ours if calculator == "nngk" else theirs)(x, labels, asking)))


def measure(given: argparse.Namespace) -> None:
    """Let one calculator after the other score one size after the other, and write the rows."""
    origin = provenance("cpu", given.commit)
    classes, queries = (30, 200) if given.quick else (1000, given.queries)
    sizes = QUICK if given.quick else {size: SIZES[size] for size in given.size or SIZES}
    for size, (n, dim, calculators) in sizes.items():
        about = {"embeddings": n, "dim": dim, "classes": classes, "queries": queries or n, "threads": given.threads}
        for turn, calculator in itertools.product(range(1, given.rounds + 1), calculators):
            found = in_a_process(calculator, n, dim, classes, queries, given.threads)
            rows = [{"what": what, "value": value, "unit": "s"} for what, value in found["seconds"].items()]
            rows += [{"what": what, "value": value, "unit": "share"} for what, value in found["scores"].items()]
            rows.append({"what": "largest resident size", "value": found["memory"], "unit": "MiB"})
            for row in rows:
                print(f"{size} {turn} {calculator:24} {row['what']:22} {row['value']:12.4f} {row['unit']}", flush=True)
            append_rows(
                given.out, [{"calculator": calculator, **about, "round": turn, **row, **origin} for row in rows]
            )


if __name__ == "__main__":
    parser = benchmark_parser(__doc__, "results/scale_metrics.csv")
    parser.add_argument("--queries", type=int, default=4096, help="How many examples ask; 0 for all.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="How often the calculators take turns.")
    parser.add_argument("--size", action="append", choices=SIZES, help="This size alone.")
    measure(benchmark_options(parser))
