"""The files of a run: whole or as they were, checked when they are read, and one training per folder."""

import errno
import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from faults import after_power_cuts, count, failing, fill, killed, watched
from nngk.errors import InputError
from nngk.files import read_tensors, write_named_tensors, write_record
from nngk.training.checkpoint import load_checkpoint, only_training, read_settings, save_checkpoint, write_settings
from nngk.training.log import RunLog, read_log
from nngk.training.loop import train
from runs import settings as run_settings
from shapes import write_shapes


@dataclass
class State:
    epoch: int = 0
    score: list[float] = field(default_factory=list)


def pieces(seed=0):
    torch.manual_seed(seed)
    modules = {"network": nn.Linear(3, 2), "objective": nn.Linear(2, 2)}
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimiser = torch.optim.AdamW(parameters)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimiser.step()
    return modules, optimiser


def save(folder, epoch):
    modules, optimiser = pieces(epoch)
    log = RunLog(folder, epoch - 1)
    log.write({"epoch": epoch, "loss": 1 / epoch, "note": "σ"})
    state = {"epoch": epoch, "score": [0.5, epoch]}
    save_checkpoint(folder, modules, optimiser, state, {"network/weight": torch.full((2, 3), float(epoch))})


def load(folder):
    """The epoch of a checkpoint, of which everything must fit together."""
    modules, optimiser = pieces(99)
    state, best = load_checkpoint(folder, modules, optimiser, State)
    wanted, stepped = pieces(state.epoch)
    for name, module in wanted.items():
        for key, tensor in module.state_dict().items():
            assert torch.equal(modules[name].state_dict()[key], tensor)
    for (_, one), (_, two) in zip(optimiser.state.items(), stepped.state.items()):
        assert torch.equal(one["exp_avg"], two["exp_avg"])
    assert best["network/weight"][0, 0] == state.epoch and state.score == [0.5, state.epoch]
    rows = RunLog(folder, state.epoch).rows
    assert [row["epoch"] for row in rows] == list(range(1, state.epoch + 1))
    return state.epoch


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Flushes are counted and not waited for: no machine loses power here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "run", 1)
    return tmp_path / "run"


def copy(folder):
    place = folder.with_name("copy")
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(folder, place)


# -- faults while a checkpoint is written


@pytest.mark.thorough
def test_killed_at_every_touch_of_the_disk(folder):
    touches = []
    with watched(copy(folder), touches.append):
        save(folder.with_name("copy"), 2)
    points = [(n, False) for n in range(1, len(touches) + 2)] + [(t.number, True) for t in touches if t.half]
    assert len(touches) > 15
    for number, halfway in points:
        place = copy(folder)
        assert killed(place, lambda place=place: save(place, 2), number, halfway) == (number <= len(touches))
        renamed = any(t.kind == "rename" and t.path.name == "checkpoint.json" for t in touches[: number - 1])
        assert load(place) == (2 if renamed else 1)
        with only_training(place):
            assert not list(place.glob(".*.part"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.thorough
def test_every_touch_of_the_disk_fails(folder, error):
    number, failed = 0, True
    while failed:
        number += 1
        place = copy(folder)
        try:
            with failing(place, number, error):
                save(place, 2)
            failed = False
        except OSError as raised:
            assert raised.errno == error
        assert load(place) in ((1, 2) if failed else (2,))
        assert not list(place.glob(".*.part"))
    assert number > 12


def test_the_power_fails_at_every_moment(folder):
    seen = set()
    for files in after_power_cuts(folder, lambda: save(folder, 2)):
        fill(folder.with_name("left"), files)
        seen.add(load(folder.with_name("left")))
    assert seen == {1, 2}


# -- what is read is checked


@pytest.mark.parametrize("which", ["checkpoint.json", "checkpoint-*.safetensors", "log.jsonl", "settings.json"])
@pytest.mark.thorough
def test_flipped_bits_are_never_resumed_from(folder, which):
    write_settings(folder, {"epochs": 3, "network": "small"})
    (path,) = folder.glob(which)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.choice(len(data), 200):
        bad = bytearray(data)
        bad[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bad))
        count()
        try:
            assert load(folder) == 1 and read_settings(folder) == {"epochs": 3, "network": "small"}
        except InputError as error:
            assert str(folder) in str(error)
            refused += 1
    assert refused > 150


WRONG = {
    "of the future": lambda r: r.update(format=4),
    "unknown field": lambda r: r.update(scale=2),
    "no tensors": lambda r: r.pop("tensors"),
    "tensors elsewhere": lambda r: r.update(tensors="../run/" + r["tensors"]),
    "tensors as a number": lambda r: r.update(tensors=5),
    "optimiser as a list": lambda r: r.update(optimiser=[]),
    "optimiser of texts": lambda r: r.update(optimiser={"0/step": "many"}),
    "optimiser of no parameter": lambda r: r.update(optimiser={"weights/step": 1}),
    "state as a list": lambda r: r.update(state=[1]),
    "epoch as a text": lambda r: r["state"].update(epoch="two"),
    "epoch beyond measure": lambda r: r["state"].update(epoch=10**30),
    "state unknown": lambda r: r["state"].update(mood="good"),
    "score of texts": lambda r: r["state"].update(score=["high"]),
    "log as a text": lambda r: r.update(log="log.jsonl"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_records(folder, what):
    path = folder / "checkpoint.json"
    record = json.loads(path.read_text())
    WRONG[what](record)
    write_record(path, record)
    with pytest.raises(InputError, match=r"checkpoint\.json (is damaged|was written by a newer version)"):
        load(folder)


def test_nan_is_not_resumed_from(folder):
    path = folder / "checkpoint.json"
    record = json.loads(path.read_text())
    tensors = read_tensors(folder / record["tensors"])
    tensors["network/weight"][0, 0] = float("nan")
    name, digest = write_named_tensors(folder, "checkpoint", tensors)
    write_record(path, {**record, "tensors": name, "sha256": digest})
    with pytest.raises(InputError, match="'network/weight' is NaN"):
        load(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.text(max_size=4) | st.sampled_from(["tensors", "sha256", "optimiser", "state", "log", "format"]),
    value=json_values,
)
@pytest.mark.thorough
def test_any_value_in_the_record_loads_or_is_refused(folder, key, value):
    path, kept = folder / "checkpoint.json", folder / "kept.json"
    if not kept.exists():
        shutil.copy(path, kept)
    write_record(path, {**json.loads(kept.read_text()), key: value})
    with suppress(InputError):
        load_checkpoint(folder, *pieces(99), State)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.lists(json_values, max_size=3).map(lambda rows: "\n".join(map(json.dumps, rows))))
@pytest.mark.thorough
def test_any_text_as_a_log_is_read_or_refused(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert all(row["epoch"] >= 1 for row in read_log(path))
    except InputError as error:
        assert "line" in str(error) and "remove it to go on with a new log" in str(error)


def test_a_log_that_was_removed_begins_anew(folder):
    (folder / "log.jsonl").unlink()
    load_checkpoint(folder, *pieces(99), State)
    assert RunLog(folder, 1).rows == []


def test_a_checkpoint_of_the_version_before(folder):
    path = folder / "checkpoint.json"
    record = json.loads(path.read_text())
    old = {key: record[key] for key in ("tensors", "sha256", "optimiser", "state")}
    path.write_text(json.dumps(old))
    (folder / "settings.json").write_text('{"epochs": 3}')
    assert load(folder) == 1 and read_settings(folder) == {"epochs": 3}


# -- one training per folder


def test_a_second_training_is_refused_at_the_start(tmp_path):
    data = write_shapes(tmp_path / "shapes", count=6)
    with (
        only_training(tmp_path / "m" / "run"),
        pytest.raises(InputError, match=r"Another training is at work in .*m\."),
    ):
        train(data, run_settings(), out=tmp_path / "m")
    assert not (tmp_path / "m" / "run" / "settings.json").exists()
    train(data, run_settings(epochs=1), out=tmp_path / "m")
    assert (tmp_path / "m" / "model.json").exists()


def test_a_training_that_was_killed_holds_nothing(tmp_path):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with only_training(tmp_path / "run"):
            os.write(write, b"!")
            signal.pause()
    assert os.read(read, 1) == b"!"
    with pytest.raises(InputError, match="Another training"), only_training(tmp_path / "run"):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for name in (".checkpoint.7-ab.part", "..checkpoint.new.7.part", ".log.csv.7-ab.part"):
        (tmp_path / "run" / name).touch()
    with only_training(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".training"]


def test_a_checkpoint_of_the_version_before_is_read_and_one_to_come_is_not(tmp_path):
    save(tmp_path, 1)
    record = json.loads((tmp_path / "checkpoint.json").read_text(encoding="utf-8"))
    for later in ("checksum", "log"):
        del record[later]
    (tmp_path / "checkpoint.json").write_text(json.dumps({**record, "format": 1}), encoding="utf-8")
    assert load(tmp_path) == 1
    write_record(tmp_path / "checkpoint.json", {**record, "format": 4})
    with pytest.raises(InputError, match=r"newer version of nngk \(format 4"):
        load(tmp_path)
