"""The profile of a run: its stages add up to its steps, and the files can be read."""

import csv
import gzip
import json
import time

import pytest
import torch

from nngk.data import read_images
from nngk.training.loop import train
from nngk.training.profile import STAGES, StepProfile
from nngk.training.settings import Settings
from shapes import TINY, write_shapes


def read(folder):
    with (folder / "profile.csv").open(newline="", encoding="utf-8") as file:
        return {row["stage"]: row for row in csv.DictReader(file)}


@pytest.mark.thorough
def test_a_profiled_run(tmp_path):
    data = read_images(write_shapes(tmp_path / "shapes", ("disc", "frame"), count=10))
    train(data, Settings(**{**TINY, "epochs": 3, "patience": 0}), out=tmp_path / "m", profile=True)
    folder = tmp_path / "m" / "run" / "profile"
    rows = read(folder)
    assert {"data", "forward", "loss", "backward", "optimiser", "step"} <= rows.keys()
    assert any(name.startswith("refresh, spread over") for name in rows)
    parts = sum(float(rows[name]["host_ms"]) for name in (*STAGES, "the rest") if name in rows)
    assert 0 < parts <= float(rows["step"]["host_ms"]) * 1.001
    assert "forward" in (folder / "profile.txt").read_text(encoding="utf-8")
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert any(event.get("name") == "nngk: backward" for event in events)


def test_stages_are_timed_after_the_warm_up_only(tmp_path):
    profile = StepProfile(tmp_path / "p", torch.device("cpu"), warm=2, steps=3)
    for number in range(8):
        with profile.stage("forward"):
            time.sleep(0.2 if number < 2 else 0.01)
        profile.step()
    assert profile.finish(refresh_seconds=0.5, every=10) is not None
    rows = read(tmp_path / "p")
    assert len(profile.spans["forward"]) == 3
    assert 10 <= float(rows["forward"]["host_ms"]) < 100
    assert float(rows["refresh, spread over 10 steps"]["host_ms"]) == pytest.approx(50)
    assert float(rows["forward"]["share"]) > 0.5


def test_too_few_steps(tmp_path):
    profile = StepProfile(tmp_path / "p", torch.device("cpu"), warm=2, steps=3)
    profile.step()
    profile.step()
    assert profile.finish() is None
    assert not (tmp_path / "p" / "profile.csv").exists()


def test_timing_a_loader_changes_nothing(tmp_path):
    profile = StepProfile(tmp_path / "p", torch.device("cpu"), warm=1, steps=1)
    assert list(profile.loading(iter([1, 2, 3]))) == [1, 2, 3]
