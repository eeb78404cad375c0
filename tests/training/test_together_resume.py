"""A run that some ranks saved goes on with any other number of them; one whose worker is killed goes on by itself."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nngk.files import read_tensors
from shapes import TINY, environment, flags, write_shapes
from together import together
from together_work import model_of, moved_weights, stopped_after

BASE = {**TINY, "epochs": 3, "val_fraction": 0.25, "test_fraction": 0.25, "optimiser": "sgd", "lr": 0.02, "threads": 1}
KINDS = ("float32", "float64")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=8)


def learned_in(out):
    """Return the tensors of a model, its σ and its scores."""
    said = json.loads((out / "model.json").read_text())
    found = {
        f"{kind}/{name}": t for kind, f in said["files"].items() for name, t in read_tensors(out / f["file"]).items()
    }
    found = {name: t.double().numpy() for name, t in found.items() if "thumbnail" not in name}
    return found | {"sigma": np.array(said["sigma"]), "test": np.array([*said["info"]["test"].values()])}


def is_learned(name):
    return name.startswith("network/") or name in ("bank/centres", "bank/theta", "bank/labels")


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """Return what trains one process, and says what it learned and how near to that others have to come.

    That is 1e-5, but for what is computed in float32 from what was learned: σ of few images, the densities that have it
    in their exponent, and coordinates along directions in which images hardly differ. How much rounding becomes there
    is found by moving the first weights of the one process by rounding; others round in every step, so that they may
    come to lie some times as far off. In float64 it is never more than 1e-5.
    """

    @cache
    def trained(kind, epochs=BASE["epochs"]):
        def model(seed):
            out = tmp_path_factory.mktemp("whole") / "model"
            with moved_weights(seed):
                model_of(photos, out, BASE | {"epochs": epochs}, kind=kind)
            return learned_in(out)

        expected, *moved = [model(seed) for seed in range(4)]
        close = dict.fromkeys(expected, 1e-5)
        for name in (name for name in expected if not is_learned(name)):
            rounding = max(np.abs(each[name] - expected[name]).max(initial=0) for each in moved)
            close[name] = min(max(1e-5, 4 * rounding), 1e-3)
        assert kind == "float32" or set(close.values()) == {1e-5}
        return expected, close

    return trained


def require_same_model(out, expected, close):
    found = learned_in(out)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=close[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("bank", ["replicated", "sharded"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2)])
def test_resumed_by_another_number_of_ranks(before, after, bank, network, kind, photos, tmp_path, whole):
    out, values = tmp_path / "model", BASE | {"bank": bank, "shard_network": network}
    assert all(together(before, stopped_after, photos, out, values, 3, kind))
    parts = list((out / "run").glob("checkpoint-rows-*"))
    assert len(parts) == (before if (bank == "sharded" or network) and before > 1 else 0)
    expected, close = whole(kind)
    assert set(together(after, model_of, photos, out, values, True, kind)) == {len(expected["bank/labels"])}
    require_same_model(out, expected, close)
    assert not list((out / "run").glob("checkpoint*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bank", ["replicated", "sharded"])
def test_a_killed_worker_is_started_again_and_goes_on(bank, kind, photos, tmp_path, whole):
    out, values = tmp_path / "model", BASE | {"epochs": 15, "bank": bank}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--max-restarts", "2", str(Path(__file__).parents[1] / "nngk_in.py"), kind]
    words = [*launcher, "train", str(photos), "--out", str(out), *flags(**values)]
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("epoch   2") and "Resuming" not in said:
                os.kill(worker_of(process.pid), signal.SIGKILL)
        assert process.wait(timeout=240) == 0, said
    assert "Resuming in epoch" in said
    require_same_model(out, *whole(kind, values["epochs"]))


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
