"""``--quick``: every experiment's path in seconds, on generated pictures with the smallest network."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from nngk.data import ImageTable
from nngk.experiments.paper.trial import Trial

CLASSES, IMAGES, SIDE = 8, 10, 16


def quick_table(folder: Path, dataset: str, task: str) -> ImageTable:
    """Return coloured gratings, with a direction and a colour per class, split as the real dataset would be."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, labels, splits = [], [], []
    for label in range(CLASSES):
        for number in range(IMAGES):
            path = folder / f"{label}-{number}.png"
            if not path.exists():
                Image.fromarray(_grating(label, np.random.default_rng([label, number]))).save(path)
            paths.append(path)
            labels.append(label)
            if task == "metric":
                splits.append("train" if label < CLASSES // 2 else "test")
            else:
                splits.append("train" if number < 6 else "val" if number < 8 else "test")
    names = [f"grating {label}" for label in range(CLASSES)]
    return ImageTable(paths, np.array(labels), names, splits, name=dataset, task=task)


def shrink(trial: Trial) -> Trial:
    """Return the same trial with a budget for gratings of 16 pixels."""
    s = trial.settings
    small = replace(
        s,
        dim=None if s.dim is None else max(2, s.dim // 32),
        wide=None if s.wide is None else max(2, s.wide // 32),
        epochs=2,
        patience=1 if s.patience else 0,
        batch_size=8,
        per_class=4 if s.per_class else 0,
        n_neighbours=None if s.n_neighbours is None else min(s.n_neighbours, 10),
        sigma="auto" if isinstance(s.sigma, float) else s.sigma,
        resize=SIDE,
        crop_size=SIDE,
        train_crop_size=None,
        layers=1,
        lr=1e-3,
        val_fraction=0.5 if s.task == "metric" else s.val_fraction,
    )
    return replace(trial, settings=small, rates=(1e-3, 3e-3) if trial.rates else (), examples=min(trial.examples, 4))


def _grating(label: int, rng: np.random.Generator) -> np.ndarray:
    turn = math.pi * label / CLASSES + rng.normal(0, 0.05)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    wave = np.sin(2 * math.pi * 3 * (x * math.cos(turn) + y * math.sin(turn)) + rng.uniform(0, 2 * math.pi))
    colour = 0.5 + 0.5 * np.cos(2 * math.pi * (label / CLASSES + np.arange(3) / 3))
    pixels = 127 + 90 * wave[..., None] * colour + rng.normal(0, 12, (SIDE, SIDE, 3))
    return pixels.clip(0, 255).astype(np.uint8)
