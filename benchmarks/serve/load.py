"""How many pictures per second does a server classify, and how long does one wait, beside the network alone?

    python benchmarks/serve/load.py [--clients 200] [--seconds 60]

Clients send JPEG files as fast as they are answered, while classes are added one after the other. Each picture is a
centre of the model, so that its class is known: another answer is wrong. The network alone embeds the same pictures,
decoded before, in batches of the same size, before and after the load in the same run. Rows: results/serve.csv.
"""

import argparse
import http.client
import io
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from nngk import Model, create_network
from nngk.data.decode import fitted
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

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


def bare(model: Model, pictures: list[bytes], seconds: float, at_once: int) -> float:
    """Return how many decoded pictures per second the network embeds, one batch after the other."""
    spec = model.network.input
    rows = [fitted(Image.open(io.BytesIO(data)), spec.resize, squash=spec.squash) for data in pictures]
    batch = (rows * (at_once // len(rows) + 1))[:at_once]
    model.embed(batch)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += len(model.embed(batch))
    return done / (time.perf_counter() - start)


@contextmanager
def server(folder: Path, given: argparse.Namespace) -> Iterator[str]:
    """Run ``nngk serve`` and yield its address; its log is no part of the question."""
    options = ["--port", 0, "--device", "cpu", "--rate", 0, "--queue", 2 * given.clients, "--timeout", 120]
    process = subprocess.Popen(
        [sys.executable, "-m", "nngk", "serve", folder, *map(str, options), "--batch", str(given.batch)],
        env={**os.environ, "NNGK_TOKEN": TOKEN, "OMP_NUM_THREADS": str(given.threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].strip()
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
    """What clients have seen."""

    def __init__(self, address: str, pictures: list[bytes], end: float) -> None:
        where = urlsplit(address)
        self.host, self.port, self.end = where.hostname or "", where.port or 0, end
        self.pictures = pictures
        self.waits: list[float] = []
        self.wrong = self.errors = self.added = 0

    def post(self, connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> dict:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        said = json.loads(response.read())
        if response.status != 200:
            raise ValueError(said)
        return said

    def ask(self, number: int) -> None:
        """Ask about one picture after the other until the time is over."""
        rng, connection = np.random.default_rng(number), http.client.HTTPConnection(self.host, self.port, timeout=120)
        while time.perf_counter() < self.end:
            which, start = int(rng.integers(len(self.pictures))), time.perf_counter()
            try:
                said = self.post(connection, "/classify", *form({}, [("image", self.pictures[which])]))
            except (OSError, ValueError, http.client.HTTPException):
                self.errors += 1
                continue
            self.waits.append(time.perf_counter() - start)
            self.wrong += said["label"] != f"class {which // PICTURES}"

    def add(self, pause: float) -> None:
        """Add a class now and then."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        while time.perf_counter() + pause < self.end:
            time.sleep(pause)
            body, headers = form({"name": secrets.token_hex(8)}, [("images", picture(10_000 + self.added))])
            try:
                self.post(connection, "/classes", body, headers | {"Authorization": f"Bearer {TOKEN}"})
                self.added += 1
            except (OSError, ValueError, http.client.HTTPException):
                self.errors += 1


def put_under_load(address: str, pictures: list[bytes], clients: int, seconds: float) -> tuple[Load, float]:
    """Return what the clients saw, and how many seconds they took."""
    start = time.perf_counter()
    load = Load(address, pictures, start + seconds)
    threads = [threading.Thread(target=load.ask, args=(number,)) for number in range(clients)]
    threads.append(threading.Thread(target=load.add, args=(seconds / 10,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load, time.perf_counter() - start


def main() -> None:
    parser = benchmark_parser(__doc__, "results/serve.csv")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = benchmark_options(parser)
    if given.quick:
        given.clients, given.seconds, given.network, given.weights = 8, 1.5, "small", "random"
    torch.set_num_threads(given.threads)
    pictures = [picture(number) for number in range(CLASSES * PICTURES)]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "model")
        model = build(given.network, given.weights, pictures, folder)
        with server(folder, given) as address:
            first = bare(model, pictures, given.seconds / 4, given.batch)
            load, took = put_under_load(address, pictures, given.clients, given.seconds)
            second = bare(model, pictures, given.seconds / 4, given.batch)
    alone, served = (first + second) / 2, len(load.waits) / took
    p50, p99 = np.percentile(load.waits, [50, 99])
    row = {"network": given.network, "clients": given.clients, "seconds": round(took, 1), "answers": len(load.waits)}
    row |= {"errors": load.errors, "wrong": load.wrong, "added": load.added}
    row |= {"p50_ms": round(1000 * p50, 1), "p99_ms": round(1000 * p99, 1), "per_second": round(served, 2)}
    row |= {"bare_per_second": round(alone, 2), "ratio": round(served / alone, 4)}
    row |= {"threads": given.threads, "batch": given.batch}
    append_rows(given.out, [row | provenance(commit=given.commit)])
    print(
        f"{given.clients} clients: {served:.1f} pictures/s, {served / alone:.0%} of the network alone ({alone:.1f}); "
        f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms; {load.added} classes added, {load.errors} errors, "
        f"{load.wrong} wrong"
    )


if __name__ == "__main__":
    main()
