"""How many pictures per second does a server classify, and how long does one wait, beside the network alone?

    python benchmarks/serve/load.py [--clients 200] [--seconds 60] [--gallery]

Clients send JPEG files as fast as they are answered, while classes are added one after the other. Each picture is a
centre of the model, so that its class is known: another answer is wrong. The network alone embeds the same pictures,
decoded before, in batches of the same size: in one pass on all cores, and in passes side by side on one core each; the
faster way counts, and its process keeps freed memory and objects as the server does. Load and network take turns, so
that whatever else the machine does touches both; the clients run on the same cores as the server. The milliseconds of
processor time per picture of network, server and clients, and the clients' share of the cores during the load, say
how much of the cores went where. Rows: results/serve.csv.
"""

import argparse
import asyncio
import io
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from nngk import Model, create_network
from nngk.data.decode import fitted
from nngk.device import keep_memory, keep_objects
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.gallery import open_gallery
from nngk.gallery.filling import fill_with_centres

TOKEN = "the-token-of-the-benchmark"
CLASSES, PICTURES = 16, 4  # pictures of each class


def picture(number: int, side: int = 300) -> bytes:
    """Return a picture of coarse patches, as a JPEG."""
    patches = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(patches).resize((side * 4 // 3, side), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def build(network_name: str, weights: str, pictures: list[bytes], folder: Path) -> Model:
    """Write a model whose centres are the pictures."""
    network = create_network(network_name, weights=weights)
    n = len(pictures)
    empty = torch.empty(0)
    blank = Model(
        network,
        centres=torch.empty(0, network.dim),
        labels=empty.long(),
        theta=empty,
        sigma=1.0,
        class_names=[],
        sources=[],
        familiar=empty,
        device="cpu",
    )
    centres = blank.embed([Image.open(io.BytesIO(data)) for data in pictures])
    model = Model(
        network,
        centres=centres,
        labels=torch.arange(n) // PICTURES,
        theta=torch.zeros(n),
        sigma=float(torch.cdist(centres, centres).kthvalue(2, dim=1).values.median()) / 4,
        class_names=[f"class {i}" for i in range(n // PICTURES)],
        sources=[f"{i}.jpg" for i in range(n)],
        familiar=torch.zeros(n),
        device="cpu",
    )
    model.save(folder)
    return model


class Bare:
    """How many decoded pictures per second the network embeds by itself, in either way."""

    def __init__(self, model: Model, pictures: list[bytes], at_once: int, threads: int) -> None:
        spec = model.network.input
        rows = [fitted(Image.open(io.BytesIO(data)), spec.resize, squash=spec.squash) for data in pictures]
        self.batch = (rows * (at_once // len(rows) + 1))[:at_once]
        self.threads, self.replicas = threads, [model.replica() for _ in range(threads)]
        self.done, self.took = {1: 0, threads: 0}, {1: 0.0, threads: 0.0}  # by passes side by side
        self.worked = {1: 0.0, threads: 0.0}  # seconds of processor time

    def measure(self, seconds: float) -> None:
        """Embed for some seconds in each way."""
        for passes in self.done:
            torch.set_num_threads(self.threads // passes)
            start, worked = time.perf_counter(), time.process_time()
            with ThreadPoolExecutor(passes) as pool:
                counts = pool.map(self._until, [start + seconds / len(self.done)] * passes, self.replicas)
            self.done[passes] += sum(counts)
            self.took[passes] += time.perf_counter() - start
            self.worked[passes] += time.process_time() - worked
        torch.set_num_threads(self.threads)

    def _until(self, end: float, model: Model) -> int:
        count = 0
        while time.perf_counter() < end:
            count += len(model.embed(self.batch))
        return count

    def rates(self) -> dict[int, float]:
        """Return pictures per second, by passes side by side."""
        return {passes: self.done[passes] / self.took[passes] for passes in self.done}


def worked(process: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Run ``nngk serve`` and yield its address and process; its log is no part of the question."""
    more = ["--gallery", str(folder.parent / "gallery")] if given.gallery else []
    options = ["--port", 0, "--device", "cpu", "--rate", 0, "--queue", 2 * given.clients, "--timeout", 120]
    process = subprocess.Popen(
        [sys.executable, "-m", "nngk", "serve", folder, *map(str, options), "--batch", str(given.batch), *more],
        env={**os.environ, "NNGK_TOKEN": TOKEN, "OMP_NUM_THREADS": str(given.threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].strip(), process.pid
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def form(fields: dict[str, str], files: list[tuple[str, bytes]]) -> tuple[bytes, dict[str, str]]:
    """Return a multipart body and its headers."""
    head = "--x\r\nContent-Disposition: form-data; name={}{}\r\n\r\n"
    parts = [head.format(name, "").encode() + value.encode() for name, value in fields.items()]
    parts += [head.format(name, "; filename=a.jpg").encode() + data for name, data in files]
    return b"\r\n".join([*parts, b"--x--\r\n"]), {"Content-Type": "multipart/form-data; boundary=x"}


class Load:
    """Clients of a server, and what they have seen."""

    def __init__(self, address: str, process: int, pictures: list[bytes]) -> None:
        where, self.process = urlsplit(address), process
        self.host, self.port = where.hostname or "", where.port or 0
        self.requests = [self._request("/classify", *form({}, [("image", data)])) for data in pictures]
        self.waits: list[float] = []
        self.took, self.end = 0.0, 0.0
        self.worked = self.server_worked = 0.0  # seconds of processor time
        self.wrong = self.errors = self.added = 0

    def _request(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def run(self, clients: int, seconds: float) -> None:
        """Let clients ask for some seconds, while a class is added now and then."""
        asyncio.run(self._run(clients, seconds))

    async def _run(self, clients: int, seconds: float) -> None:
        start, mine, its = time.perf_counter(), time.process_time(), worked(self.process)
        self.end = start + seconds
        await asyncio.gather(self._add(seconds / 4), *(self._ask(number) for number in range(clients)))
        self.took += time.perf_counter() - start
        self.worked += time.process_time() - mine
        self.server_worked += worked(self.process) - its

    async def _post(self, pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> dict:
        reader, writer = pipe
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        said = json.loads(await reader.readexactly(length))
        if b" 200 " not in head[:20]:
            raise ValueError(said)
        return said

    async def _ask(self, number: int) -> None:
        """Ask about one picture after the other until the time is over."""
        rng, pipe = np.random.default_rng(number), await asyncio.open_connection(self.host, self.port)
        while time.perf_counter() < self.end:
            which, start = int(rng.integers(len(self.requests))), time.perf_counter()
            try:
                said = await self._post(pipe, self.requests[which])
            except (OSError, ValueError, EOFError):
                self.errors += 1
                pipe = await asyncio.open_connection(self.host, self.port)
                continue
            self.waits.append(time.perf_counter() - start)
            self.wrong += said["label"] != f"class {which // PICTURES}"
        pipe[1].close()

    async def _add(self, pause: float) -> None:
        """Add a class now and then, each over a connection of its own: a server closes one that is idle."""
        while time.perf_counter() + pause < self.end:
            await asyncio.sleep(pause)
            body, headers = form({"name": secrets.token_hex(8)}, [("images", picture(10_000 + self.added))])
            request = self._request("/classes", body, headers | {"Authorization": f"Bearer {TOKEN}"})
            pipe = await asyncio.open_connection(self.host, self.port)
            try:
                await self._post(pipe, request)
                self.added += 1
            except (OSError, ValueError, EOFError):
                self.errors += 1
            pipe[1].close()


def main() -> None:
    parser = benchmark_parser(__doc__, "results/serve.csv")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=4, help="how often network and load take turns")
    parser.add_argument("--gallery", action="store_true", help="serve the centres from a gallery in a folder")
    given = benchmark_options(parser)
    if given.quick:
        given.clients, given.seconds, given.network, given.weights = 8, 1.5, "small", "random"
        given.rounds = 1
    keep_memory()
    torch.set_num_threads(given.threads)
    pictures = [picture(number) for number in range(CLASSES * PICTURES)]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "model")
        model = build(given.network, given.weights, pictures, folder)
        if given.gallery:
            with open_gallery(str(folder.parent / "gallery"), model, write=True) as gallery:
                fill_with_centres(gallery, model)
        alone = Bare(model, pictures, given.batch, given.threads)
        keep_objects()
        with server(folder, given) as (address, process):
            load = Load(address, process, pictures)
            for _ in range(given.rounds):
                alone.measure(given.seconds / given.rounds / 2)
                load.run(given.clients, given.seconds / given.rounds)
    rates = alone.rates()
    way = max(rates, key=lambda passes: rates[passes])
    best, served = rates[way], len(load.waits) / load.took
    p50, p99 = np.percentile(load.waits, [50, 99])
    row = {
        "network": given.network,
        "clients": given.clients,
        "seconds": round(load.took, 1),
        "answers": len(load.waits),
    }
    row |= {"errors": load.errors, "wrong": load.wrong, "added": load.added}
    row |= {"p50_ms": round(1000 * p50, 1), "p99_ms": round(1000 * p99, 1), "per_second": round(served, 2)}
    row |= {"bare_per_second": round(best, 2), "bare_one_pass_per_second": round(rates[1], 2)}
    row |= {"ratio": round(served / best, 4), "rounds": given.rounds, "gallery": "folder" if given.gallery else "none"}
    row |= {"threads": given.threads, "batch": given.batch}
    times = {"bare": alone.worked[way] / alone.done[way], "server": load.server_worked / len(load.waits)}
    times["clients"] = load.worked / len(load.waits)
    row |= {f"{name}_cpu_ms": round(1000 * value, 2) for name, value in times.items()}
    row["clients_share"] = round(load.worked / (load.took * given.threads), 4)
    append_rows(given.out, [row | provenance(commit=given.commit)])
    print(
        f"{given.clients} clients: {served:.1f} pictures/s, {served / best:.0%} of the network alone ({best:.1f}); "
        f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms; {load.added} classes added, {load.errors} errors, "
        f"{load.wrong} wrong; ms of processor time per picture: "
        + ", ".join(f"{name} {1000 * value:.1f}" for name, value in times.items())
    )


if __name__ == "__main__":
    main()
