"""A run that some ranks saved goes on with any other number of them; one whose worker is killed goes on by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nngk.files import read_tensors
from shapes import TINY, environment, flags, write_shapes
from together import together
from together_work import model_of, stopped_after

BASE = {**TINY, "epochs": 3, "val_fraction": 0.25, "test_fraction": 0.25, "optimiser": "sgd", "lr": 0.02, "threads": 1}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=8)


def tensors_of(out):
    files = json.loads((out / "model.json").read_text())["files"]
    found = {f"{kind}/{name}": t for kind, f in files.items() for name, t in read_tensors(out / f["file"]).items()}
    return {name: t.double().numpy() for name, t in found.items() if "thumbnail" not in name}


def require_same_model(out, expected, learned=1e-5, derived=1e-5):
    found = tensors_of(out)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        close = learned if name.startswith("network/") or name in ("bank/centres", "bank/theta") else derived
        np.testing.assert_allclose(tensor, expected[name], rtol=close, atol=close, err_msg=name)


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "model"
    model_of(photos, out, BASE, kind="float64")
    return tensors_of(out)


@pytest.mark.slow
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("bank", ["replicated", "sharded"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2)])
def test_resumed_by_another_number_of_ranks(before, after, bank, network, photos, tmp_path, whole):
    out, values = tmp_path / "model", BASE | {"bank": bank, "shard_network": network}
    assert all(together(before, stopped_after, photos, out, values, 3, "float64"))
    parts = list((out / "run").glob("checkpoint-rows-*"))
    assert len(parts) == (before if (bank == "sharded" or network) and before > 1 else 0)
    assert set(together(after, model_of, photos, out, values, True, "float64")) == {len(whole["bank/labels"])}
    require_same_model(out, whole)
    assert not list((out / "run").glob("checkpoint*"))


@pytest.mark.slow
@pytest.mark.parametrize("bank", ["replicated", "sharded"])
def test_a_killed_worker_is_started_again_and_goes_on(bank, photos, tmp_path):
    out, values = tmp_path / "model", BASE | {"epochs": 15, "bank": bank}
    model_of(photos, tmp_path / "whole", values)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--max-restarts", "2", "-m", "nngk", "train", str(photos), "--out", str(out)]
    words = launcher + flags(**values)
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("epoch   2") and "Resuming" not in said:
                os.kill(worker_of(process.pid), signal.SIGKILL)
        assert process.wait(timeout=240) == 0, said
    assert "Resuming in epoch" in said
    # In float32 fifteen epochs make more of rounding, and a density, with σ in its exponent, more still.
    require_same_model(out, tensors_of(tmp_path / "whole"), learned=5e-5, derived=1e-3)


def worker_of(launcher):
    """Return the process of the second rank."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and _is_second(place, launcher):
            return int(place.name)
    raise AssertionError("no worker is there")


def _is_second(place, launcher):
    try:
        parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        return parent == launcher and b"\0RANK=1\0" in (place / "environ").read_bytes()
    except OSError:
        return False
