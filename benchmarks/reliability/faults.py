"""What becomes of a model when several write it at once, when a writer is killed, and when a bit is flipped?

    python benchmarks/reliability/faults.py [--rounds 50] [--kills 200] [--flips 2000]

Writers and readers are processes. A change counts as acknowledged when the call that made it has returned; one that is
missing afterwards is lost. A model that loads with anything but what was acknowledged (and at most the one change that
was under way) is wrong. A reader that is refused, or a process that ends in anything but its task, is an error.
Rows: results/faults.csv.
"""

import multiprocessing as mp
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nngk import InputError, Model, create_network
from nngk.experiments.record import provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.experiments.record.csv_rows import put_row
from nngk.networks.input_spec import InputSpec

FORK = mp.get_context("fork")  # the packages are loaded once
PATIENCE = 120.0  # seconds after which a process hangs
PICTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
CHANGES = 3  # by each writer of a round


def small_model(classes: int) -> Model:
    """Return a model of a few weights whose classes 'old 0', 'old 1' … have four centres each."""
    torch.manual_seed(0)
    network = create_network("small", dim=8, weights="random")
    network.input = InputSpec(size=16, resize=16)
    m = 4 * classes
    return Model(
        network,
        centres=torch.nn.functional.normalize(torch.randn(m, 8)),
        labels=torch.arange(m) % classes,
        theta=torch.zeros(m),
        sigma=0.3,
        class_names=[f"old {i}" for i in range(classes)],
        sources=[f"{i}.png" for i in range(m)],
        familiar=torch.randn(m),
    )


# -- processes; each tells through its pipe what was acknowledged, and what went wrong


def saver(folder: Path, tell: Connection) -> None:
    """Load, add and save, as a script of a user does; where somebody else was faster, once more."""
    for i in range(CHANGES):
        while True:
            model = Model.load(folder)
            model.add(f"saved {i}", PICTURE)
            try:
                model.save(folder)
                break
            except InputError as error:
                if "changed by somebody else" not in str(error):
                    raise
                tell.send(("refused", ""))
        tell.send(("added", f"saved {i}"))


def adder(folder: Path, tell: Connection) -> None:
    """Do what 'nngk add' does."""
    for i in range(CHANGES):
        with Model.changing(folder) as model:
            model.add(f"added {i}", PICTURE)
        tell.send(("added", f"added {i}"))


def remover(folder: Path, tell: Connection) -> None:
    """Do what 'nngk remove' does."""
    for i in range(CHANGES):
        with Model.changing(folder) as model:
            model.remove(f"old {i}")
        tell.send(("removed", f"old {i}"))


def reader(folder: Path, tell: Connection, times: int) -> None:
    """Load the model again and again; every answer must be one of a whole model."""
    for _ in range(times):
        model = Model.load(folder)
        model.classify(PICTURE)
        tell.send(("read", ""))


def restless(folder: Path, tell: Connection) -> None:
    """Add classes until killed."""
    for i in range(10_000):
        with Model.changing(folder) as model:
            model.add(f"added {i}", PICTURE)
        tell.send(("added", f"added {i}"))


def start(task: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a task in a process with a pipe to tell through."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run() -> None:
        torch.set_num_threads(1)
        try:
            task(arguments[0], theirs, *arguments[1:])
        except BaseException as error:
            theirs.send(("error", f"{task.__name__}: {type(error).__name__}: {error}"))
            raise

    process = FORK.Process(target=run)
    process.start()
    theirs.close()
    return process, ours


def told(pipe: Connection, until: float) -> list[tuple[str, str]]:
    """Return everything that a process tells before it ends or the time is over."""
    heard = []
    while time.monotonic() < until:
        try:
            if pipe.poll(0.1):
                heard.append(pipe.recv())
        except EOFError:
            break
    return heard


# -- faults; each returns how often it was injected and what came of it


def together(rounds: int, reads: int) -> dict[str, int]:
    """Let three writers and a reader at one folder, round after round."""
    counts = dict.fromkeys(("injected", "reads", "refused", "lost", "wrong", "hangs", "errors"), 0)
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            folder = Path(home, "model")
            small_model(CHANGES + 2).save(folder)
            share = reads // rounds + (number < reads % rounds)
            tasks = [start(task, folder) for task in (saver, adder, remover)] + [start(reader, folder, share)]
            until, heard = time.monotonic() + PATIENCE, []
            for process, pipe in tasks:
                heard += told(pipe, until)
                process.join(max(0.0, until - time.monotonic()))
                if process.is_alive():
                    counts["hangs"] += 1
                    process.kill()
            names = set(Model.load(folder).class_names)
            added = {name for kind, name in heard if kind == "added"}
            removed = {name for kind, name in heard if kind == "removed"}
            counts["injected"] += 1
            counts["lost"] += len(added - names) + len(removed & names)
            counts["wrong"] += len(names - added - {f"old {i}" for i in range(CHANGES + 2)})
            for kind, plural in (("read", "reads"), ("refused", "refused"), ("error", "errors")):
                counts[plural] += sum(k == kind for k, _ in heard)
            for kind, text in heard:
                if kind == "error":
                    print(text)
    return counts


def kills(count: int, rng: random.Random) -> dict[str, int]:
    """Kill a writer with SIGKILL at a random moment; the next one goes on in the same folder."""
    counts = dict.fromkeys(("injected", "lost", "wrong", "errors"), 0)
    with tempfile.TemporaryDirectory() as home:
        for _ in range(count):
            folder = Path(home, "model")
            small_model(2).save(folder)
            process, pipe = start(restless, folder)
            pipe.poll(PATIENCE)  # it is at work
            time.sleep(rng.uniform(0, 0.2))
            os.kill(process.pid, signal.SIGKILL)
            heard = told(pipe, time.monotonic() + PATIENCE)
            process.join()
            counts["injected"] += 1
            counts["errors"] += sum(kind == "error" for kind, _ in heard)
            acknowledged = {name for kind, name in heard if kind == "added"}
            try:
                names = set(Model.load(folder).class_names) - {"old 0", "old 1"}
            except InputError as error:
                print(error)
                counts["errors"] += 1
                continue
            counts["lost"] += len(acknowledged - names)
            counts["wrong"] += len(names - acknowledged) > 1  # the change under way may have reached the disk
        small_model(2).save(folder)
        counts["wrong"] += sum(path.name.endswith(".part") for path in folder.iterdir())  # the next writer clears up
    return counts


def flips(count: int, rng: random.Random) -> dict[str, int]:
    """Flip one bit of a file of a model; it must be refused, or load as if nothing had happened."""
    counts = dict.fromkeys(("injected", "refused", "wrong", "errors"), 0)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "model")
        small_model(3).save(folder)
        x = torch.nn.functional.normalize(torch.randn(4, 8))
        good = [answer.to_dict() for answer in Model.load(folder).answers(x)]
        files = [path for path in folder.iterdir() if path.name != ".lock"]
        for i in range(count):
            path = files[i % len(files)]
            data = path.read_bytes()
            bad = bytearray(data)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(bad))
            counts["injected"] += 1
            try:
                counts["wrong"] += [answer.to_dict() for answer in Model.load(folder).answers(x)] != good
            except InputError:
                counts["refused"] += 1
            except Exception as error:  # counting these is what this is for
                print(f"{path.name}: {type(error).__name__}: {error}")
                counts["errors"] += 1
            path.write_bytes(data)
    return counts


def main() -> None:
    parser = benchmark_parser(__doc__, "results/faults.csv")
    parser.add_argument("--rounds", type=int, default=50, help="Rounds of three writers and a reader.")
    parser.add_argument("--reads", type=int, default=500, help="Reads beside the writers, in all rounds together.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = benchmark_options(parser)
    if options.quick:
        options.rounds, options.reads, options.kills, options.flips = 2, 10, 3, 60
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    failed = 0
    for fault, inject in (
        ("three writers and a reader at once", lambda: together(options.rounds, options.reads)),
        ("writer killed with SIGKILL", lambda: kills(options.kills, rng)),
        ("one bit of a model's file flipped", lambda: flips(options.flips, rng)),
    ):
        begun = time.perf_counter()
        counts = inject()
        row = {"fault": fault, **counts, "seconds": round(time.perf_counter() - begun, 1), "seed": options.seed}
        print("  ".join(f"{key} {value}" for key, value in row.items()))
        put_row(options.out, row | provenance("cpu", options.commit), lambda old, new: old["fault"] == new["fault"])
        failed += sum(counts.get(name, 0) for name in ("lost", "wrong", "hangs", "errors"))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
