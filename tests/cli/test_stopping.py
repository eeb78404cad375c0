"""Ctrl-C and kill -9 against a real process; what is left carries the run to the end it would have had."""

import json
import signal
import subprocess

import pytest

import forked
from nngk.files import read_tensors
from shapes import TINY, command, flags, nngk, write_shapes

SETTINGS = {**TINY, "epochs": 25, "patience": 0, "dropout": 0.2, "update_interval": "7 steps", "sigma": "learned"}
CLOCKS = {"images_per_second", "refresh_seconds"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("stopping")
    write_shapes(home / "shapes", ("disc", "frame", "cross", "stripes"), count=12)
    done = nngk("train", home / "shapes", "--out", home / "whole", *flags(**SETTINGS))
    assert done.returncode == 0, done.stderr
    return home


def outcome(out):
    record = json.loads((out / "model.json").read_text())
    tensors = {(k, n): t for k, f in record["files"].items() for n, t in read_tensors(out / f["file"]).items()}
    log = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
    return tensors, record["sigma"], [{k: v for k, v in row.items() if k not in CLOCKS} for row in log]


def start(home, out):
    """The process, once it is in the middle of training."""
    process = forked.Started(["-m", "nngk", "train", home / "shapes", "--out", out, *flags(**SETTINGS)])
    process.until("epoch   3 ", stream=2)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
@pytest.mark.thorough
def test_a_stopped_process_is_resumed_to_the_same_end(home, tmp_path, how):
    out = tmp_path / "cut"
    process = start(home, out)
    process.send_signal(how)
    done = process.wait()
    assert "Traceback" not in done.stderr and done.stdout == "" and not (out / "model.json").exists()
    if how != signal.SIGKILL:
        assert done.returncode == 130
        assert "Stopping after this step" in done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert "everything saved" in last and "the same command and --resume" in last
    else:
        assert done.returncode == -signal.SIGKILL
    state = json.loads((out / "run" / "checkpoint.json").read_text())["state"]
    assert 1 <= state["epoch"] < SETTINGS["epochs"]  # not every epoch is saved where that takes long

    done = nngk("train", home / "shapes", "--out", out, *flags(**SETTINGS), "--resume")
    assert done.returncode == 0, done.stderr
    assert f"Resuming in epoch {state['epoch'] + 1} of 25" in done.stderr
    (tensors, sigma, log), (want, want_sigma, want_log) = outcome(out), outcome(home / "whole")
    assert tensors.keys() == want.keys()
    apart = {k: float((tensors[k].double() - want[k].double()).abs().max()) for k in want}
    assert not any(apart.values()), {k: by for k, by in apart.items() if by}
    assert sigma == want_sigma and log == want_log


def test_ctrl_c_twice_stops_at_once():
    """The second one is not swallowed, and the first one's handler is put back afterwards."""
    from nngk.training.loop import _stop_on_ctrl_c

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _stop_on_ctrl_c() as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_two_processes_train_one_model_and_stop_together(home, tmp_path):
    """The launcher is told to stop; both ranks save after the same step, and one process goes on."""
    words = [*flags(**SETTINGS | {"dropout": 0.0}), "--threads", "1"]
    line = command("train", home / "shapes", "--out", tmp_path / "m", *words, "--devices", "2")
    with subprocess.Popen(line, env=forked.environment(), stderr=subprocess.PIPE, text=True) as process:
        for said in process.stderr:
            if said.startswith("epoch   3 "):
                process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 130
    assert (tmp_path / "m" / "run" / "checkpoint.json").exists() and not (tmp_path / "m" / "model.json").exists()
    done = nngk("train", home / "shapes", "--out", tmp_path / "m", *words, "--resume")
    assert done.returncode == 0 and "Resuming in epoch" in done.stderr, done.stderr
