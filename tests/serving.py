"""A model of coloured pictures, made in a moment, and the server in a process of its own."""

import contextlib
import io
import json
import logging
import multiprocessing as mp
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch
from PIL import Image

from nngk import Model, create_network
from nngk.networks.input_spec import InputSpec
from nngk.web.limits import Limits
from nngk.web.server import serve

FORK = mp.get_context("fork")
FREE = Limits(rate=0)
TOKEN = "a-token-for-the-tests"
COLOURS = {
    "red": (200, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 70, 200),
    "yellow": (230, 210, 50),
    "violet": (150, 50, 170),
}


def coloured(name: str, number: int, side: int = 32) -> Image.Image:
    """Return picture ``number`` of a colour: the colour with noise."""
    rng = np.random.default_rng([number, sorted(COLOURS).index(name)])
    noise = rng.normal(0, 12, (side, side, 3)) + rng.normal(0, 8, 3)
    return Image.fromarray(np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8))


def encoded_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def png(name: str, number: int) -> bytes:
    return encoded_png(coloured(name, number))


def write_colours(folder: Path, names: tuple[str, ...] = ("red", "green", "blue"), count: int = 12) -> Path:
    """Write pictures of colours, one folder for each."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            coloured(name, number).save(folder / name / f"{number:02d}.png")
    return folder


def write_model(home: Path) -> Path:
    """Write a model that tells red, green and blue apart: a network of random weights, and the pictures as centres."""
    torch.manual_seed(0)
    photos = write_colours(home / "photos")
    network = create_network("small", dim=8, weights="random")
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 24, "resize": 24})
    paths = sorted(photos.rglob("*.png"))
    names = sorted({path.parent.name for path in paths})
    empty = Model(
        network,
        centres=torch.empty(0, 8),
        labels=torch.empty(0, dtype=torch.int64),
        theta=torch.empty(0),
        sigma=1.0,
        class_names=[],
        sources=[],
        familiar=torch.empty(0),
    )
    centres = empty.embed(paths)
    spread = torch.cdist(centres, centres).kthvalue(4, dim=1).values.median()  # to the third other picture
    model = Model(
        network,
        centres=centres,
        labels=torch.tensor([names.index(path.parent.name) for path in paths]),
        theta=torch.zeros(len(paths)),
        sigma=float(spread),
        class_names=names,
        sources=[str(path) for path in paths],
        familiar=torch.empty(0),
        n_neighbours=20,
    )
    held_out = model.embed([coloured(name, 1000 + i) for name in names for i in range(30)])
    model = Model(
        network,
        centres=centres,
        labels=model.labels,
        theta=model.theta,
        sigma=model.sigma,
        class_names=names,
        sources=model.sources,
        familiar=model.predict(held_out).log_density,
        n_neighbours=20,
        info={"task": "classify", "data": "colours"},
    )
    model.save(home / "model")
    return home / "model"


class Server:
    """A server that runs."""

    def __init__(self, address: str, pid: int, log: Path) -> None:
        self.address, self.pid, self.log = address, pid, log

    def client(self, token: str | None = TOKEN) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False, headers=headers)

    def said(self) -> list[dict]:
        """Return the lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    token: str | None = TOKEN,
    limits: Limits = FREE,
    gallery: str | None = None,
    dies: bool = False,
) -> Iterator[Server]:
    """Run a server in a process of its own, with the packages that are loaded already, and stop it at the end."""
    log = folder.parent / "server.log"
    hear, tell = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_serve, args=(folder, token, limits, gallery, log, tell), daemon=True)
    process.start()
    tell.close()
    try:
        assert hear.poll(60), "the server does not start"
        yield Server(hear.recv(), process.pid, log)
        if not dies:
            os.kill(process.pid, signal.SIGTERM)
            process.join(30)
            assert process.exitcode == 0, log.read_text()
    finally:
        process.kill()
        process.join()
        hear.close()


def _serve(folder: Path, token: str | None, limits: Limits, gallery: str | None, log: Path, tell: Connection) -> None:
    with log.open("a") as lines:
        os.dup2(lines.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger().handlers.clear()  # pytest's, which a server does not have
    serve(
        folder,
        host="127.0.0.1",
        port=0,
        device="cpu",
        token=token,
        limits=limits,
        gallery=gallery,
        started=tell.send,
    )


def raw(server: Server, request: bytes | Iterable[bytes], patience: float = 5.0, pause: float = 0.0) -> bytes:
    """Send bytes as they are, or piece by piece, and return what comes back until the server closes or is silent."""
    where, out = urlsplit(server.address), b""
    with socket.create_connection((where.hostname, where.port), timeout=patience) as connection:
        try:
            for piece in [request] if isinstance(request, bytes) else request:
                connection.sendall(piece)
                time.sleep(pause)
        except OSError:  # the server has closed; what it said is there
            pass
        try:
            while data := connection.recv(65536):
                out += data
        except (TimeoutError, ConnectionResetError):
            pass
    return out


def teach(client: httpx.Client, name: str, colour: str, numbers: Iterable[int]) -> httpx.Response:
    return client.post("/classes", data={"name": name}, files=[("images", png(colour, n)) for n in numbers])


def classify(client: httpx.Client, colour: str, number: int) -> dict:
    answer = client.post("/classify", files={"image": png(colour, number)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder besides the lock of its writers."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"}
