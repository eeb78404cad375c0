"""Do two machines with a slow line between them that loses packets train what one process trains?

    PYTHONPATH=src python benchmarks/scale/two_machines.py [--commit HASH] [--delay 50] [--loss 1]

Each machine is a network namespace of Linux with a tunnel device, and this program is the line between them: it holds
every packet for some milliseconds and drops some, as ``tc`` with netem would in kernels that have it. torchrun starts
an agent with one rank in each. Needs the rights to make namespaces (root). Both kinds of bank are trained for three
epochs, and the weights, the centres, θ and the measures of the model are compared with those that one process leaves.
Rows: results/scale_machines.csv.
"""

import argparse
import contextlib
import fcntl
import json
import os
import queue
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
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


@contextmanager
def machines(delay: float, loss: float, rate: float = 0.0) -> Iterator[list[tuple[list[str], str]]]:
    """Give two machines, each as the words that start a command there and the name of its network device.

    Packets take ``delay`` milliseconds each way, ``loss`` percent are dropped, and ``rate`` megabits a second go
    through; 0 is as fast as it goes.
    """
    names = [f"nngk-{os.getpid()}-{i}" for i in range(2)]
    devices = [f"ng{os.getpid() % 100_000}t{i}" for i in range(2)]
    ends = []
    try:
        for name, device, address in zip(names, devices, ADDRESSES):
            _ip("netns", "add", name)
            ends.append(_tunnel(device))
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "mtu", "9000", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        for here, there in (ends, ends[::-1]):
            line = Line(here, there, delay / 1e3, loss / 100, rate * 1e6 / 8)
            for way in (line.take, line.give):
                threading.Thread(target=way, daemon=True).start()
        yield [(["ip", "netns", "exec", name], device) for name, device in zip(names, devices)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        for end in ends:
            os.close(end)


class Line:
    """One way of a line: packets that come out of one device go into another, late, and some never."""

    def __init__(self, here: int, there: int, delay: float, loss: float, bandwidth: float) -> None:
        self.here, self.there, self.delay, self.loss, self.bandwidth = here, there, delay, loss, bandwidth
        self.held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.random = random.Random(here)

    def take(self) -> None:
        """Read packets for as long as the device is there."""
        free = 0.0  # when the last bit of the packet before has left
        with contextlib.suppress(OSError):
            while packet := os.read(self.here, 1 << 16):
                if self.random.random() < self.loss:
                    continue
                free = max(free, time.monotonic()) + (len(packet) / self.bandwidth if self.bandwidth else 0.0)
                self.held.put((free + self.delay, packet))

    def give(self) -> None:
        """Write packets when their time has come."""
        with contextlib.suppress(OSError):
            while True:
                due, packet = self.held.get()
                time.sleep(max(0.0, due - time.monotonic()))
                os.write(self.there, packet)


def can_make_machines() -> bool:
    """Return whether this process may make network namespaces and tunnels."""
    return not os.geteuid() and shutil.which("ip") is not None and Path("/dev/net/tun").exists()


def _tunnel(device: str) -> int:
    """Make a network device whose packets this process reads and writes."""
    handle = os.open("/dev/net/tun", os.O_RDWR)
    kind = 0x0001 | 0x1000  # IFF_TUN, IFF_NO_PI: IP packets and nothing else
    fcntl.ioctl(handle, 0x400454CA, struct.pack("16sH22x", device.encode(), kind))  # TUNSETIFF
    return handle


def train_there(photos: Path, out: Path, bank: str, delay: float, loss: float) -> float:
    """Train on two machines; return the seconds that it took."""
    with machines(delay, loss) as places:
        started = time.perf_counter()
        agents = []
        for number, ((inside, device), address) in enumerate(zip(places, ADDRESSES)):
            launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two"]
            launch += ["--rdzv-conf", f"is_host={int(not number)}"]  # its name says nothing of this address
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


def far(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two arrays, as a share of their largest value where that is above one."""
    return float(np.abs(one - other).max() / max(1.0, np.abs(other).max()))


def measure(given: argparse.Namespace) -> None:
    """Train in one process and on two machines, with each kind of bank, and write how far they are apart."""
    if not can_make_machines():
        raise SystemExit("This needs root, /dev/net/tun, and the program ip (iproute2).")
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
            apart = {name: far(found[name], one) for name, one in expected.items() if one.size}
            learned = {name: apart[name] for name in apart if name.startswith("network/")}
            learned |= {name: apart[name] for name in ("bank/centres", "bank/theta") if name in apart}
            about = {"bank": bank, "delay_ms": given.delay, "loss_percent": given.loss, "ranks": 2}
            rows: list[dict[str, Any]] = [
                {**about, "what": "largest difference of weights, centres and θ", "value": max(learned.values())},
                {**about, "what": "largest difference of anything in the model", "value": max(apart.values())},
                {**about, "what": "seconds of three epochs", "value": seconds},
            ]
            for row in rows:
                print(f"{bank:12} {row['what']:46} {row['value']:.3g}", flush=True)
            append_rows(given.out, [row | origin for row in rows])


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(words: list[str]) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr.strip()}")


if __name__ == "__main__":
    parser = benchmark_parser(__doc__, "results/scale_machines.csv")
    parser.add_argument("--delay", type=float, default=50, help="Milliseconds that a packet takes each way.")
    parser.add_argument("--loss", type=float, default=1, help="Percent of the packets that are dropped.")
    measure(benchmark_options(parser))
