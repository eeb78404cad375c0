"""Packs and caches under kills, power cuts, full disks and flipped bits: the right pictures, or a sentence."""

import errno
import json
import os
import random
import resource
import signal

import numpy as np
import pytest
import torch

import faults
from nngk import progress
from nngk.data import Images, ImageTable, fitted, load_image, pack, read_images, read_pack
from nngk.data.packs import writer
from nngk.data.packs.layout import finished
from nngk.errors import InputError


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Note every four pictures what is done, so that there is much to be interrupted."""
    monkeypatch.setattr(writer, "_CHUNK", 4)
    monkeypatch.setattr(writer, "_SAVE_SECONDS", 0.0)


@pytest.fixture
def table(pets) -> ImageTable:
    return read_images(pets)


def right(images, table, size):
    found = images.batch(range(len(table)))
    return all(torch.equal(found[i], fitted(path, size)) for i, path in enumerate(table.paths))


def nothing_wrong(folder, table):
    """Return whether a folder holds no pack, or one whose pictures are all right or refused."""
    found = finished(folder)
    if found is None:
        return True
    try:
        return right(read_pack(folder)[0], table, found.size)
    except InputError:
        return True


def flip(file, rng):
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(data))


def test_two_kills_and_two_sizes(table, tmp_path):
    """The notes of one build beside the pixels of another: they must not be taken for each other."""
    folder = tmp_path / "out"

    def stopped_after(count):
        def seen(done, total):
            if done > count:
                os.kill(os.getpid(), signal.SIGKILL)

        return seen

    for size, count in ((8, 4), (9, 0)):
        child = os.fork()
        if not child:
            pack(table, folder, size, threads=1, progress=stopped_after(count))
            os._exit(1)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    part = folder / "pixels.bin.part"
    # What reached the disk of the second build is not known; let it be much.
    part.write_bytes(bytes(100_000))
    pack(table, folder, 8)
    assert right(read_pack(folder)[0], table, 8)


def test_notes_that_outlive_their_pixels(table, tmp_path):
    """A build is killed; its pixels are lost, or black, or of another build, and its notes are not."""
    folder = tmp_path / "out"

    def stop(done, total):
        if done > 8:
            raise KeyboardInterrupt

    for damage in (
        lambda p: p.unlink(),
        lambda p: p.write_bytes(bytes(p.stat().st_size)),
        lambda p: p.write_bytes(b""),
    ):
        with pytest.raises(KeyboardInterrupt):
            pack(table, folder, 8, progress=stop)
        assert len(json.loads((folder / "progress.json").read_text())["sums"]) == 8
        damage(folder / "pixels.bin.part")
        pack(table, folder, 8)
        assert right(read_pack(folder)[0], table, 8)
        (folder / "table.json").unlink()
        (folder / "pixels.bin").unlink()


@pytest.mark.thorough
def test_killed_at_every_touch_of_the_disk(table, tmp_path):
    folder, number, rng = tmp_path / "out", 1, random.Random(0)
    while faults.killed(tmp_path, lambda: pack(table, folder, 8, threads=1), number, halfway=number % 2 == 0):
        assert nothing_wrong(folder, table)
        # Another writer, of another size or the same, is killed as well; somebody else ends the work.
        faults.killed(tmp_path, lambda: pack(table, folder, rng.choice((8, 9)), threads=1), rng.randrange(1, 25))
        assert nothing_wrong(folder, table)
        if number % 3:
            pack(table, folder, 8 + number % 2, threads=1)
            assert right(read_pack(folder)[0], table, 8 + number % 2)
            left = {path.name for path in folder.iterdir()}
            assert left == {".lock", "pixels.bin", "table.json"}
            (folder / "table.json").unlink()
        number += 1
    assert number > 15 and right(read_pack(folder)[0], table, 8)


def test_killed_between_the_pixels_and_their_table(table, tmp_path, monkeypatch):
    """Nothing is decoded twice: the pixels are there, whole."""
    folder, replace = tmp_path / "out", os.replace

    def refuse(source, target, **options):
        if os.fspath(target).endswith("/table.json"):
            raise KeyboardInterrupt
        replace(source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(KeyboardInterrupt):
            pack(table, folder, 8)
    assert not (folder / "table.json").exists() and (folder / "pixels.bin").exists()
    decoded = []
    pack(table, folder, 8, progress=lambda done, total: decoded.append(done))
    assert not decoded and right(read_pack(folder)[0], table, 8)


def test_the_power_fails_at_every_moment(table, tmp_path):
    home, again, sizes = tmp_path / "out", tmp_path / "again", set()
    pack(table, home, 9)
    for files in faults.after_power_cuts(home, lambda: pack(table, home, 8)):
        faults.fill(again, files)
        assert nothing_wrong(again, table)
        found = finished(again)
        sizes.add(found and found.size)
    assert sizes == {None, 8, 9}


@pytest.mark.parametrize(("error", "stride"), [(errno.ENOSPC, 1), (errno.EIO, 3)])
@pytest.mark.thorough
def test_every_touch_of_the_disk_fails(table, tmp_path, error, stride):
    number = 1
    while True:
        folder = tmp_path / f"{number}"
        pack(table, folder, 9)
        try:
            with faults.failing(folder, number, error) as disk:
                pack(table, folder, 8, threads=1)
        except InputError as raised:
            assert "cannot be written" in str(raised) and str(folder) in str(raised)
            assert os.strerror(error) in str(raised)
        assert nothing_wrong(folder, table)
        left = {path.name for path in folder.iterdir()}
        assert left in ({".lock"}, {".lock", "pixels.bin", "table.json"})
        if disk.count < number:
            break
        number += stride
    assert number > 10


@pytest.mark.parametrize("room", [2_000, 3_500])
def test_the_disk_is_full_for_real(table, tmp_path, room):
    """No memory map is written through, so a full disk is an error and no SIGBUS."""
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            pack(table, tmp_path / "out", 8)
        except InputError as error:
            code = 0 if "make room" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {".lock"}


def test_a_flipped_bit_of_a_pack_is_never_trained_on(table, tmp_path):
    rng, refused = random.Random(0), 0
    whole = pack(table, tmp_path / "out", 8)
    files = {path: path.read_bytes() for path in whole.iterdir() if path.name != ".lock"}
    for number in range(60):
        flip(list(files)[number % 2], rng)
        faults.count()
        try:
            images, again = read_pack(whole)
            assert right(images, table, 8) and again.labels.tolist() == table.labels.tolist()
            assert again.class_names == table.class_names
        except InputError as error:
            assert "damaged" in str(error) or "does not belong" in str(error) or "version" in str(error)
            refused += 1
        for path, data in files.items():
            path.write_bytes(data)
            os.utime(path, ns=(number, number))
    assert refused > 50


def test_a_damaged_picture_of_a_pack_is_named_wherever_it_is_read(table, tmp_path):
    folder = pack(table, tmp_path / "out", 8)
    damage(folder, 5)
    images, again = read_pack(folder)
    assert torch.equal(images[4], fitted(table.paths[4], 8))
    for read in (lambda: images[5], lambda: load_image(again.paths[5]), lambda: Images(again, 4, tmp_path / "c")):
        with pytest.raises(InputError, match=r"'dog/1.png' in the pack .* is damaged"):
            read()
    # Packing again mends it.
    assert right(read_pack(pack(table, folder, 8))[0], table, 8)


def test_a_damaged_picture_of_a_cache_is_decoded_again(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "quiet", False)
    cache, decoded = tmp_path / "c", []
    Images(table, 8, cache)
    (folder,) = cache.glob("cache-*")
    damage(folder, 5)
    images = Images(table, 8, cache)
    for _ in range(2):
        assert right(images, table, 8)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "is damaged" in said[0] and str(table.paths[5]) in said[0]
    # The next run writes the cache anew.
    assert right(Images(table, 8, cache, progress=lambda done, total: decoded.append(done)), table, 8)
    assert decoded[-1] == 12 and not capsys.readouterr().err


def damage(folder, row):
    pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r+")
    pixels[finished(folder).places[row, 0]] ^= 1
    pixels.flush()
    del pixels
    os.utime(folder / "pixels.bin", ns=(1, 1))


def test_what_killed_writers_left_of_a_cache_is_cleared(table, tmp_path):
    cache = tmp_path / "c"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Images(table.select(range(7)), 8, cache, progress=stop)
    (left,) = cache.glob("cache-*")
    assert (left / "pixels.bin.part").exists()
    (left / ".progress.json.1-abcd.part").write_text("{")
    Images(table, 8, cache)
    (only,) = cache.glob("cache-*")
    assert only != left and {path.name for path in only.iterdir()} == {"pixels.bin", "table.json"}


def test_what_killed_writers_left_of_a_pack_is_cleared(table, tmp_path):
    folder = pack(table, tmp_path / "out", 8)
    for name in ("pixels.bin.part", "progress.json", "table.next.json", ".table.json.1-abcd.part"):
        (folder / name).write_text("{}")
    pack(table, folder, 8)
    assert {path.name for path in folder.iterdir()} == {".lock", "pixels.bin", "table.json"}
    assert right(read_pack(folder)[0], table, 8)


def test_a_pack_that_becomes_shorter_while_it_is_read(table, tmp_path):
    folder = pack(table, tmp_path / "out", 16)

    def read():
        images = read_pack(folder)[0]
        assert right(images, table, 16)
        for length in (folder / "pixels.bin").stat().st_size // 2, 0:
            os.truncate(folder / "pixels.bin", length)
            with pytest.raises(InputError, match="its file ends before"):
                images.batch(range(len(table)))
        with pytest.raises(InputError, match="is damaged"):
            load_image(folder / "pixels.bin" / "00000000 0.png")

    assert faults.survived(read)


def test_a_cache_that_becomes_shorter_while_it_is_read(table, tmp_path):
    def read():
        images = Images(table, 16, tmp_path / "cache")
        assert right(images, table, 16)
        (pixels,) = (tmp_path / "cache").glob("*/pixels.bin")
        os.truncate(pixels, pixels.stat().st_size // 2)
        assert right(images, table, 16)  # what is gone is decoded again

    assert faults.survived(read)
    assert right(Images(table, 16, tmp_path / "cache"), table, 16)
    (pixels,) = (tmp_path / "cache").glob("*/pixels.bin")
    assert pixels.stat().st_size == sum(fitted(path, 16).numel() for path in table.paths)  # written anew


def test_pictures_that_cannot_be_read(table, tmp_path, monkeypatch):
    images = read_pack(pack(table, tmp_path / "out", 16))[0]

    def failing(*given):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(InputError, match="is damaged"):
        images.batch([0])
    monkeypatch.delattr(os, "preadv")  # as on Windows
    assert right(images, table, 16)


def test_a_pipe_in_place_of_the_pixels(table, tmp_path):
    folder = pack(table, tmp_path / "out", 16)
    (folder / "pixels.bin").unlink()
    os.mkfifo(folder / "pixels.bin")
    with pytest.raises(InputError, match="a named pipe"):
        read_pack(folder)
