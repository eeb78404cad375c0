"""A run that was stopped and resumed is the run that was not stopped, bit for bit."""

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nngk.data import read_images
from nngk.errors import InputError
from nngk.files import read_tensors, write_record
from nngk.training import loop
from nngk.training.loop import Interrupted, train
from nngk.training.settings import Settings
from shapes import TINY, write_shapes

TIMES = {"images_per_second", "refresh_seconds"}
VARIANTS = {
    "plain": {},
    "dropout, learned sigma, lists renewed every 3 steps": {
        "dropout": 0.4,
        "sigma": "learned",
        "update_interval": "3 steps",
    },
    "sgd, sigma by validation, every 2 epochs": {
        "optimiser": "sgd",
        "lr": 0.01,
        "sigma": "validation",
        "update_interval": 2,
    },
    "frozen network on cached features": {"freeze": True, "dropout": 0.2, "lr": 1e-2},
    "metric, balanced batches, all centres": {"task": "metric", "per_class": 2, "batch_size": 4, "n_neighbours": 0},
    "softmax": {"loss": "softmax"},
    "a floor, sigma on its way": {"floor": 1e-10, "sigma": 0.3, "sigma_end": 0.6, "n_neighbours": 3, "guaranteed": 0},
}
STEPS = 6  # 3 epochs of 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_images(write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=8))


def settings(**changes):
    return Settings(**{**TINY, "epochs": 3, "val_fraction": 0.25, "test_fraction": 0.25, "patience": 0, **changes})


def stop_after(monkeypatch, steps):
    """Ctrl-C, as the loop sees it, in step number ``steps`` of this process."""

    @contextmanager
    def counted():
        seen = 0

        def stopping():
            nonlocal seen
            seen += 1
            return seen == steps

        yield stopping

    monkeypatch.setattr(loop, "_stop_on_ctrl_c", counted)


def outcome(out):
    """Everything a run leaves: the model's tensors and record, and the log without its clocks."""
    record = json.loads((out / "model.json").read_text())
    files = record.pop("files")
    tensors = {f"{kind}/{k}": t for kind, f in files.items() for k, t in read_tensors(out / f["file"]).items()}
    record["info"].pop("seconds")
    record.pop("checksum")
    log = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
    return tensors, record, [{k: v for k, v in row.items() if k not in TIMES} for row in log]


def assert_same(out, expected):
    (tensors, record, log), (want_tensors, want_record, want_log) = outcome(out), expected
    assert tensors.keys() == want_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, want_tensors[name]), name
    assert record == want_record
    assert log == want_log


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.thorough
def test_stopped_after_every_single_step(variant, data, tmp_path, monkeypatch):
    s = settings(**VARIANTS[variant])
    train(data, s, out=tmp_path / "whole")
    steps = outcome(tmp_path / "whole")[2][-1]["step"]
    assert steps >= STEPS / 2
    stop_after(monkeypatch, 1)
    stops = 0
    while True:
        try:
            train(data, s, out=tmp_path / "cut", resume=stops > 0)
            break
        except Interrupted as stopped:
            assert "--resume" in str(stopped) and "saved" in str(stopped)
            stops += 1
    assert stops == steps
    assert_same(tmp_path / "cut", outcome(tmp_path / "whole"))


@pytest.mark.parametrize("step", range(1, STEPS + 1))
@pytest.mark.thorough
def test_stopped_once_anywhere(step, data, tmp_path, monkeypatch, whole):
    stop_after(monkeypatch, step)
    with pytest.raises(Interrupted, match=f"Stopped in epoch {(step + 1) // 2}"):
        train(data, settings(), out=tmp_path / "cut")
    assert not (tmp_path / "cut" / "model.json").exists()
    stop_after(monkeypatch, 0)
    train(data, settings(), out=tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", whole)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    train(data, settings(), out=out)
    return outcome(out)


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing is cleaned up after it."""


@pytest.mark.parametrize("write", range(1, 15))
@pytest.mark.thorough
def test_killed_before_any_write(write, data, tmp_path, monkeypatch, whole):
    """The process dies just before its n-th file is renamed into place; what is there carries the run to its end."""
    seen, real = 0, os.replace

    def mortal(part, path):
        nonlocal seen
        if "images" not in Path(path).parts:  # the cache of decoded images has writes of its own
            seen += 1
            if seen == write:
                raise Killed
        real(part, path)

    monkeypatch.setattr(os, "replace", mortal)
    with pytest.raises(Killed):
        train(data, settings(), out=tmp_path / "cut")
    monkeypatch.undo()
    resume = (tmp_path / "cut" / "run" / "checkpoint.json").exists()
    train(data, settings(), out=tmp_path / "cut", resume=resume)
    assert_same(tmp_path / "cut", whole)


@pytest.fixture
def cut(data, tmp_path, monkeypatch):
    """A run that was stopped in its third step."""
    stop_after(monkeypatch, 3)
    with pytest.raises(Interrupted):
        train(data, settings(), out=tmp_path / "cut")
    stop_after(monkeypatch, 0)
    return tmp_path / "cut"


def test_an_unfinished_run_is_not_overwritten(cut, data):
    with pytest.raises(InputError, match=r"unfinished run. Continue it with --resume"):
        train(data, settings(), out=cut)


@pytest.mark.thorough
def test_settings_of_the_run_are_kept(cut, data, whole):
    train(data, Settings(device="cpu"), out=cut, resume=True)
    assert_same(cut, whole)


def test_a_default_that_was_asked_for_is_no_default(cut, data):
    with pytest.raises(InputError, match=r"another epochs \(3, now 20\)"):
        train(data, Settings(device="cpu", epochs=20), out=cut, resume=True, named=["epochs", "device"])


def test_other_settings_are_refused(cut, data):
    with pytest.raises(InputError, match=r"another lr \(0.001, now 0.5\).*its own settings"):
        train(data, settings(lr=0.5), out=cut, resume=True)


@pytest.mark.thorough
def test_other_images_are_refused(cut, data, tmp_path):
    kinds = ("disc", "frame", "cross", "stripes")
    fewer = read_images(write_shapes(tmp_path / "fewer", kinds, count=7))
    with pytest.raises(InputError, match=r"other settings or data|other images"):
        train(fewer, settings(), out=cut, resume=True)
    renamed = read_images(write_shapes(tmp_path / "renamed", kinds, count=8))
    for path in renamed.paths:
        path.rename(path.with_name(f"other-{path.name}"))
    with pytest.raises(InputError, match="started with other images"):
        train(tmp_path / "renamed", settings(), out=cut, resume=True)


def test_other_boxes_are_refused(cut, data):
    boxed = replace(data, boxes=np.tile(np.array([1.0, 1.0, 9.0, 9.0], dtype=np.float32), (len(data), 1)))
    with pytest.raises(InputError, match="other images"):
        train(boxed, settings(), out=cut, resume=True)


def test_nothing_to_resume(data, tmp_path):
    with pytest.raises(InputError, match=r"no run to resume.*without --resume"):
        train(data, settings(), out=tmp_path / "none", resume=True)


@pytest.mark.parametrize("damage", ["json", "keys", "tensors", "missing"])
@pytest.mark.thorough
def test_damaged_checkpoints_are_refused(damage, cut, data):
    record = cut / "run" / "checkpoint.json"
    (tensors,) = (cut / "run").glob("checkpoint-*.safetensors")
    if damage == "json":
        record.write_text(record.read_text()[:-20])
    elif damage == "keys":
        record.write_text("{}")
    elif damage == "tensors":
        tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    else:
        tensors.unlink()
    with pytest.raises(InputError, match=r"damaged|missing"):
        train(data, settings(), out=cut, resume=True)


@pytest.mark.thorough
def test_leftovers_are_removed(cut, data):
    (cut / "run" / "..checkpoint.new.7.part").write_bytes(b"cut while it was written")
    train(data, settings(), out=cut, resume=True)
    left = {path.name for path in (cut / "run").iterdir()} - {"images", ".training"}
    assert left == {"log.csv", "log.jsonl", "settings.json"}


@pytest.mark.thorough
def test_a_checkpoint_of_the_same_step_is_never_overwritten(data, tmp_path, monkeypatch, whole):
    """Stopped in the last step of an epoch, resumed, and then the disk is full while the epoch's end is saved."""
    stop_after(monkeypatch, 2)
    with pytest.raises(Interrupted):
        train(data, settings(), out=tmp_path / "cut")
    stop_after(monkeypatch, 0)

    def full(path, value):
        if path.name == "checkpoint.json":
            raise OSError(28, "No space left on device")
        return write_record(path, value)

    with monkeypatch.context() as patch:
        patch.setattr("nngk.training.checkpoint.write_record", full)
        with pytest.raises(OSError, match="No space"):
            train(data, settings(), out=tmp_path / "cut", resume=True)
    train(data, settings(), out=tmp_path / "cut", resume=True)
    assert_same(tmp_path / "cut", whole)


def decided_by_the_machine(frozen):
    return lambda settings, network, device: frozen if settings.freeze is None else settings.freeze


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.thorough
def test_where_it_goes_on_does_not_decide_what_is_trained(here, data, tmp_path, monkeypatch):
    """A pretrained network is frozen on a CPU and trained on a GPU, unless the run has already decided."""
    monkeypatch.setattr("nngk.training.build.is_frozen", decided_by_the_machine(here))
    stop_after(monkeypatch, 3)
    with pytest.raises(Interrupted):
        train(data, settings(), out=tmp_path / "cut")
    stop_after(monkeypatch, 0)
    monkeypatch.setattr("nngk.training.build.is_frozen", decided_by_the_machine(not here))
    model = train(data, settings(), out=tmp_path / "cut", resume=True)
    assert model.info["frozen"] is here and model.info["settings"]["freeze"] is here
