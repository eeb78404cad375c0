"""A gallery in a folder: what was acknowledged is there, whatever happens to the writer and to the files."""

import errno
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import after_power_cuts, failing, fill, killed, watched
from nngk.errors import InputError
from nngk.files import read_json, write_record
from nngk.gallery import embedded, in_memory
from nngk.gallery.append_log import create_log, cut_log, read_log
from nngk.gallery.embedded import Embedded, Kind
from nngk.gallery.references import References, joined, no_references, reference_ids

KIND = Kind(dim=6, width=2, network="n" * 64)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Flushes are counted and not waited for: no machine loses power here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def rows(start, count=3, label=None):
    rng = np.random.default_rng(start)
    labels = [label or f"class {(start + i) % 4}" for i in range(count)]
    sources = [f"{start + i}.jpg" for i in range(count)]
    values = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in ((count, 6), count, (count, 2))]
    return References(reference_ids(labels, sources), values[0], labels, sources, *values[1:])


def state(gallery):
    """Everything that a gallery holds, by id."""
    held = joined([no_references(6, 2), *gallery.view().parts()])
    return {
        number: (label, source, *(t[i].numpy().tobytes() for t in (held.vectors, held.theta, held.coordinates)))
        for i, (number, label, source) in enumerate(zip(held.ids.tolist(), held.labels, held.sources))
    }


def opened(folder):
    with Embedded(folder, KIND) as gallery:
        return state(gallery)


@pytest.fixture
def folder(tmp_path):
    """A gallery with a segment and a log."""
    with Embedded(tmp_path / "g", KIND, write=True) as gallery:
        gallery.add(rows(0, 5))
        gallery.flush()
        gallery.add(rows(10, 3))
        gallery.remove(rows(0, 2).ids)
        gallery.add(rows(3, 1).labelled("another"))
        gallery._log.close()
        gallery._log = None  # closed without a flush, as by a kill
    return tmp_path / "g"


def test_a_gallery_is_what_was_written_and_searched_by_plain_loops(folder, monkeypatch):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with Embedded(folder, KIND, write=True) as gallery:
        assert gallery.count() == 6 and not gallery.get(rows(0, 2).ids)
        assert gallery.get(rows(3, 1).ids).labels == ["another"]
        with pytest.raises(InputError, match="Another process writes"):
            Embedded(folder, KIND, write=True)
        readers = [Embedded(folder, KIND) for _ in range(2)]
        assert all(state(reader) == state(gallery) for reader in readers)
        with pytest.raises(InputError, match="reading alone"):
            readers[0].add(rows(50))
        monkeypatch.setattr(in_memory, "FEW", 4)  # the engine is made anew now and then
        before = gallery.view()
        for start in range(100, 160, 3):
            gallery.add(rows(start))
            gallery.remove(rows(start + 1, 1).ids)
            held = joined(gallery.view().parts())
            found = gallery.search(x, 9)
            k = min(9, len(held))
            for i, query in enumerate(x.double()):
                loop = sorted((float((query - v.double()).square().sum()), n) for n, v in enumerate(held.vectors))[:k]
                assert found.squared[i, :k].tolist() == pytest.approx([d for d, _ in loop], rel=1e-5)
                assert found.ids[i, :k].tolist() == [int(held.ids[n]) for _, n in loop]
                assert found.labels[i][:k] == [held.labels[n] for _, n in loop]
                assert found.sources[i][:k] == [held.sources[n] for _, n in loop]
                assert found.theta[i, :k].tolist() == [float(held.theta[n]) for _, n in loop]
        assert len(before) == 6  # a view never changes
        wanted = torch.tensor([*held.ids[::5].tolist(), 12345])
        assert gallery.get(wanted.flip(0)).ids.tolist() == wanted[:-1].flip(0).tolist()
        expected = state(gallery)
    assert opened(folder) == expected
    assert len(list(folder.glob("*.bin"))) == 1


@given(st.lists(st.tuples(st.sampled_from("arfo"), st.integers(0, 8), st.integers(1, 4)), max_size=14))
@settings(max_examples=25, deadline=None)
@pytest.mark.thorough
def test_any_sequence_of_changes_is_that_of_a_dictionary(tmp_path_factory, monkeypatch_module, steps):
    folder = tmp_path_factory.mktemp("any") / "g"
    expected = {}
    gallery = Embedded(folder, KIND, write=True)
    for kind, start, count in steps:
        some = rows(start, count, "x")
        if kind == "a":
            gallery.add(some)
            expected |= dict(zip(some.ids.tolist(), some.vectors.numpy().tolist()))
        elif kind == "r":
            gallery.remove(some.ids)
            expected = {n: v for n, v in expected.items() if n not in some.ids.tolist()}
        elif kind == "f":
            gallery.flush()
        else:
            gallery.close()
            gallery = Embedded(folder, KIND, write=True)
        held = joined([no_references(6, 2), *gallery.view().parts()])
        assert dict(zip(held.ids.tolist(), held.vectors.numpy().tolist())) == expected
        assert gallery.count() == len(expected)
    gallery.close()


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_memory, "FEW", 3)
        patch.setattr(embedded, "LONGEST_LOG", 4000)
        yield patch


def add(folder):
    with Embedded(folder, KIND, write=True) as gallery:
        gallery.add(rows(20, 4))
        gallery._log, log = None, gallery._log  # left as a kill leaves it
        log.close()


def flush(folder):
    with Embedded(folder, KIND, write=True) as gallery:
        gallery.flush()


@pytest.mark.parametrize("act", [add, flush])
@pytest.mark.thorough
def test_killed_at_every_touch_of_the_disk(folder, tmp_path, act, capsys):
    old = opened(folder)
    new = old | opened_rows(rows(20, 4)) if act is add else old
    copy, touches = tmp_path / "c", []
    shutil.copytree(folder, copy)
    with watched(copy, touches.append):
        act(copy)
    assert opened(copy) == new
    points = [(n, False) for n in range(1, len(touches) + 2)] + [(t.number, True) for t in touches if t.half]
    for number, halfway in points:
        shutil.rmtree(copy)
        shutil.copytree(folder, copy)
        died = killed(copy, lambda: act(copy), number, halfway)
        left = opened(copy)
        assert left in ((old, new) if died else (new,)), (act.__name__, number)
        with Embedded(copy, KIND, write=True) as gallery:  # the next writer finds nothing in its way
            assert state(gallery) == left
            gallery.add(rows(30, 1))
        assert opened(copy) == left | opened_rows(rows(30, 1))
        assert not list(copy.glob(".*.part")) and len(list(copy.glob("log-*.bin"))) == 1


def opened_rows(some):
    return {
        int(n): (
            some.labels[i],
            some.sources[i],
            *(t[i].numpy().tobytes() for t in (some.vectors, some.theta, some.coordinates)),
        )
        for i, n in enumerate(some.ids)
    }


@pytest.mark.parametrize("act", [add, flush])
@pytest.mark.thorough
def test_the_power_fails_at_every_moment(folder, tmp_path, act):
    """What was not flushed is gone: an append that was not flushed leaves a torn end, which is the old state."""
    old = opened(folder)
    new = old | opened_rows(rows(20, 4)) if act is add else old
    copy = tmp_path / "c"
    shutil.copytree(folder, copy)
    for files in list(after_power_cuts(copy, lambda: act(copy))):
        fill(tmp_path / "left", files)
        assert opened(tmp_path / "left") in (old, new)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_every_touch_of_the_disk_fails(folder, error):
    with Embedded(folder, KIND, write=True) as gallery:
        old, number, failed = state(gallery), 0, True
        while failed:
            number += 1
            try:
                with failing(folder, number, error):
                    gallery.add(rows(20, 4))
                failed = False
            except OSError as raised:
                assert raised.errno == error
                assert state(gallery) == old
                if gallery._log.broken:  # even taking the half-written record back failed
                    with pytest.raises(OSError, match="nothing is appended"):
                        gallery._log.append(b"")
                    gallery.flush()  # as the next change does first
                assert state(gallery) == old and opened(folder) == old
        assert number > 2 and opened(folder) == state(gallery) == old | opened_rows(rows(20, 4))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_change_after_a_failed_flush_is_not_lost(folder, tmp_path, error):
    """A flush may fail when the new record is in place: what is changed after that must not go into the old log."""
    number, failed = 0, True
    while failed:
        number, failed = number + 1, False
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        gallery = Embedded(copy, KIND, write=True)
        try:
            with failing(copy, number, error):
                gallery.flush()
        except OSError:
            failed = True
        gallery.add(rows(20, 4))
        expected = state(gallery)
        assert expected == opened(folder) | opened_rows(rows(20, 4))
        assert opened(copy) == expected  # as after a kill
        gallery.close()
        assert opened(copy) == expected
        assert len(list(copy.glob("log-*.bin"))) == 1 and not list(copy.glob(".*.part"))
    assert number > 10


def test_a_log_that_cannot_be_opened_again_is_not_written_to(folder, monkeypatch):
    with Embedded(folder, KIND, write=True) as gallery:
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "AppendLog", lambda path, end: (_ for _ in ()).throw(OSError(errno.EMFILE, "many")))
            with pytest.raises(OSError, match="many"):
                gallery.flush()
        gallery.add(rows(20, 4))
        assert opened(folder) == state(gallery)


def test_a_torn_end_is_cut_with_a_note(folder, capsys):
    log = next(folder.glob("log-*.bin"))
    whole, expected = log.read_bytes(), opened(folder)
    for torn in (whole[:30], b"garbage" * 9, whole[: len(whole) // 3], b"\0" * 5000):
        log.write_bytes(whole + torn)
        assert opened(folder) == expected  # a reader passes over it
        assert log.read_bytes() == whole + torn
        gallery = Embedded(folder, KIND, write=True)
        assert state(gallery) == expected and log.read_bytes() == whole
        gallery._log.close()
        gallery._log = None
        gallery.close()
        assert "never finished" in capsys.readouterr().err
    assert {torn.read_bytes()[:5] for torn in folder.glob("*.cut")} >= {whole[:5], b"garba"}


def test_damage_is_never_answered_from(folder):
    """A flipped bit of a segment or the record is refused; one of the log is refused, or cuts its very last record."""
    expected, rng = opened(folder), np.random.default_rng(0)
    for path in [*folder.glob("segment-*"), *folder.glob("log-*.bin"), folder / "gallery.json"]:
        whole = path.read_bytes()
        last = 0
        if path.suffix == ".bin":
            said, end, _ = read_log(path)
            last = end - len(said[-1]) - 48
        for place in rng.integers(0, len(whole), 60).tolist():
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            try:
                found = opened(folder)
            except InputError as error:
                assert "damaged" in str(error) or "newer version" in str(error) or "another network" in str(error)
            else:
                assert found == expected or (path.suffix == ".bin" and place >= last)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "field, value",
    [
        ("dim", 0),
        ("dim", "6"),
        ("segments", [{"file": "../x.safetensors", "sha256": "0" * 64}]),
        ("log", "/etc/passwd"),
        ("segments", None),
        ("width", -1),
        ("extra", 1),
        ("format", 9),
        ("format", "1"),
    ],
)
def test_wrong_records(folder, field, value):
    record = read_json(folder / "gallery.json", "a gallery")
    write_record(folder / "gallery.json", record | {field: value})
    with pytest.raises(InputError, match=r"damaged|newer version"):
        opened(folder)


@pytest.mark.parametrize("wrong", ["nan", "ids", "labels", "width"])
def test_wrong_references(wrong):
    good = rows(0)
    values = {name: getattr(good, name) for name in ("ids", "vectors", "labels", "sources", "theta", "coordinates")}
    values |= {
        "nan": {"vectors": good.vectors * torch.nan},
        "ids": {"ids": torch.tensor([1, 1, 2])},
        "labels": {"labels": ["a"]},
        "width": {"theta": good.theta[:2]},
    }[wrong]
    with pytest.raises(InputError):
        References(**values)


@pytest.mark.parametrize(
    "texts", [b"[" * 100_000, b'["ab", ["1", "2"]]', b'[{"a": 1}, ["1"]]', b'[[1], ["1"]]', b"[null, null]", b"\xff"]
)
def test_crafted_texts(texts):
    tensors = rows(0, 1).tensors() | {"texts": torch.tensor(list(texts), dtype=torch.uint8)}
    with pytest.raises(InputError):
        References.read(tensors)


def test_a_log_with_damage_in_its_middle_is_refused(folder):
    log = next(folder.glob("log-*.bin"))
    whole = bytearray(log.read_bytes())
    whole[60] ^= 1
    log.write_bytes(whole)
    with pytest.raises(InputError, match="others follow"):
        Embedded(folder, KIND, write=True)
    assert log.read_bytes() == whole  # nothing was cut


def test_cutting_keeps_what_was_cut(tmp_path):
    create_log(tmp_path / "log-1.bin")
    (tmp_path / "log-1.bin").write_bytes(b"torn")
    assert read_log(tmp_path / "log-1.bin") == ([], 0, 4)
    assert cut_log(tmp_path / "log-1.bin", 0).read_bytes() == b"torn"
    assert read_log(tmp_path / "log-1.bin") == ([], 0, 0)
