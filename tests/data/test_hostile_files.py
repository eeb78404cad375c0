"""Files and folders of strangers: refused with a sentence, in bounded time and memory, and nothing else is started."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

import published
from nngk.data import Images, check_folder, fitted, load_image, opening, pack, read_images
from nngk.data.folder import images_below
from nngk.errors import InputError
from shapes import environment

# -- what may not be read


def forbid(monkeypatch, *paths):
    """Let these files and folders be somebody else's."""
    wrong = {os.fspath(path) for path in paths}

    def guarded(call):
        def attempt(path=".", *more, **options):
            if isinstance(path, str | os.PathLike) and os.fspath(path) in wrong:
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return call(path, *more, **options)

        return attempt

    for name in ("scandir", "listdir", "open"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    return wrong


def test_a_class_that_may_not_be_read_is_named(pets, monkeypatch):
    forbid(monkeypatch, pets / "dog")
    with pytest.raises(InputError, match=r"The folder .*pets/dog cannot be read \(Permission denied\).*missing"):
        read_images(pets)
    report = check_folder(pets)
    assert not report.complete and "pets/dog cannot be read" in str(report)


def test_a_folder_inside_a_class_that_may_not_be_read_is_named(pets, make_picture, monkeypatch):
    make_picture(pets / "dog" / "more" / "1.png")
    assert len(read_images(pets)) == 13
    forbid(monkeypatch, pets / "dog" / "more")
    for read in (read_images, images_below):
        with pytest.raises(InputError, match="dog/more cannot be read"):
            read(pets)


def test_a_folder_that_may_not_be_read_is_named(pets, monkeypatch):
    forbid(monkeypatch, pets)
    for read in (read_images, check_folder):
        with pytest.raises(InputError, match="pets may not be read by this user"):
            read(pets)


def test_a_published_class_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    root = published.write_cub(tmp_path / "CUB_200_2011")
    forbid(monkeypatch, root / "images" / "002.Bird_1")
    with pytest.raises(InputError, match=r"002.Bird_1 may not be read by this user"):
        read_images("cub200", data_dir=tmp_path, allow_missing=True)


def test_a_picture_that_may_not_be_read_is_named(pets, monkeypatch):
    forbid(monkeypatch, pets / "cat" / "0.png")
    with pytest.raises(InputError, match=r"0.png may not be read by this user"):
        load_image(pets / "cat" / "0.png")
    assert check_folder(pets, decode=True).broken == [str(pets / "cat" / "0.png")]


def test_a_listed_picture_that_may_not_be_seen_is_not_called_missing(pets, monkeypatch):
    (pets / "list.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png,dog\n")
    stat = Path.stat

    def guarded(path, **options):
        if path.name == "0.png" and path.parent.name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", guarded)
    with pytest.raises(InputError, match=r"dog/0.png may not be read by this user"):
        read_images(pets / "list.csv")


# -- what is no file


def pipe(path):
    os.mkfifo(path)


def plug(path):
    place = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        place.bind(path.name)
    finally:
        os.chdir(here)


def zeros(path):
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "kind"), [(pipe, "a named pipe"), (plug, "a socket"), (zeros, "a device"), (Path.mkdir, "a folder")]
)
def test_what_never_ends_is_not_opened(pets, tmp_path, make, kind):
    odd = pets / "cat" / "odd.jpg"
    make(odd)
    with pytest.raises(InputError, match=rf"odd.jpg is {kind}, not an image"):
        load_image(odd)
    if kind == "a folder":
        assert len(read_images(pets)) == 12
        return
    table = read_images(pets)
    for use in (lambda: Images(table, 8).batch(range(13)), lambda: pack(table, tmp_path / "out", 8)):
        with pytest.raises(InputError, match=f"odd.jpg is {kind}"):
            use()
    assert check_folder(pets, decode=True).broken == [str(odd)]
    (pets / "list.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png,dog\ncat/odd.jpg,cat\n")
    with pytest.raises(InputError, match=f"odd.jpg is {kind}"):
        Images(read_images(pets / "list.csv"), 8).batch([2])


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_list(pets):
    for name in ("table.json", "images.txt", "image_class_labels.txt", "list.csv"):
        os.mkfifo(pets / name)
    assert len(read_images(pets)) == 12 and check_folder(pets).complete
    with pytest.raises(InputError, match="no folder or file"):
        read_images(pets / "list.csv")


# -- which decoders are used


@pytest.mark.parametrize("start", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", b"%PDF-1.4\n"])
@pytest.mark.parametrize("name", ["a.jpg", "a.eps", "a.tga"])
def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch, start, name):
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: started.append(a))
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    (tmp_path / name).write_bytes(start + b"showpage\n%%EOF\n")
    with pytest.raises(InputError, match="cannot be read"):
        load_image(tmp_path / name)
    assert not started


@pytest.mark.parametrize("format", ["ICO", "PCX", "SGI", "MSP", "DDS", "XBM"])
def test_formats_that_nobody_asked_for_are_not_read(tmp_path, format):
    mode = {"MSP": "1", "XBM": "1"}.get(format, "RGB")
    Image.new(mode, (32, 32)).save(tmp_path / "a.png", format)
    with pytest.raises(InputError, match="it is no JPEG, PNG"):
        load_image(tmp_path / "a.png")


def test_a_format_without_a_mark_is_known_by_its_name(tmp_path):
    Image.new("RGB", (5, 4), (1, 2, 3)).save(tmp_path / "a.tga")
    assert load_image(tmp_path / "a.tga").getpixel((0, 0)) == (1, 2, 3)
    (tmp_path / "a.tga").rename(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="it is no JPEG"):
        load_image(tmp_path / "a.jpg")


# -- how much is decoded


def empty_png(path, width, height, colour=6, rows=None):
    """A picture of one colour, of which the first rows are there: a few kilobytes for every megapixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    line = bytes(1 + width * {0: 1, 2: 3, 6: 4}[colour])
    squeeze = zlib.compressobj(1)
    data = b"".join(squeeze.compress(line) for _ in range(rows or height)) + squeeze.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path


MEASURE = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
from nngk.data import check_folder, fitted
from nngk.errors import InputError
for path in sys.argv[1:]:
    try:
        print(tuple(fitted(path, 256).shape))
    except InputError as error:
        print(error)
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))  # of this program alone, not of its parent
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure memory")
def test_bombs_are_refused_or_take_little_memory(tmp_path):
    bomb = empty_png(tmp_path / "bomb.png", 13_000, 13_000, rows=100)
    largest = empty_png(tmp_path / "largest.png", 5_000, 5_000)
    grey = tmp_path / "grey.jpg"
    Image.new("L", (12_000, 9_000)).save(grey)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(bomb), str(largest), str(grey)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    refused, accepted, smaller, peak = done.stdout.splitlines()
    assert "13,000×13,000 pixels; pictures of at most 25,000,000 are read" in refused
    assert accepted == "(3, 256, 256)" and smaller == "(3, 256, 341)"
    assert int(peak) < 1024**2


def test_a_large_jpeg_is_decoded_smaller(tmp_path, monkeypatch):
    y, x = np.mgrid[:240, :320]
    smooth = np.stack([x * 0.7, y, 255 - x * 0.5], axis=2).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(smooth).save(tmp_path / "turned.jpg", quality=95, exif=exif)
    boxes = [None, (100, 40, 300, 200)]
    names = ("a.jpg", "turned.jpg")
    whole = [fitted(tmp_path / name, 32, box) for name in names for box in boxes]
    monkeypatch.setattr(opening, "MOST_PIXELS", 320 * 240 // 15)
    assert [load_image(tmp_path / name).size for name in names] == [(80, 60), (60, 80)]
    for small, large in zip([fitted(tmp_path / name, 32, box) for name in names for box in boxes], whole):
        assert small.shape == large.shape
        assert (small.float() - large.float()).abs().mean() < 4
    monkeypatch.setitem(opening._MOST, "JPEG", 320 * 240 - 1)
    with pytest.raises(InputError, match=r"a.jpg has 320×240 pixels; pictures of at most 76,799 are read"):
        load_image(tmp_path / "a.jpg")


def test_scans_of_a_jpeg_are_counted(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "plain.jpg")
    Image.fromarray(noise).save(tmp_path / "steps.jpg", progressive=True)
    with Image.open(tmp_path / "plain.jpg") as plain, Image.open(tmp_path / "steps.jpg") as steps:
        assert opening._scans(plain) == 1
        assert opening._scans(steps) == (tmp_path / "steps.jpg").read_bytes().count(b"\xff\xda") >= 5
    monkeypatch.setattr(opening, "_MOST_SCANS", 64 * 64 * 4)
    assert load_image(tmp_path / "plain.jpg").size == (64, 64)
    with pytest.raises(InputError, match=r"in a JPEG of \d+ scans are read"):
        load_image(tmp_path / "steps.jpg")


def test_one_component_per_scan_is_several_scans(tmp_path):
    """A JPEG whose first scan has fewer components than the picture keeps all of it in memory."""
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg")
    data = bytearray((tmp_path / "a.jpg").read_bytes())
    start = data.index(b"\xff\xda")
    data[start : start + 14] = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    (tmp_path / "a.jpg").write_bytes(bytes(data))
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.layers == 3 and opening._scans(image) == 2


def test_a_jpeg_of_several_pictures_is_its_first(tmp_path):
    frames = [Image.new("RGB", (16, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "a.jpg").size == (16, 8)
    assert load_image(tmp_path / "a.jpg").getpixel((3, 3))[0] > 240


def test_what_is_decoded_slowly_must_be_small(tmp_path):
    (tmp_path / "small.pgm").write_bytes(b"P2 2 1 255\n0 255\n")
    (tmp_path / "large.ppm").write_bytes(b"P6 1000 1000 100\n" + bytes(3_000_000))
    assert np.asarray(load_image(tmp_path / "small.pgm"))[0, :, 0].tolist() == [0, 255]
    with pytest.raises(InputError, match=r"at most 200,000 of this kind, which is slow to decode"):
        load_image(tmp_path / "large.ppm")


def test_a_picture_in_the_hands_of_somebody_else_is_bounded_before_it_is_decoded(tmp_path):
    with (
        Image.open(empty_png(tmp_path / "a.png", 6_000, 6_000, 0)) as image,
        pytest.raises(InputError, match=r"The image has 6,000×6,000 pixels"),
    ):
        load_image(image)
    assert load_image(Image.new("L", (6_000, 4_200))).size == (6_000, 4_200)  # it is in memory already
    with Image.open(tmp_path / "a.png") as image:
        pass
    with pytest.raises(InputError):
        load_image(image)


def test_a_very_long_file_is_not_read(tmp_path):
    with (tmp_path / "a.webp").open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\x7fWEBPVP8 ")
        file.truncate(1 << 34)
    began = time.perf_counter()
    with pytest.raises(InputError, match="has 17,179,869,184 bytes"):
        load_image(tmp_path / "a.webp")
    assert time.perf_counter() - began < 5


def test_threads_share_one_room():
    room, most, lock = opening._Room(10), [0, 0], threading.Lock()

    def work(amount):
        with room.taken(amount):
            with lock:
                most[0] += amount
                most[1] = max(most)
            time.sleep(0.002)
            with lock:
                most[0] -= amount

    threads = [threading.Thread(target=work, args=(amount,)) for amount in (3, 4, 5, 6, 7, 2, 12) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [0, 12] and room.used == 0  # what is larger than the room has it to itself


def test_a_forked_process_finds_the_room_empty(tmp_path):
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    with opening._room.taken(opening._AT_ONCE):
        child = os.fork()
        if not child:
            code = 1
            try:
                code = load_image(tmp_path / "a.png").size != (5, 4)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


# -- damage that is no reason to refuse, and values that are


def test_a_picture_with_damaged_notes_is_read(tmp_path, recwarn):
    for number, notes in enumerate(
        (b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(40))
    ):
        path = tmp_path / f"{number}.jpg"
        Image.new("RGB", (6, 4), (200, 0, 0)).save(path, exif=notes)
        assert load_image(path).size == load_image(Image.open(path)).size == (6, 4)
    assert not recwarn


def test_numbers_that_are_not_finite_are_refused(tmp_path, recwarn):
    Image.fromarray(np.array([[0.0, np.nan], [1.0, np.inf]], dtype=np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(InputError, match="not finite"):
        load_image(tmp_path / "a.tiff")
    assert not recwarn


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "F"])
def test_strips_do_not_show(tmp_path, monkeypatch, mode):
    rng = np.random.default_rng(0)
    layered = Image.fromarray(rng.integers(0, 256, (37, 23, 4), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (37, 23), dtype=np.uint16))
    image = deep if mode == "I;16" else deep.convert("F") if mode == "F" else layered.convert(mode)
    if mode == "P":
        image.info["transparency"] = 3
    whole = np.asarray(load_image(image))
    monkeypatch.setattr("nngk.data.decode._STRIP", 23 * 5)
    np.testing.assert_array_equal(np.asarray(load_image(image)), whole)
    assert torch.equal(fitted(image, 9), fitted(Image.fromarray(whole), 9))
