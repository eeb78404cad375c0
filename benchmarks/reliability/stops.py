"""What becomes of a command that is told to stop at any moment, and of a service whose disk is full?

    python benchmarks/reliability/stops.py [--stops 20]

Every command is run in a process of its own and gets SIGINT or SIGTERM at a random moment of the time that it takes.
One that ends in a traceback, or in anything but its end or the code for a stop, is an error; one that does not end
hangs; a model or run that is not whole afterwards is wrong; a class that was there before is lost. The full disk is a
file system in memory of 16 MB, which takes the rights of root to mount. Rows: results/faults.csv.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from command_process import process_of
from PIL import Image

import nngk.cli.change_model
import nngk.cli.data
import nngk.cli.fill_gallery
import nngk.cli.inspect_model
import nngk.cli.train
import nngk.cli.use_model
import nngk.cli.write_report  # noqa: F401 (commands are imported when they are called: here once for all)
from faults import small_model
from nngk import InputError, Model
from nngk.experiments.record import provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.experiments.record.csv_rows import put_row

PATIENCE = 120.0
STOPPED = (0, 130)
TRAIN = [
    "--network",
    "small",
    "--weights",
    "random",
    "--dim",
    "8",
    "--epochs",
    "2",
    "--hold-out",
    "--crop-size",
    "16",
    "--resize",
    "16",
    "--batch-size",
    "8",
    "--no-tune",
]


def write_photos(folder: Path) -> None:
    """Write 24 pictures of three classes."""
    rng = np.random.default_rng(0)
    for name in ("old 0", "old 1", "old 2"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")


def commands(home: Path) -> dict[str, list[str]]:
    """Return the words of every command."""
    photos, model, picture = str(home / "photos"), str(home / "model"), str(home / "photos" / "old 1" / "0.png")
    return {
        "train": ["train", photos, "--out", str(home / "trained"), "--device", "cpu", *TRAIN],
        "add": ["add", model, "--device", "cpu", "new", picture],
        "remove": ["remove", model, "old 0"],
        "classify": ["classify", model, "--device", "cpu", picture],
        "evaluate": ["evaluate", model, photos, "--device", "cpu"],
        "data check": ["data", "check", photos],
        "rename": ["rename", model, "old 0", "other"],
        "calibrate": ["calibrate", model, photos, "--false-alarms", "0.1", "--device", "cpu"],
        "embed": ["embed", model, photos, "--gallery", str(home / "gallery"), "--device", "cpu"],
        "audit": ["audit", model, "--no-photos", "--device", "cpu"],
        "report": ["report", model, photos, "--device", "cpu"],
        "export": ["export", model, "--format", "npz", "--out", str(home / "centres.npz"), "--force"],
    }


def run(words: list[str], log: Path, number: int = 0, after: float = 0.0) -> tuple[int | None, float, bool]:
    """Run a command in a forked process, send it a signal after some seconds.

    Return its code (None: it hangs), the seconds that it took, and whether the signal was sent before it had ended.
    """
    child = process_of(words, log)
    begun = time.monotonic()
    sent = False
    while time.monotonic() < begun + PATIENCE:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic() - begun, sent
        if number and not sent and time.monotonic() - begun >= after:
            os.kill(child, number)
            sent = True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, PATIENCE, sent


def fresh(home: Path) -> None:
    for name in ("trained", "model", "gallery"):
        shutil.rmtree(home / name, ignore_errors=True)
    shutil.copytree(home / "first", home / "model")


def stops(name: str, number: int, count: int, home: Path, rng: random.Random) -> dict[str, int]:
    """Stop one command again and again; then let it finish in the same place."""
    counts = dict.fromkeys(("injected", "refused", "lost", "wrong", "hangs", "errors"), 0)
    words, log = commands(home)[name], home / "log"
    fresh(home)
    code, usual, _ = run(words, log)
    assert code == 0, log.read_text()
    while counts["injected"] < count:
        fresh(home)
        code, seconds, sent = run(words, log, number, rng.uniform(0.02, usual))
        if not sent:
            usual = seconds  # it was quicker this time
            continue
        said = log.read_text(errors="replace")
        counts["injected"] += 1
        counts["hangs"] += code is None
        early = code == -number and not said  # before the command line was there to hear of it
        counts["refused"] += code == 130
        if code is not None and ("Traceback" in said or not (code in STOPPED or early)):
            counts["errors"] += 1
            print(name, code, said[-1500:])
        try:
            names = Model.load(home / "model").class_names
            counts["lost"] += not {"old 1", "old 2"} <= set(names)
            counts["wrong"] += any(path.name.endswith(".part") for path in (home / "model").iterdir())
            again = [*words, "--resume"] if (home / "trained" / "run" / "checkpoint.json").exists() else words
            done = name == "train" and (home / "trained" / "model.json").exists()
            if name == "train" and not done:  # nothing is in the way of the next
                code, _, _ = run(again, log)
                counts["wrong"] += code != 0
                if code:
                    print(name, "again", code, log.read_text(errors="replace")[-1500:])
            if name == "train":
                Model.load(home / "trained")
            if name == "embed":  # what was written stays, and the rest comes
                code, _, _ = run(words, log)
                counts["wrong"] += code != 0 or "has 24 images now" not in log.read_text(errors="replace")
        except InputError as error:
            print(name, error)
            counts["wrong"] += 1
    return counts


def full_disk(count: int) -> dict[str, int]:
    """Teach a served model classes on a file system of 16 MB, full by all but a few blocks; then make room."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from serving import classify, serving, teach, write_model

    counts = dict.fromkeys(("injected", "refused", "lost", "wrong", "hangs", "errors"), 0)
    with tempfile.TemporaryDirectory() as home:
        first, disk = write_model(Path(home, "made")), Path(home, "disk")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=True)
        try:
            shutil.copytree(first, disk / "model")
            (Path(home) / "log").mkdir()
            with serving(disk / "model") as server, server.client() as client:
                for number in range(count):
                    state = sorted(path.name for path in (disk / "model").rglob("*") if path.is_file())
                    _fill(disk / "ballast", leave=4096 * (number % 12))
                    answer = teach(client, f"class {number}", "yellow", [number])
                    counts["injected"] += 1
                    counts["refused"] += answer.status_code == 507
                    counts["errors"] += answer.status_code not in (200, 507)
                    names = Model.load(disk / "model").class_names
                    counts["wrong"] += (f"class {number}" in names) != (answer.status_code == 200)
                    left = sorted(path.name for path in (disk / "model").rglob("*") if path.is_file())
                    counts["wrong"] += answer.status_code == 507 and not set(left) <= set(state)  # older ones may go
                    counts["lost"] += not {"red", "green", "blue"} <= set(names)
                    counts["wrong"] += classify(client, "red", 1)["label"] != "red"
                    (disk / "ballast").unlink()
                    counts["errors"] += teach(client, f"after {number}", "violet", [number]).status_code != 200
                    for extra in set(Model.load(disk / "model").class_names) - {"red", "green", "blue"}:
                        client.delete("/classes", params={"name": extra})
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return counts


def _fill(path: Path, leave: int) -> None:
    """Fill a disk until only so many bytes are free."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while (free := shutil.disk_usage(path.parent).free) > leave:
            file.write(bytes(min(free - leave, 1 << 16)))


def main() -> None:
    parser = benchmark_parser(__doc__, "results/faults.csv")
    parser.add_argument("--stops", type=int, default=20, help="Of each command by each signal.")
    parser.add_argument("--only", nargs="+", choices=[*commands(Path()), "serve"], help="Only these commands.")
    parser.add_argument("--seed", type=int, default=0)
    options = benchmark_options(parser)
    torch.set_num_threads(1)
    rng, failed = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        write_photos(home / "photos")
        small_model(3).save(home / "first")
        faults = {
            f"nngk {name} stopped with {number.name}": (lambda n=name, s=number: stops(n, s, options.stops, home, rng))
            for name in (["add"] if options.quick else commands(home))
            if options.quick or name in (options.only or commands(home))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        if os.geteuid() == 0 and "serve" in (options.only or ["serve"]) and not options.quick:
            faults["full file system behind nngk serve"] = lambda: full_disk(3 * options.stops)
        for fault, inject in faults.items():
            begun = time.perf_counter()
            counts = inject()
            row = {"fault": fault, **counts, "seconds": round(time.perf_counter() - begun, 1), "seed": options.seed}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            put_row(options.out, row | provenance("cpu", options.commit), lambda old, new: old["fault"] == new["fault"])
            failed += sum(counts[name] for name in ("lost", "wrong", "hangs", "errors"))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
