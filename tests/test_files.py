"""Files are whole or absent, records notice damage, and writers take turns."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import faults
from nngk.errors import InputError
from nngk.files import (
    checksum,
    locked,
    read_json,
    read_record,
    read_tensors,
    sha256,
    write_atomically,
    write_json,
    write_record,
    write_tensors,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    write_atomically(path, lambda part: part.write_text("old"))

    def fails(part):
        part.write_text("half of the ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fails)
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_the_new_file_is_complete_before_it_has_its_name(tmp_path):
    path, seen = tmp_path / "a.txt", []

    def write(part):
        part.write_text("new")
        seen.append((part.parent == path.parent, path.exists()))

    write_atomically(path, write)
    assert seen == [(True, False)] and path.read_text() == "new"


def test_json(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"σ": 0.5, "names": ["Straße", "猫"]})
    assert read_json(path, "a thing") == {"σ": 0.5, "names": ["Straße", "猫"]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": float("nan")})
    assert read_json(path, "a thing")["σ"] == 0.5


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"nul", b"\xff\xfe{}", b'{"a": 1}}'])
def test_damaged_json(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json is damaged.*restore it from a copy"):
        read_json(path, "a thing")


def test_missing_json(tmp_path):
    with pytest.raises(InputError, match=r"is not a model folder: it holds no model\.json"):
        read_json(tmp_path / "model.json", "a model folder")


def test_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "column": whole[:, 1], "turned": whole.T, "same": whole, "flags": whole > 3}
    checksum = write_tensors(path, tensors)
    assert checksum == sha256(path)
    back = read_tensors(path, checksum)
    assert back.keys() == tensors.keys() and all(torch.equal(back[k], tensors[k]) for k in tensors)


def test_damaged_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    checksum = write_tensors(path, {"a": torch.randn(50)})
    good = path.read_bytes()
    for bad in (b"", good[:4], good[: len(good) // 2], good[:-1], b"x" + good[1:]):
        path.write_bytes(bad)
        for known in (checksum, None):
            with pytest.raises(InputError, match=r"a\.safetensors is damaged"):
                read_tensors(path, known)
    flipped = bytearray(good)
    flipped[-3] ^= 16  # inside a number: only the checksum can tell
    path.write_bytes(bytes(flipped))
    with pytest.raises(InputError, match="checksum"):
        read_tensors(path, checksum)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        read_tensors(path, checksum)


def test_tensors_know_their_own_checksum(tmp_path):
    """Without a checksum from elsewhere, no flipped bit is read as another number, name or shape."""
    path = tmp_path / "a.safetensors"
    tensors = {
        "a": torch.randn(20, 3),
        "flag": torch.tensor(True),
        "none": torch.empty(0),
        "half": torch.ones(3).half(),
    }
    write_tensors(path, tensors)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.choice(len(good), 300):
        bad = bytearray(good)
        bad[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bad))
        faults.count()
        try:
            back = read_tensors(path)
            assert back.keys() == tensors.keys() and all(torch.equal(back[k], tensors[k]) for k in tensors)
        except InputError:
            refused += 1
    assert refused > 250


def test_a_file_from_before_there_were_checksums_inside(tmp_path):
    save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    assert read_tensors(tmp_path / "a.safetensors")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": -Infinity}', '{"a": ' + "9" * 5000 + "}"])
def test_numbers_that_are_none(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"a\.json is damaged"):
        read_json(tmp_path / "a.json", "a thing")


def test_records(tmp_path):
    path = tmp_path / "a.json"
    sealed = write_record(path, {"format": 2, "pair": (1, 2), "name": "\udce9"})
    record = read_record(path, "a thing", newest=2)
    assert record == {"format": 2, "pair": [1, 2], "name": "\udce9", "checksum": sealed} and checksum(record) == sealed
    path.write_text(path.read_text().replace("2", "3", 1))
    with pytest.raises(InputError, match="newer version of nngk"):
        read_record(path, "a thing", newest=2)
    write_json(path, {"format": 2, "pair": [1, 2]})
    with pytest.raises(InputError, match="its checksum is wrong"):
        read_record(path, "a thing", newest=2)
    write_json(path, {"pair": [1, 2]})
    assert read_record(path, "a thing", newest=2) == {"pair": [1, 2]}


def test_one_writer_at_a_time(tmp_path):
    """Threads and processes alike; whoever dies lets go."""
    order = []

    def work(name):
        with locked(tmp_path):
            order.append(name)
            time.sleep(0.05)
            order.append(name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[::2] == order[1::2] and sorted(order) == [0, 0, 1, 1, 2, 2, 3, 3]
    child = os.fork()
    if not child:
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path):
        pass


def test_whoever_waits_is_told(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr("nngk.files._PATIENCE", 0.05)
    monkeypatch.setattr("nngk.files.say", heard.append)
    entered = threading.Event()

    def hold():
        with locked(tmp_path):
            entered.set()
            time.sleep(0.4)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with locked(tmp_path):
        thread.join()
    assert heard == [f"Waiting for another process that writes into {tmp_path} …"]


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "a.safetensors"
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="damaged"):
        read_tensors(path)


def test_a_full_disk_is_the_machines_fault(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"could not be written .*No space left"):
        write_tensors(tmp_path / "t.safetensors", {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == []


def test_tensors_may_be_read_by_whoever_may_read_other_files(tmp_path):
    write_json(tmp_path / "a.json", {})
    write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(3)})
    modes = {(tmp_path / name).stat().st_mode for name in ("a.json", "a.safetensors")}
    (tmp_path / "b").touch()
    assert modes == {(tmp_path / "b").stat().st_mode}


def test_a_file_of_somebody_else_is_not_called_damaged(tmp_path, monkeypatch):
    def forbidden(*given, **named):
        raise PermissionError(13, "Permission denied")

    write_json(tmp_path / "a.json", {})
    write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(3)})
    monkeypatch.setattr("pathlib.Path.read_text", forbidden)
    monkeypatch.setattr("safetensors.torch.load", forbidden)
    with pytest.raises(InputError, match="may not be read by this user"):
        read_json(tmp_path / "a.json", "a thing")
    with pytest.raises(InputError, match="may not be read by this user"):
        read_tensors(tmp_path / "a.safetensors")
