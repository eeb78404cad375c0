"""What happens every day: broken files, photos from anywhere, answers as they come, a folder given by mistake."""

import csv
import http.server
import io
import json
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

import forked
from nngk.data.remote import fetch_picture
from nngk.errors import InputError
from nngk.model.model import Model
from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import TINY, flags, nngk, write_shapes

OPTIONS = flags(**{**TINY, "epochs": 1})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("daily")
    write_shapes(home / "shapes")
    write_shapes(home / "fresh", seed=4, count=3)
    train(home / "shapes", Settings(**{**TINY, "epochs": 3}), out=home / "model")
    return home


@pytest.fixture
def spoilt(home, tmp_path):
    """The shapes, one of them cut short, beside a hidden file and a note."""
    folder = shutil.copytree(home / "shapes", tmp_path / "spoilt")
    bad = folder / "frame" / "03.png"
    bad.write_bytes(bad.read_bytes()[:200])
    (folder / "disc" / ".DS_Store").write_bytes(b"x")
    (folder / "disc" / "notes.txt").write_text("x")
    return folder, bad


# -- broken files


@pytest.mark.thorough
def test_training_without_a_broken_file_through_a_real_process(ask, spoilt, tmp_path):
    folder, bad = spoilt
    out = tmp_path / "m"
    code, _, err = ask("train", folder, "--out", out, *OPTIONS)  # more than a hundredth, and nobody is there to ask
    assert code == 1 and "--skip-broken" in err and str(bad) in err
    assert not (out / "model.json").exists()
    done = nngk("train", folder, "--out", out, *OPTIONS, "--skip-broken")
    assert done.returncode == 0, done.stderr
    assert "1 of 36 images cannot be read and are left out" in done.stderr and str(bad) in done.stderr
    assert "1 hidden file or folder and 1 file that is no picture (.txt)" in done.stderr
    assert str(bad) not in Model.load(out).sources


def test_strict_stops_with_the_file(ask, home, spoilt, tmp_path):
    folder, bad = spoilt
    for words in (["train", folder, "--out", tmp_path / "m", *OPTIONS], ["evaluate", home / "model", folder]):
        code, _, err = ask(*words, "--strict")
        assert code == 1 and str(bad) in err.strip().splitlines()[-1]


def test_few_broken_files_are_left_out_without_asking(ask, home, tmp_path):
    folder = write_shapes(tmp_path / "many", count=40)
    bad = folder / "disc" / "05.png"
    bad.write_bytes(b"no picture")
    code, out, err = ask("evaluate", home / "model", folder, "--json")
    assert code == 0 and json.loads(out)["images"] == 119
    assert "1 of 120 images cannot be read" in err and str(bad) in err


def test_the_other_images_are_answered(ask, home, spoilt):
    _, bad = spoilt
    good = home / "fresh" / "disc" / "00.png"
    code, out, err = ask("classify", home / "model", good, bad, good, "--json")
    rows = json.loads(out)
    assert code == 1 and "--skip-broken" in err
    assert [str(bad) in row.get("error", "") for row in rows] == [False, True, False]
    code, out, _ = ask("classify", home / "model", good, bad, "--csv", "--skip-broken")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and rows[0]["nearest"] == "disc" and "cannot be read" in rows[1]["error"]


def test_adding_without_a_broken_file(ask, home, spoilt, tmp_path):
    folder, bad = spoilt
    model = shutil.copytree(home / "model", tmp_path / "model")
    assert ask("add", model, "box", folder / "frame")[0] == 1 and "box" not in Model.load(model).class_names
    code, out, _ = ask("add", model, "box", folder / "frame", "--skip-broken", "--json")
    assert code == 0 and json.loads(out)["images"] == 11 and str(bad) not in Model.load(model).sources


def test_the_missing_model_is_named_before_the_missing_image(ask, home, tmp_path):
    for name in ("classify", "search", "evaluate", "add", "calibrate"):
        words = [tmp_path / "nomodel", *(["name"] if name == "add" else []), tmp_path / "nothing.jpg"]
        code, _, err = ask(name, *words)
        assert code == 1 and "There is no model folder" in err


# -- photos from anywhere


def test_bytes_and_standard_input(ask, home):
    file = home / "fresh" / "cross" / "01.png"
    model = Model.load(home / "model", "cpu")
    assert model.classify(file.read_bytes()).probabilities == model.classify(file).probabilities
    with pytest.raises(InputError, match="not those of an image file"):
        model.classify(b"no picture")
    code, out, _ = ask("classify", home / "model", "-", "--json", stdin=file.read_bytes())
    assert code == 0 and json.loads(out)[0]["image"] == "-"
    code, _, err = ask("classify", home / "model", "-", stdin=b"")
    assert code == 1 and "nothing came" in err


@pytest.fixture
def server(home):
    """A server on this machine that sends a picture, too much, nothing, and elsewhere."""
    picture = (home / "fresh" / "disc" / "00.png").read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = {
                "/disc.png": (200, {}, picture),
                "/moved": (302, {"Location": "/disc.png"}, b""),
                "/file": (302, {"Location": "file:///etc/hostname"}, b""),
                "/much": (200, {}, bytes(2000)),
            }.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_web_address(ask, home, server):
    for path in ("disc.png", "moved"):
        code, out, err = ask("search", home / "model", f"{server}/{path}", "-k", 1, "--csv")
        (row,) = csv.DictReader(io.StringIO(out))
        assert code == 0 and row["image"] == f"{server}/{path}" and row["label"] == "disc", err
    for path, expected in (("gone", "404"), ("file", "not allowed")):
        code, _, err = ask("classify", home / "model", f"{server}/{path}")
        assert code == 1 and expected in err
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        fetch_picture(f"{server}/much", most=1000)
    with pytest.raises(InputError, match="check the address and the connection"):
        fetch_picture("http://127.0.0.1:9/offline.jpg")


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"", b"HTTP/1.1 302 Found\r\nLocation: "])
def test_an_address_that_drips_is_given_up(start):
    """A byte now and then keeps every timeout of a connection from running out."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            with server.accept()[0] as client, suppress(OSError):
                client.sendall(start)
                while not over.wait(0.05):
                    client.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        begun = time.monotonic()
        with pytest.raises(InputError, match=r"has not answered after|timed out"):
            fetch_picture(f"http://127.0.0.1:{server.getsockname()[1]}/x", seconds=0.5)
        over.set()
        dripping.join()
    assert time.monotonic() - begun < 10


def test_heic(home, tmp_path, monkeypatch):
    heif = pytest.importorskip("pillow_heif")
    pixels = np.asarray(Image.open(home / "fresh" / "disc" / "00.png").convert("RGB").resize((64, 64)))
    try:
        heif.from_bytes("RGB", (64, 64), pixels.tobytes()).save(tmp_path / "photo.heic", quality=95)
    except RuntimeError:
        pytest.skip("this build writes no HEIC")
    model = Model.load(home / "model", "cpu")
    assert model.classify(tmp_path / "photo.heic").label == model.classify(pixels).label
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    with pytest.raises(InputError, match=r"pip install 'nngk\[heic\]'"):
        model.classify(tmp_path / "photo.heic")


# -- answers as they come


@pytest.mark.thorough
def test_answers_are_printed_before_all_are_there(home, tmp_path):
    photos = write_shapes(tmp_path / "photos", count=200, size=16)
    process = forked.Started(["-m", "nngk", "classify", home / "model", photos, "--csv", "--evidence", 0])
    head, first = process.until(str(photos)).splitlines()[:2]  # while it runs
    done = process.wait()
    assert head.startswith("image,label,nearest") and first.startswith(str(photos))
    assert len(done.stdout.splitlines()) == 601 and done.returncode == 0


def test_evaluate_as_csv(ask, home):
    code, out, err = ask("evaluate", home / "model", home / "fresh", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == 9 and {row["label"] for row in rows} == {"disc", "frame", "cross"}
    right = np.mean([row["right"] == "True" for row in rows])
    assert f"{right:.2%}  (95% interval" in err
    assert ask("evaluate", home / "model", home / "fresh", "--csv", "--json")[0] == 1


def test_a_cell_is_no_formula(ask, home, tmp_path):
    shutil.copy(home / "fresh" / "disc" / "00.png", tmp_path / "=1+1.png")
    code, out, _ = ask("classify", home / "model", tmp_path, "--csv")
    assert code == 0 and "\n=" not in out
    assert ask("classify", home / "model", home / "fresh", "--csv")[1].count("\n") == 10


# -- a folder given by mistake


def test_a_parent_folder_is_questioned(ask, home, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(home / "fresh", tmp_path / "parent" / name)
    words = ["train", tmp_path / "parent", "--out", tmp_path / "m", *OPTIONS]
    code, _, err = ask(*words)
    assert code == 1 and "The classes would be 'one', 'two'" in err and "--yes" in err
    assert ask(*words, "--yes")[0] == 0 and Model.load(tmp_path / "m").class_names == ["one", "two"]
    shutil.rmtree(tmp_path / "parent" / "two")
    code, _, err = ask("train", tmp_path / "parent", "--out", tmp_path / "n", *OPTIONS, "--yes")
    assert code == 1 and f"give {tmp_path / 'parent' / 'one'} instead" in err


def test_folders_of_one_photo_and_parts_without_classes(ask, tmp_path):
    write_shapes(tmp_path / "single", count=1)
    code, _, err = ask("train", tmp_path / "single", "--out", tmp_path / "m", *OPTIONS)
    assert code == 1 and "Each of the 3 classes has a single image" in err
    write_shapes(tmp_path / "flat", ("disc",), count=2)
    (tmp_path / "flat" / "disc").rename(tmp_path / "flat" / "train")
    code, _, err = ask("train", tmp_path / "flat", "--out", tmp_path / "m", *OPTIONS)
    assert code == 1 and "without a folder for each class" in err
