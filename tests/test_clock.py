"""A clock that jumps by years, back and forth, changes nothing that is saved, cached or read."""

import itertools
import os
import time

import numpy as np
import torch
from PIL import Image

from faults import count
from nngk.data import Images, fitted, read_images
from nngk.model.model import Model
from small_models import difference, small_model

YEARS = 10 * 365 * 86_400


def test_a_clock_that_jumps(tmp_path, monkeypatch):
    now, jumps = time.time(), itertools.cycle((0, YEARS, -YEARS, YEARS, -YEARS))

    def jumping():
        count()
        return now + next(jumps)

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    photos, rng = tmp_path / "photos", np.random.default_rng(0)
    for number, year in enumerate((0, now + YEARS, 1.0)):  # now, in the future, and long ago
        path = photos / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
        os.utime(path, (year, year))
    for _ in range(3):  # what is older than before is new all the same
        table = read_images(photos)
        images = Images(table, 8, tmp_path / "cache")
        assert all(torch.equal(images[i], fitted(path, 8)) for i, path in enumerate(table.paths))
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(table.paths[0])
        os.utime(table.paths[0], (2.0, 2.0 + rng.integers(100)))
    model = small_model()
    for year in (now + YEARS, 1.0):
        model.save(tmp_path / "model")
        for path in (tmp_path / "model").iterdir():
            os.utime(path, (year, year))
        model = Model.load(tmp_path / "model")
        assert difference(model, small_model()) is None
        with Model.changing(tmp_path / "model") as changed:
            changed.add("new", np.zeros((9, 9, 3), np.uint8))
            changed.remove("new")
        model = Model.load(tmp_path / "model")
