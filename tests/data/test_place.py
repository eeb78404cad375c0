"""Where decoded images are kept: one folder for each place, bounded, safe beside others, and cleared by hand."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from nngk.data import Images, read_images
from nngk.data.packs.place import cache_bytes, cache_home, clear_cache, image_cache, use_cache
from nngk.files import locked
from nngk.training.feed import cache_of
from nngk.training.settings import Settings
from shapes import nngk, write_shapes


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nngk"


def test_the_folder_follows_the_custom(home, monkeypatch):
    assert cache_home() == home
    for wrong in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", wrong)
        assert cache_home() == Path.home() / ".cache" / "nngk"


def test_one_folder_for_each_place():
    one, two = image_cache([Path("/a/x/1.png"), Path("/a/y/2.png")]), image_cache([Path("/b/x/1.png")])
    assert one != two and one == image_cache([Path("/a/y/7.png"), Path("/a/x/9.png")])


def test_what_was_used_longest_ago_goes_first_and_only_if_it_rests(tmp_path):
    folders = [tmp_path / "images" / name for name in "abc"]
    for age, folder in zip((5, 3, 0), folders):
        use_cache(folder)
        (folder / "pixels").write_bytes(bytes(100))
        used = (folder / ".used").stat().st_mtime - age * 86400
        os.utime(folder / ".used", (used, used))
    use_cache(folders[2], limit=250)
    assert [folder.exists() for folder in folders] == [False, True, True]
    use_cache(folders[1], limit=0)  # the other one was used just now: somebody may be reading it
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_two_runs_at_once_and_a_cleared_cache(home, tmp_path):
    table = read_images(write_shapes(tmp_path / "shapes", count=5))
    folder, seen = use_cache(image_cache(table.paths)), []
    runs = [threading.Thread(target=lambda: seen.append(Images(table, 12, folder))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    before = [images.batch([0, 7]).pixels for images in seen]
    assert cache_bytes(home) > 0 and clear_cache() > 0 and cache_bytes(home) == 0
    after = [images.batch([0, 7]).pixels for images in seen]  # who reads keeps what is open
    assert all(a.equal(before[0]) for a in [*before, *after])


@pytest.mark.thorough
def test_the_command(home, tmp_path):
    table = read_images(write_shapes(tmp_path / "shapes", count=2))
    Images(table, 12, use_cache(image_cache(table.paths)))
    there = cache_bytes(home)
    said = json.loads(nngk("cache", "--clear", "--json").stdout)
    assert said == {"folder": str(home), "bytes": 0, "freed": there} and there > 0


def test_only_what_is_ours_is_cleared(home, tmp_path):
    """Somebody's own folder may be called nngk; and the cache may lie on another disk, behind a link."""
    (tmp_path / "disk" / "place" / "cache-1").mkdir(parents=True)
    (tmp_path / "disk" / "place" / "cache-1" / "pixels").write_bytes(bytes(100))
    home.mkdir(parents=True)
    (home / "thesis.tex").write_text("mine")
    (home / "images").symlink_to(tmp_path / "disk")
    assert clear_cache() == 100 and cache_bytes(tmp_path / "disk") == 0
    assert (home / "thesis.tex").read_text() == "mine"


def test_what_stays_is_not_called_removed(home, monkeypatch):
    (home / "images" / "place" / "cache-1").mkdir(parents=True)
    (home / "images" / "place" / "cache-1" / "pixels").write_bytes(bytes(100))
    monkeypatch.setattr(shutil, "rmtree", lambda place, ignore_errors: None)  # as without the right to
    assert clear_cache() == 0


def test_what_is_being_written_is_not_cleared(home, tmp_path):
    """Writers of one place wait for each other's lock, which must be the same one before and after."""
    table = read_images(write_shapes(tmp_path / "shapes", count=2))
    folder = use_cache(image_cache(table.paths))
    with locked(folder):
        (folder / "cache-1").mkdir()
        (folder / "cache-1" / "pixels").write_bytes(bytes(100))
        before = (folder / ".lock").stat().st_ino
        assert clear_cache() == 0 and cache_bytes(folder) == 100
    assert clear_cache() == 100 and (folder / ".lock").stat().st_ino == before
    assert len(Images(table, 12, folder).batch([0, 1])) == 2


@pytest.mark.parametrize("place", ["file/cache", None])
def test_training_goes_on_without_a_cache(place, tmp_path, monkeypatch, capsys):
    """A home that cannot be written to, or none at all, as in a container."""
    (tmp_path / "file").write_text("no folder")
    if place is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    for _ in range(2):
        assert cache_of(Settings(), [tmp_path / "1.png"]) is None
    assert capsys.readouterr().err.count("Decoded images cannot be kept") == 1
