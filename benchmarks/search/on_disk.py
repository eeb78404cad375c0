"""An index on disk: how long is it built, how much memory do building and searching take, how fast does it answer?

    python benchmarks/search/on_disk.py --n 1000000 --dim 128

Points come in pieces and are never in memory together; a thousand more are the queries. Searching is done by another
process, so that its memory is its own. Rows: results/search_disk.csv.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.experiments.bench.points import clustered_pieces
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.search import DiskIndex, Exact
from nngk.search.calibration import found_share

QUERIES = 1000
ROUNDS = 5


class Generated:
    """Pieces of points, with their nearest neighbours of the queries kept; the time that takes is not building's."""

    def __init__(self, n: int, dim: int, k: int, seed: int) -> None:
        self.n, self.dim, self.k, self.seed = n, dim, k, seed
        self.seconds = 0.0
        self.distances, self.truth = torch.empty(QUERIES, 0), torch.empty(QUERIES, 0, dtype=torch.long)
        self.queries = deque(self._all(), maxlen=1)[0][-QUERIES:]  # of the last piece

    def _all(self) -> Iterator[Tensor]:
        return clustered_pieces(self.n + QUERIES, self.dim, seed=self.seed)

    def __iter__(self) -> Iterator[Tensor]:
        first, start = 0, time.perf_counter()
        for piece in self._all():
            piece = piece[: self.n - first]
            if len(piece):
                distances, near = Exact(piece).search(self.queries, min(self.k, len(piece)))
                self.distances = torch.cat([self.distances, distances], 1)
                self.truth = torch.cat([self.truth, near + first], 1)
                kept = self.distances.topk(min(self.k, self.distances.shape[1]), largest=False)
                self.distances, self.truth = kept.values, self.truth.gather(1, kept.indices)
                self.seconds += time.perf_counter() - start
                yield piece
                start = time.perf_counter()
            first += len(piece)


def peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)


def answer(folder: Path, k: int, threads: int) -> None:
    """Search the index as a process of its own; print what it took as JSON."""
    asked = torch.load(folder.parent / "queries.pt", weights_only=True)
    start = time.perf_counter()
    index = DiskIndex(folder, threads=threads)
    told: dict[str, Any] = {}
    for recall in (0.95, 0.99):
        reach = index.reach(k, recall)
        told["open_seconds"] = told.get("open_seconds", round(time.perf_counter() - start, 2))
        times = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            found = index.search(asked["queries"], k, probes=reach["probes"], ef=reach["ef"])[1]
            times.append(time.perf_counter() - begun)
        part = f"{recall:g}"
        told |= {f"probes_{part}": reach["probes"], f"ef_{part}": reach["ef"]}
        told[f"recall_{part}"] = round(found_share(found, asked["truth"]), 4)
        told[f"queries_per_second_{part}"] = round(QUERIES / sorted(times)[ROUNDS // 2], 1)
    print(json.dumps(told | {"search_peak_gib": peak_gib(), "open_gib": round(index.open_bytes / 2**30, 3)}))


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_disk.csv")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--part", type=int, default=150_000, help="Points of a part, about.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="Where the index is written; a temporary folder by default.")
    parser.add_argument("--search", type=Path, help="Only search this index, and print what that took.")
    given = benchmark_options(parser)
    if given.search is not None:
        answer(given.search, given.k, given.threads)
        return
    if given.quick:
        given.n, given.dim, given.part = 3000, 8, 1000
    points = Generated(given.n, given.dim, given.k, given.seed)
    with tempfile.TemporaryDirectory(dir=given.folder) as home:
        folder = Path(home) / "index"
        start = time.perf_counter()
        index = DiskIndex.build(folder, points, part=given.part, seed=given.seed, threads=given.threads)
        seconds = time.perf_counter() - start - points.seconds
        torch.save({"queries": points.queries, "truth": points.truth}, Path(home) / "queries.pt")
        size = sum(path.stat().st_size for path in folder.iterdir()) / 2**30
        row = {"n": given.n, "dim": given.dim, "k": given.k, "threads": given.threads, "seed": given.seed}
        row |= {"parts": len(index.about["sizes"]), "build_seconds": round(seconds, 1), "build_peak_gib": peak_gib()}
        row["disk_gib"] = round(size, 3)
        searching = [sys.executable, __file__, "--search", str(folder), "--k", str(given.k)]
        searching += ["--threads", str(given.threads), "--out", str(given.out)]
        done = subprocess.run(searching, capture_output=True, text=True, check=True)
        row |= json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(row, indent=1))
    append_rows(given.out, [row | provenance(commit=given.commit)])


if __name__ == "__main__":
    main()
