"""Do two machines with a slow line between them that loses packets train what one process trains?

    PYTHONPATH=src python benchmarks/scale/two_machines.py [--commit HASH] [--delay 50] [--loss 1]

Each machine is a network namespace of Linux, joined to the other by a pair of virtual Ethernet devices on which ``tc``
holds every packet for some milliseconds and drops some; torchrun starts an agent with one rank in each. Needs the
rights to make namespaces (root). Both kinds of bank are trained for three epochs, and the weights, the centres, θ and
the measures of the model are compared with those that one process leaves. Rows: results/scale_machines.csv.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.files import read_tensors

ADDRESSES = ("10.77.0.1", "10.77.0.2")
TINY = "--network small --weights random --dim 8 --resize 18 --crop-size 16 --batch-size 8 --n-neighbours 6 --epochs 3"
TINY += (
    " --lr 0.02 --optimiser sgd --val-fraction 0.25 --test-fraction 0.25 --hold-out --device cpu --threads 1 --quiet"
)


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


@contextmanager
def machines(delay: float, loss: float, rate: float = 0.0) -> Iterator[list[tuple[list[str], str]]]:
    """Give two machines, each as the words that start a command there and the name of its network device.

    Packets are held for ``delay`` milliseconds at each end, ``loss`` percent are dropped, and ``rate`` megabits a
    second go through; 0 is as fast as it goes.
    """
    names = [f"nngk-{os.getpid()}-{i}" for i in range(2)]
    devices = [f"ng{os.getpid() % 100_000}v{i}" for i in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        for name, device, address in zip(names, devices, ADDRESSES):
            _ip("link", "set", device, "netns", name)
            inside = ["ip", "netns", "exec", name]
            _run([*inside, "ip", "addr", "add", f"{address}/24", "dev", device])
            _run([*inside, "ip", "link", "set", device, "up"])
            _run([*inside, "ip", "link", "set", "lo", "up"])
            if delay or loss or rate:
                how = ["delay", f"{delay}ms", "loss", f"{loss}%", *(["rate", f"{rate}mbit"] if rate else [])]
                how += ["limit", "100000"]  # packets that are held; beyond, they would be dropped
                _run([*inside, "tc", "qdisc", "add", "dev", device, "root", "netem", *how])
        yield [(["ip", "netns", "exec", name], device) for name, device in zip(names, devices)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def train_there(photos: Path, out: Path, bank: str, delay: float, loss: float) -> float:
    """Train on two machines; return the seconds that it took."""
    with machines(delay, loss) as places:
        started = time.perf_counter()
        agents = []
        for (inside, device), address in zip(places, ADDRESSES):
            launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two"]
            launch += ["--local-addr", address, "-m", "nngk", "train", str(photos), "--out", str(out), "--bank", bank]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
            agents.append(subprocess.Popen([*inside, *launch, *TINY.split()], env=environment, stdout=sys.stderr))
        codes = [agent.wait() for agent in agents]
        if any(codes):
            raise SystemExit(f"The agents ended with {codes}; what they said is above.")
        return time.perf_counter() - started


def what_was_learned(out: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a model, and what was measured with it."""
    said = json.loads((out / "model.json").read_text())
    found = {
        f"{kind}/{name}": tensor.double().numpy()
        for kind, file in said["files"].items()
        for name, tensor in read_tensors(out / file["file"]).items()
        if "thumbnail" not in name
    }
    return found | {f"test/{name}": np.array(value) for name, value in said["info"].get("test", {}).items()}


def measure(given: argparse.Namespace) -> None:
    """Train in one process and on two machines, with each kind of bank, and write how far they are apart."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise SystemExit("This needs root, and the programs ip and tc (iproute2).")
    origin = provenance("cpu", given.commit)
    with tempfile.TemporaryDirectory() as home:
        photos = write_pictures(Path(home, "photos"))
        alone = [sys.executable, "-m", "nngk", "train", str(photos), "--out", f"{home}/alone", *TINY.split()]
        subprocess.run(alone, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
        expected = what_was_learned(Path(home, "alone"))
        for bank in ("replicated", "sharded"):
            seconds = train_there(photos, Path(home, bank), bank, given.delay, given.loss)
            found = what_was_learned(Path(home, bank))
            if found.keys() != expected.keys():
                raise SystemExit(f"The models hold different things: {sorted(found.keys() ^ expected.keys())}.")
            far = max(float(np.abs(found[name] - expected[name]).max()) for name in expected if expected[name].size)
            about = {"bank": bank, "delay_ms": given.delay, "loss_percent": given.loss, "ranks": 2}
            rows: list[dict[str, Any]] = [
                {**about, "what": "largest difference from one process", "value": far, "unit": ""},
                {**about, "what": "three epochs", "value": seconds, "unit": "s"},
            ]
            for row in rows:
                print(f"{bank:12} {row['what']:36} {row['value']:.3g} {row['unit']}", flush=True)
            append_rows(given.out, [row | origin for row in rows])


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(words: list[str]) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr.strip()}")


if __name__ == "__main__":
    parser = benchmark_parser(__doc__, "results/scale_machines.csv")
    parser.add_argument("--delay", type=float, default=50, help="Milliseconds that a packet is held at each end.")
    parser.add_argument("--loss", type=float, default=1, help="Percent of the packets that are dropped at each end.")
    measure(benchmark_options(parser))
