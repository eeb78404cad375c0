"""What does it gain on a slow line that the lists of a sharded bank are fetched one step ahead?

    PYTHONPATH=src python benchmarks/scale/lists_ahead.py [--commit HASH]

Two ranks train a small network on made-up pictures, each in a network namespace of its own (``machines.py``), with
a line between them that has a delay and a rate. Steps whose lists are asked for when they begin, beside their own
network, take turns with steps whose lists were asked for one step before. Needs the rights to make namespaces (root);
a quick run stays on this machine. Rows: results/scale_lists_ahead.csv.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machines import ADDRESSES, can_make_machines, machines
from PIL import Image

from nngk import Settings
from nngk.data import read_images, split
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.training.build import build_run
from nngk.training.distributed import joined_ranks
from nngk.training.run import Run
from nngk.training.step import take_step
from nngk.training.step_batches import step_batches

QUICK = "--quick" in sys.argv
CLASSES, EACH, SIDE, BATCH, K = (4, 10, 18, 8, 6) if QUICK else (20, 40, 66, 128, 100)
TURNS, STEPS = (2, 2) if QUICK else (7, 5)  # of each kind; the first turn warms up
LINES = [(20.0, 50.0), (50.0, 20.0)]  # milliseconds each way, and megabits a second


def write_pictures(folder: Path) -> None:
    """Write noisy pictures of a colour for each class."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"{label:02d}").mkdir(parents=True)
        colour = rng.uniform(40, 215, 3)
        for number in range(EACH):
            pixels = np.clip(colour + rng.normal(0, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{label:02d}" / f"{number}.png")


def step_seconds(run: Run, ahead: bool) -> float:
    """Return the mean of the seconds of some steps, after one whose lists are asked for without notice either way."""
    run.trainee.train()
    batches = run.index_batches(0)
    # One more than are taken, so that the last one, too, has lists to ask for ahead.
    with closing(step_batches(run, [batches[number % len(batches)] for number in range(STEPS + 2)])) as coming:
        for number in range(STEPS + 1):
            if number == 1:
                run.ranks.wait()
                started = time.perf_counter()
            given = next(coming)
            if not ahead:
                run.coming = None
            take_step(run, *given)
            run.at.step += 1
        run.ranks.wait()
        return (time.perf_counter() - started) / STEPS


def work(home: Path) -> None:
    """Be one rank, and let the first write down the seconds of both kinds of steps."""
    torch.set_num_threads(1)
    values: dict[str, Any] = {"network": "small", "weights": "random", "dim": 64, "resize": SIDE, "bank": "sharded"}
    values |= {"crop_size": SIDE - 2, "batch_size": BATCH, "n_neighbours": K, "optimiser": "sgd", "lr": 0.001}
    values |= {"val_fraction": 0.1, "test_fraction": 0.1, "update_interval": 1000, "cache": "off", "device": "cpu"}
    s = Settings(**values, threads=1)
    table = read_images(home / "photos", task=s.task, seed=s.seed)
    with joined_ranks("cpu") as ranks:
        folder = home / f"run{ranks.rank}"
        folder.mkdir()
        run = build_run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder, ranks=ranks)
        run.begin()
        taken: dict[str, list[float]] = {"in the same step": [], "one step ahead": []}
        for turn in range(TURNS):
            for kind in list(taken)[:: 1 if turn % 2 else -1]:
                seconds = step_seconds(run, kind == "one step ahead")
                if turn:
                    taken[kind].append(seconds)
    if ranks.first:
        (home / "found.json").write_text(json.dumps(taken))


def in_ranks(places: list[tuple[list[str], str]] | None) -> dict[str, list[float]]:
    """Return what two ranks measured, here or in two other places."""
    with tempfile.TemporaryDirectory() as home:
        write_pictures(Path(home, "photos"))
        words = [sys.executable, __file__, "--home", home] + ["--quick"] * QUICK
        shared = {"MASTER_ADDR": ADDRESSES[0] if places else "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
        started = []
        for rank in range(2):
            inside, device = places[rank] if places else ([], "lo")
            own = {**os.environ, **shared, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": "0"}
            started.append(subprocess.Popen([*inside, *words], env=own | {"GLOO_SOCKET_IFNAME": device}))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit("A rank failed; what it said is above.")
        return dict(json.loads(Path(home, "found.json").read_text()))


def measure(given: argparse.Namespace) -> None:
    """Measure both kinds of steps on each line, and write the rows."""
    if not QUICK and not can_make_machines():
        raise SystemExit("This needs root, /dev/net/tun, and the program ip (iproute2).")
    origin = provenance("cpu", given.commit)
    for delay, megabits in [(0.0, 0.0)] if QUICK else LINES:
        with nullcontext() if QUICK else machines(delay, 0.0, megabits) as places:
            taken = in_ranks(places)
        middle = {kind: statistics.median(seconds) for kind, seconds in taken.items()}
        ratios = [after / before for before, after in zip(*taken.values())]
        rows: list[dict[str, Any]] = [
            {"what": f"step, lists fetched {kind}", "value": 1e3 * value, "unit": "ms", "least": 1e3 * min(taken[kind])}
            for kind, value in middle.items()
        ]
        rows.append({"what": "one step ahead / in the same step", "value": statistics.median(ratios), "unit": "x"})
        rows[-1]["least"] = min(ratios)
        about = {"delay_ms": delay, "megabits": megabits, "batch": BATCH, "k": K, "ranks": 2}
        for row in rows:
            print(f"{delay:g} ms, {megabits:g} Mbit/s  {row['what']:36} {row['value']:10.3f} {row['unit']}", flush=True)
        append_rows(given.out, [about | row | origin for row in rows])


if __name__ == "__main__":
    if "--home" in sys.argv:
        work(Path(sys.argv[sys.argv.index("--home") + 1]))
    else:
        measure(benchmark_options(benchmark_parser(__doc__, "results/scale_lists_ahead.csv")))
