"""Do two machines with a slow line between them that loses packets train what one process trains?

    PYTHONPATH=src python benchmarks/scale/two_machines.py [--commit HASH] [--delay 50] [--loss 1]

torchrun starts an agent with one rank on each (``machines.py``). Both kinds of bank are trained for three epochs, and
the weights, the centres, θ, σ and the measures of the model are compared with those that one process leaves: in
float64, where rounding can neither hide nor excuse a difference, and in float32. How far rounding alone carries
float32 is said by one process whose first weights are moved to neighbouring numbers, several times at random.
Rows: results/scale_machines.csv.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machines import ADDRESSES, can_make_machines, machines
from PIL import Image

from nngk.cli import main
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.files import read_tensors
from nngk.training import loop

KINDS = ("float64", "float32")
TINY = "--network small --weights random --dim 8 --resize 18 --crop-size 16 --batch-size 8 --n-neighbours 6 --epochs 3"
TINY += " --lr 0.02 --optimiser sgd --val-fraction 0.25 --test-fraction 0.25 --hold-out --device cpu --threads 1"
TINY += " --quiet --sigma learned"


def write_pictures(folder: Path) -> Path:
    """Write noisy pictures of a colour for each class."""
    rng = np.random.default_rng(0)
    for label in range(4):
        (folder / str(label)).mkdir(parents=True)
        colour = rng.uniform(60, 195, 3)
        for number in range(9):
            pixels = np.clip(colour + rng.normal(0, 50, (18, 18, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")
    return folder


def be_nngk(kind: str, seed: int, words: list[str]) -> None:
    """Be the command line of nngk, computing in a type; with a seed, from weights moved to neighbouring numbers."""
    torch.set_default_dtype(getattr(torch, kind))
    build_run = loop.build_run

    def moved(*given: Any, **named: Any) -> Any:
        run, generator = build_run(*given, **named), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in run.network.parameters():
                up = torch.rand(p.shape, generator=generator) < 0.5
                p.copy_(torch.nextafter(p, torch.where(up, torch.inf, -torch.inf).to(p)))
        return run

    if seed:
        loop.build_run = moved
    sys.argv = ["nngk", *words]
    main()


def training(kind: str, photos: Path, out: Path, seed: int = 0) -> list[str]:
    """Return the words of Python that train."""
    return [__file__, "--be-nngk", kind, str(seed), "train", str(photos), "--out", str(out), *TINY.split()]


def train_here(kind: str, photos: Path, out: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Train in one process; return what was learned."""
    words = [sys.executable, *training(kind, photos, out, seed)]
    subprocess.run(words, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return what_was_learned(out)


def train_there(
    kind: str, photos: Path, out: Path, bank: str, delay: float, loss: float
) -> tuple[dict[str, np.ndarray], float]:
    """Train on two machines; return what was learned, and the seconds that it took."""
    with machines(delay, loss) as places:
        started = time.perf_counter()
        agents = []
        for number, ((inside, device), address) in enumerate(zip(places, ADDRESSES)):
            launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two"]
            launch += ["--rdzv-conf", f"is_host={int(not number)}"]  # its name says nothing of this address
            launch += ["--local-addr", address, *training(kind, photos, out), "--bank", bank]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
            agents.append(subprocess.Popen([*inside, *launch], env=environment, stdout=sys.stderr))
        codes = [agent.wait() for agent in agents]
        if any(codes):
            raise SystemExit(f"The agents ended with {codes}; what they said is above.")
        return what_was_learned(out), time.perf_counter() - started


def what_was_learned(out: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a model and σ, and what was measured with it."""
    said = json.loads((out / "model.json").read_text())
    found = {
        f"{kind}/{name}": tensor.double().numpy()
        for kind, file in said["files"].items()
        for name, tensor in read_tensors(out / file["file"]).items()
        if "thumbnail" not in name
    }
    found["sigma"] = np.array(said["sigma"])
    return found | {f"test/{name}": np.array(value) for name, value in said["info"].get("test", {}).items()}


def far(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two arrays, as a share of their largest value where that is above one."""
    return float(np.abs(one - other).max() / max(1.0, np.abs(other).max()))


def differences(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, tuple[float, str]]:
    """Return how far a model is from another one, and in which tensor: in what was learned, in σ, and in anything."""
    if found.keys() != expected.keys():
        raise SystemExit(f"The models hold different things: {sorted(found.keys() ^ expected.keys())}.")
    apart = {name: (far(found[name], one), name) for name, one in expected.items() if one.size}
    learned = [name for name in apart if name.startswith("network/") or name in ("bank/centres", "bank/theta")]
    return {
        "largest difference of weights, centres and θ": max(apart[name] for name in learned),
        "difference of σ": apart["sigma"],
        "largest difference of anything in the model": max(apart.values()),
    }


def measure(given: argparse.Namespace) -> None:
    """Train in one process and on two machines, with each kind of bank, and write how far they are apart."""
    if not can_make_machines():
        raise SystemExit("This needs root, /dev/net/tun, and the program ip (iproute2).")
    origin = provenance("cpu", given.commit)

    def write(about: dict[str, Any], values: dict[str, tuple[float, str]]) -> None:
        for what, (value, where) in values.items():
            print(f"{about['type']} {about['ranks']} {about['bank']:12} {what:64} {value:.3g} {where}", flush=True)
        rows = [{**about, "what": what, "value": value, "where": where} for what, (value, where) in values.items()]
        append_rows(given.out, [row | origin for row in rows])

    with tempfile.TemporaryDirectory() as home:
        photos = write_pictures(Path(home, "photos"))
        for kind in KINDS[given.quick :]:
            expected = train_here(kind, photos, Path(home, kind))
            for bank in ("replicated", "sharded"):
                about = {"type": kind, "bank": bank, "delay_ms": given.delay, "loss_percent": given.loss, "ranks": 2}
                found, seconds = train_there(kind, photos, Path(home, kind + bank), bank, given.delay, given.loss)
                write(about, differences(found, expected) | {"seconds of three epochs": (seconds, "")})
            moved = [
                differences(train_here(kind, photos, Path(home, f"{kind}{seed}"), seed), expected)
                for seed in range(1, 2 if given.quick else given.moved + 1)
            ]
            largest = {f"first weights moved, {what}": max(each[what] for each in moved) for what in moved[0]}
            write({"type": kind, "bank": "replicated", "ranks": 1}, largest)


if __name__ == "__main__":
    if "--be-nngk" in sys.argv:
        be_nngk(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        parser = benchmark_parser(__doc__, "results/scale_machines.csv")
        parser.add_argument("--delay", type=float, default=50, help="Milliseconds that a packet takes each way.")
        parser.add_argument("--loss", type=float, default=1, help="Percent of the packets that are dropped.")
        parser.add_argument("--moved", type=int, default=5, help="How often one process has its first weights moved.")
        measure(benchmark_options(parser))
