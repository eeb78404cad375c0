"""Whatever happens while a model is written, its folder holds the old model or the new one."""

import errno
import os
import shutil

import numpy as np
import pytest

from faults import after_power_cuts, failing, fill, killed, survived, watched
from nngk.model.model import Model
from small_models import difference, small_model, visible

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Flushes are counted and not waited for: no machine loses power here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def save(folder):
    """Replace the model by another."""
    small_model(seed=1, classes=5).save(folder)


def add(folder):
    """Show the model a new class, as 'nngk add' does."""
    with Model.changing(folder) as model:
        model.add("new", PICTURE)


def remove(folder):
    """Let the model forget a class, as 'nngk remove' does."""
    with Model.changing(folder) as model:
        model.remove(model.class_names[0])


ACTS = [save, add, remove]


@pytest.fixture(scope="module", params=ACTS, ids=lambda act: act.__name__)
def case(request, tmp_path_factory, one_thread):
    """What is done, a folder before it, and the models before and after it."""
    home = tmp_path_factory.mktemp("case")
    small_model().save(home / "old")
    shutil.copytree(home / "old", home / "new")
    request.param(home / "new")
    return request.param, home / "old", Model.load(home / "old"), Model.load(home / "new")


def fresh(folder, place):
    """A copy of a folder, in the same place each time."""
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(folder, place)


@pytest.mark.thorough
def test_killed_at_every_touch_of_the_disk(case, tmp_path):
    act, folder, old, new = case
    touches = []
    with watched(fresh(folder, tmp_path / "m"), touches.append):
        act(tmp_path / "m")
    points = [(n, False) for n in range(1, len(touches) + 2)]
    points += [(touch.number, True) for touch in touches if touch.half is not None]
    assert len(touches) > 15 and len(points) == len(touches) + 5
    for number, halfway in points:
        place = fresh(folder, tmp_path / "m")
        died = killed(place, lambda place=place: act(place), number, halfway)
        assert died == (number <= len(touches))
        renamed = any(t.kind == "rename" and t.path.name == "model.json" for t in touches[: number - 1])
        assert difference(Model.load(place), new if renamed else old) is None
        save(place)  # the next writer finds nothing in its way and leaves nothing behind
        assert len(visible(place)) == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.thorough
def test_every_touch_of_the_disk_fails(case, error, tmp_path):
    act, folder, old, new = case
    number, failed = 0, True
    while failed:
        number += 1
        place = fresh(folder, tmp_path / "m")
        try:
            with failing(place, number, error):
                act(place)
            failed = False
        except OSError as raised:
            assert raised.errno == error and str(place) in str(raised)
        found = Model.load(place)
        assert difference(found, new) is None or (failed and difference(found, old) is None)
        assert not list(place.glob(".*.part"))
        if difference(found, old) is None:  # what was written in vain does not fill the disk
            assert {path.name for path in visible(place)} == {path.name for path in visible(folder)}
    assert number > 12
    save(place)  # as soon as there is space again


def test_the_disk_is_full_for_real(case, tmp_path):
    """The system itself refuses to let a file grow, wherever the library that writes it may be."""
    import resource

    act, folder, old, _ = case
    for limit in (0, 100, 1000, 5000):
        place = fresh(folder, tmp_path / "m")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(OSError, match=r"too large|could not be written"):
                act(place)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert difference(Model.load(place), old) is None
        assert not list(place.glob(".*.part"))


@pytest.mark.thorough
def test_the_power_fails_at_every_moment(case, tmp_path):
    """What was not flushed is gone, and what was renamed may have been or not."""
    act, folder, old, new = case
    place = fresh(folder, tmp_path / "m")
    left, count, outcomes = tmp_path / "left", 0, set()
    for files in after_power_cuts(place, lambda: act(place)):
        fill(left, files)
        found = Model.load(left)
        outcomes.add("old" if difference(found, old) is None else "new")
        assert difference(found, old) is None or difference(found, new) is None
        count += 1
    assert outcomes == {"old", "new"} and count > 30


@pytest.mark.thorough
def test_the_power_cuts_would_notice_a_missing_flush(tmp_path, monkeypatch):
    """The test above can fail: without the flushes of the folder, a cut leaves a model that does not load."""
    small_model().save(tmp_path / "m")
    monkeypatch.setattr("nngk.files.sync_folder", lambda folder: None)
    damaged = 0
    for files in after_power_cuts(tmp_path / "m", lambda: save(tmp_path / "m")):
        fill(tmp_path / "left", files)
        try:
            Model.load(tmp_path / "left")
        except ValueError:
            damaged += 1
    assert damaged


def test_a_failed_removal_of_old_files_is_no_failed_save(tmp_path):
    folder = tmp_path / "m"
    small_model().save(folder)

    def strike(touch):
        if touch.kind == "remove" and not touch.path.name.startswith("."):
            raise PermissionError(errno.EPERM, "not permitted", str(touch.path))

    with watched(folder, strike):
        save(folder)
    assert len(Model.load(folder).class_names) == 5 and len(visible(folder)) == 5
    save(folder)
    assert len(visible(folder)) == 3


def test_files_that_become_shorter_after_they_were_read(tmp_path):
    """A loaded model owns what it read: whatever happens to its files, its answers stay."""
    small_model().save(tmp_path / "m")

    def ask():
        model = Model.load(tmp_path / "m")
        before = model.classify(PICTURE).to_dict()
        for path in (tmp_path / "m").glob("*.safetensors"):
            os.truncate(path, 0)
        assert model.classify(PICTURE).to_dict() == before

    assert survived(ask)
