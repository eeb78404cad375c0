"""Folders of tiny coloured shapes, and the settings that train on them in a second."""

import sys

import numpy as np
from PIL import Image

import forked
from forked import environment as environment

COLOURS = {"disc": (210, 60, 50), "frame": (60, 180, 70), "cross": (60, 80, 210), "stripes": (200, 190, 40)}
# The smallest run that goes through everything.
TINY = {
    "network": "small",
    "weights": "random",
    "dim": 8,
    "resize": 18,
    "crop_size": 16,
    "epochs": 2,
    "batch_size": 8,
    "lr": 1e-3,
    "n_neighbours": 6,
    "hold_out": True,
    "device": "cpu",
}


def picture(kind, rng, size=16):
    """One shape somewhere on a noisy ground, uint8 (size, size, 3)."""
    y, x = np.mgrid[:size, :size]
    cy, cx = rng.uniform(size * 0.35, size * 0.65, 2)
    r = rng.uniform(size * 0.2, size * 0.32)
    far = np.maximum(abs(y - cy), abs(x - cx))
    mask = {
        "disc": (y - cy) ** 2 + (x - cx) ** 2 < r**2,
        "frame": (far < r) & (far > r - 2),
        "cross": (far < r) & (np.minimum(abs(y - cy), abs(x - cx)) < 1.2),
        "stripes": (far < r) & (y % 4 < 2),
    }[kind]
    image = rng.normal(110, 25, (size, size, 3))
    image[mask] = np.array(COLOURS[kind]) + rng.normal(0, 25, (int(mask.sum()), 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def write_shapes(folder, kinds=("disc", "frame", "cross"), count=12, size=16, seed=0):
    """A folder with one sub-folder per shape."""
    rng = np.random.default_rng(seed)
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(picture(kind, rng, size)).save(folder / kind / f"{i:02d}.png")
    return folder


def flags(**settings):
    """Settings as command-line options."""
    out = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        out += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return out


def command(*arguments):
    """The words of the command line for a process that starts from nothing."""
    return [sys.executable, "-m", "nngk", *map(str, arguments)]


def nngk(*arguments, **options):
    """Run the command line in a process that has imported PyTorch already, and wait for it."""
    return forked.run(["-m", "nngk", *arguments], **options)
