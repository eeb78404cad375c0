"""Files are whole or absent."""

import pytest
import torch
from safetensors import SafetensorError

from nngk.errors import InputError
from nngk.files import read_json, read_tensors, sha256, write_atomically, write_json, write_tensors


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
    monkeypatch.setattr("safetensors.torch.load_file", forbidden)
    with pytest.raises(InputError, match="may not be read by this user"):
        read_json(tmp_path / "a.json", "a thing")
    with pytest.raises(InputError, match="may not be read by this user"):
        read_tensors(tmp_path / "a.safetensors")
