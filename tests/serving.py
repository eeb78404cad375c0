"""A model of coloured pictures, made in a moment, and the server in a process of its own."""

import contextlib
import io
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image

from nngk import Model, create_network
from nngk.networks.input_spec import InputSpec
from shapes import command, environment

TOKEN = "a-token-for-the-tests"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
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


@contextlib.contextmanager
def serving(folder: Path, *options: str, token: str | None = TOKEN, stop: bool = True) -> Iterator["Server"]:
    """Run ``nngk serve`` on a free port and stop it at the end."""
    surroundings = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    surroundings.pop("NNGK_TOKEN", None)
    if token is not None:
        surroundings["NNGK_TOKEN"] = token
    log = folder.parent / "server.log"
    with log.open("a") as lines:
        process = subprocess.Popen(
            command("serve", folder, "--port", 0, *options),
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
        )
    try:
        said = process.stdout.readline()
        assert " at http://" in said, log.read_text()
        yield Server(process, said.split(" at ")[1].strip().split("#")[0], said, log)
        if stop:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Server:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen, address: str, said: str, log: Path) -> None:
        self.process, self.address, self.said, self.log = process, address, said, log

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False, **options)


def browser() -> str | None:
    import shutil

    return shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CHROMIUM")
