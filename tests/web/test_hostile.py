"""What strangers may send: it gets an answer of the 4xx kind, costs little, and changes nothing."""

import errno
import io
import os
import pickle
import struct
import time
import zlib
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from faults import count, watched
from nngk import Model
from nngk.files import write_json
from nngk.gallery import open_gallery
from nngk.gallery.filling import fill_with_centres
from nngk.web.photos import small_photo
from nngk.web.served import ServedModel
from nngk.web.taught import encoded, keep
from serving import FREE, TOKEN, classify, coloured, contents, encoded_png, png, raw, serving, teach


def jpeg(side=200):
    out = io.BytesIO()
    coloured("red", 1, side).save(out, "JPEG")
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width, height, *chunks, depth=8, colour=2):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


def jpeg_of(width, height, channels=3):
    """The head of a JPEG of any size, and no pixels."""
    body = struct.pack(">BHHB", 8, height, width, channels) + b"".join(bytes([i, 0x11, 0]) for i in range(channels))
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", len(body) + 2) + body + b"\xff\xda\0\x02" + bytes(50) + b"\xff\xd9"


def tiff_of(width, height):
    """A TIFF of any size whose only strip is a few bytes."""
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (278, height), (279, 10)]
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + bytes(40)


def flipped(data, seed):
    rng = np.random.default_rng(seed)
    out = bytearray(data)
    for place in rng.integers(20, len(out), 40):
        out[place] ^= 1 << rng.integers(8)
    return bytes(out)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n(%pipe%id) (w) file\nshowpage\n"
BOMB = png_of(30_000, 30_000, chunk(b"IDAT", zlib.compress(bytes(10_000_000), 9)))
HOSTILE = {
    "nothing": b"",
    "one byte": b"\xff",
    "text": b"hello" * 100,
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "eps": EPS,
    "eps with a wrong name": b"\xc5\xd0\xd3\xc6" + bytes(100) + EPS,
    "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
    "zip": b"PK\x03\x04" + bytes(500),
    "elf": b"\x7fELF" + bytes(500),
    "pickle": pickle.dumps(print),
    "truncated jpeg": jpeg()[:700],
    "truncated png": encoded_png(coloured("red", 1, 200))[:5000],
    "head of a jpeg": jpeg()[:20],
    "head of a png": png("red", 1)[:40],
    "png without pixels": png_of(10, 10),
    "png of no size": png_of(0, 10, chunk(b"IDAT", zlib.compress(b""))),
    "png of a wrong depth": png_of(10, 10, chunk(b"IDAT", zlib.compress(bytes(400))), depth=7),
    "bomb": BOMB,
    "larger bomb": png_of(2**31 - 1, 2**31 - 1, chunk(b"IDAT", zlib.compress(bytes(1000)))),
    "bomb of text": png_of(4, 4, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80_000_000), 9))),
    "long and thin": png_of(2**31 - 1, 1, chunk(b"IDAT", zlib.compress(bytes(1000)))),
    "gif of nothing": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0;",
    "bmp of a huge size": b"BM" + struct.pack("<IHHIIiiHH", 60, 0, 0, 54, 40, 2**30, 2**30, 1, 24) + bytes(24),
    "tiff that points to itself": b"II*\0\x08\0\0\0" + struct.pack("<HHHIII", 1, 256, 4, 1, 5, 8),
    "webp of garbage": b"RIFF" + struct.pack("<I", 100) + b"WEBPVP8 " + bytes(range(92)),
    "webp of the largest size": b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8L" + b"\x0a\0\0\0\x2f" + b"\xff" * 9,
    "webp that says it is extended": b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + b"\x0a\0\0\0" + b"\xff" * 10,
    "jpeg of the largest size": jpeg_of(65500, 65500),
    "jpeg of no size": jpeg_of(0, 0),
    "jpeg of five channels": jpeg_of(16, 16, channels=5),
    "jpeg without scans": jpeg()[:160] + b"\xff\xd9",
    "jpeg with a script behind its head": jpeg()[:2] + b"<?php system($_GET[0]); ?>" * 20,
    "png with a wrong checksum": png("red", 1)[:60] + b"\0\0\0\0" + png("red", 1)[64:],
    "png that ends inside a chunk": png("red", 1)[:-400],
    "png of a billion columns": png_of(10**9, 2, chunk(b"IDAT", zlib.compress(bytes(1000)))),
    "png of an unknown colour": png_of(8, 8, chunk(b"IDAT", zlib.compress(bytes(200))), colour=5),
    "png of pixels that are no zlib": png_of(8, 8, chunk(b"IDAT", b"not zlib at all" * 9)),
    "png with a bomb in its profile": png_of(
        4, 4, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(90_000_000), 9)), chunk(b"IDAT", zlib.compress(b"x"))
    ),
    "png whose chunk says two gigabytes": b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(50),
    "gif cut in its palette": b"GIF89a" + struct.pack("<HH", 9, 9) + b"\xf7\0\0" + bytes(60),
    "gif of a frame outside": b"GIF89a" + struct.pack("<HH", 9, 9) + b"\0\0\0,\xff\xff\xff\xff\xff\xff\xff\xff\0\x02;",
    "gif of a wrong code size": b"GIF89a\x05\0\x05\0\0\0\0,\0\0\0\0\x05\0\x05\0\0\x7f\x02\xff\xff\0;",
    "bmp of a negative size": b"BM" + struct.pack("<IHHIIiiHH", 60, 0, 0, 54, 40, -5, -5, 1, 24) + bytes(24),
    "bmp of a wrong depth": b"BM" + struct.pack("<IHHIIiiHH", 60, 0, 0, 54, 40, 5, 5, 1, 99) + bytes(24),
    "bmp of an unknown head": b"BM" + struct.pack("<IHHII", 60, 0, 0, 54, 7) + bytes(40),
    "tiff of no tags": b"II*\0\x08\0\0\0\0\0" + bytes(20),
    "tiff of a huge strip": tiff_of(60_000, 60_000),
    "tiff whose tags lie outside": b"MM\0*" + struct.pack(">I", 2**31) + bytes(60),
    "bigtiff of garbage": b"II+\0\x08\0\0\0" + b"\xff" * 80,
    "ppm of a huge size": b"P6\n99999 99999\n255\n" + bytes(300),
    "ppm without an end": b"P6\n" + b"#" * 10_000,
    "pgm cut short": b"P5\n50 50\n255\nshort",
    "jpeg 2000 of garbage": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(200),
    "avif of garbage": b"\0\0\0\x1cftypavif" + bytes(300),
    "heic": b"\0\0\0\x18ftypheic" + bytes(300),
    "video": b"\0\0\0\x20ftypisom" + bytes(500),
    "icon": b"\0\0\1\0\1\0" + bytes(200),
    "photoshop": b"8BPS\0\1" + bytes(200),
    "windows metafile": b"\xd7\xcd\xc6\x9a" + bytes(200),
    "gzip of a gigabyte's beginning": zlib.compress(bytes(1_000_000), 9),
    "json": b'{"image": "' + b"A" * 1000 + b'"}',
    "a script": b"#!/bin/sh\nrm -rf /\n",
    "a megabyte of nothing": bytes(2**20),
    "noise": np.random.default_rng(0).bytes(2**16),
    "a data address": b"data:image/png;base64,iVBORw0KGgo=",
}


def resident(pid):
    """The largest memory that a process has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.thorough
def test_hostile_pictures_are_refused_in_little_memory(server):
    assert len(HOSTILE) >= 60
    before, state = resident(server.pid), contents(server.folder)
    with server.client() as client:
        for route, field, rest in (("/classify", "image", {}), ("/classes", "images", {"name": "hostile"})):
            for name, data in HOSTILE.items():
                answer = client.post(route, data=rest, files={field: ("x.jpg", data, "image/jpeg")})
                assert answer.status_code in (413, 422), (name, answer.status_code, answer.text)
                assert len(answer.json()["error"]) > 20 and "/" not in answer.json()["error"].replace("/openapi", "")
        assert classify(client, "red", 1)["label"] == "red"
    assert contents(server.folder) == state
    assert resident(server.pid) - before < 300


def test_a_broken_form_leaves_nothing_but_json_in_the_log(server):
    with server.client() as client:
        for body in (b"garbage", b"--x\rhello", b"--x\r\nA B: c\r\n\r\n"):
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            assert client.post("/embed", content=body, headers=kind).status_code == 400
        client.get("/health")
    assert {line["event"] for line in server.said()} <= {"request", "Invalid HTTP request received."}


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("webp of the largest size", 413, "far more pixels; at most 50,000,000"),
        ("webp that says it is extended", 413, "far more pixels"),
        ("gif of a frame outside", 413, "far more pixels"),
        ("bomb", 413, "30000×30000 pixels"),
        ("heic", 422, "not a picture that can be read: it is damaged, cut short, or not JPEG"),
        ("truncated jpeg", 422, "not a picture that can be read"),
    ],
)
def test_what_is_too_large_or_not_read_is_called_so(server, name, status, said):
    with server.client() as client:
        for rest in ({}, {"data": {"and": "more"}}):
            answer = client.post("/embed", files={"image": HOSTILE[name]}, **rest)
            assert answer.status_code == status and said in answer.json()["error"]


@pytest.mark.thorough
def test_flipped_bits_are_answered_or_refused(server):
    with server.client() as client:
        for seed in range(12):
            for whole in (jpeg(), encoded_png(coloured("red", 1, 60))):
                answer = client.post("/classify", files={"image": flipped(whole, seed)})
                assert answer.status_code in (200, 413, 422), (seed, answer.text)


def test_requests_that_are_not_what_they_say(server):
    text_part = b"--x\r\nContent-Disposition: form-data; name=image\r\n\r\ntext\r\n--x--"
    with server.client() as client:
        for body, kind in (
            (b"{}", "application/json"),
            (b"{", "application/json"),
            (b"garbage", "multipart/form-data; boundary=x"),
            (b"garbage", "multipart/form-data"),
            (text_part, "multipart/form-data; boundary=x"),
            (b"a=b", "application/x-www-form-urlencoded"),
            (b"\xff\xfe", "text/plain; charset=utf-16"),
        ):
            for route in ("/classify", "/classes", "/undo"):
                answer = client.post(route, content=body, headers={"Content-Type": kind})
                assert 400 <= answer.status_code < 500 and answer.json()["error"], (kind, route, answer.text)
        for query in ("k=0", "k=1001", "k=x", "k=-1", "k=1e3"):
            assert client.post(f"/search?{query}", files={"image": png("red", 1)}).status_code == 422
        undo = client.post("/undo", content=b'{"change": "\\ud800"}', headers={"Content-Type": "application/json"})
        assert undo.status_code in (409, 422)


CHANGES = [
    ("POST", "/classes", {"data": {"name": "new"}, "files": {"images": png("yellow", 1)}}),
    ("DELETE", "/classes", {"params": {"name": "red"}}),
    ("POST", "/undo", {"json": {"change": "x"}}),
    ("POST", "/classes/rename", {"json": {"old": "red", "new": "x"}}),
    ("POST", "/classes/merge", {"json": {"source": "red", "target": "blue"}}),
]


@pytest.mark.thorough
def test_without_the_token_nothing_changes(server, folder):
    state = contents(server.folder)
    wrong = [None, "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "tökën"]
    for token in wrong:
        with server.client(None) as client:
            headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
            for method, path, rest in CHANGES:
                answer = client.request(method, path, headers=headers, **rest)
                assert answer.status_code in (401, 404), (token, path, answer.text)
            for header in (f"Basic {TOKEN}", TOKEN, f"bearer{TOKEN}"):
                answer = client.delete("/classes", params={"name": "red"}, headers={"Authorization": header})
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert client.delete("/classes", params={"name": "red", "token": TOKEN}).status_code == 401
    assert contents(server.folder) == state
    state = contents(folder)
    with serving(folder, token=None) as closed, closed.client() as client:
        assert client.get("/classes").json()["changes"] == []
        for method, path, rest in CHANGES:
            assert client.request(method, path, **rest).status_code in (403, 404)
        assert classify(client, "red", 1)["label"] == "red"
    assert contents(folder) == state


@pytest.mark.parametrize(
    "path",
    [
        "/photos/../../etc/passwd",
        "/photos/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/photos/..%5c..%5cwindows",
        "/photos/%00",
        "/photos//etc/passwd",
        "/photos/file:%2f%2f%2fetc%2fpasswd",
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page/app.py",
        "/page/index.html%00.js",
        "/page//etc/passwd",
        "/static/index.html",
        "/model.json",
        "/../model.json",
    ],
)
def test_paths_lead_nowhere_else(server, path):
    said = raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    status = int(said.split(b" ", 2)[1])
    assert status in (400, 404, 422) and b"root:" not in said and b"import" not in said


def test_headers_of_every_answer(server):
    with server.client() as client:
        for answer in (
            client.get("/"),
            client.get("/page/main.js"),
            client.get("/nothing"),
            client.post("/classify"),
            client.post("/classify", headers={"Origin": "https://elsewhere.example"}, files={"image": png("red", 1)}),
            client.options("/classify", headers={"Origin": "https://x.y", "Access-Control-Request-Method": "POST"}),
        ):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY" and "server" not in answer.headers
            assert not any(name.startswith("access-control") for name in answer.headers)
        other = client.post("/classify", headers={"Sec-Fetch-Site": "cross-site"}, files={"image": png("red", 1)})
        assert other.status_code == 403
        for host in ("elsewhere.example", "127.0.0.1.elsewhere.example:80", "", "[::2]:80"):
            assert client.get("/classes", headers={"Host": host}).status_code == 421
        assert client.get("/classes", headers={"Host": "localhost:9"}).status_code == 200


@pytest.mark.thorough
def test_limits_on_body_pixels_and_rate(colours):
    tight = replace(FREE, body=200_000, pixels=10_000, rate=5.0)
    with serving(colours, limits=tight) as server, server.client(None) as client:
        too_long = client.post("/classify", files={"image": b"x" * 300_000})
        assert too_long.status_code == 413 and "bytes" in too_long.json()["error"]
        where = urlsplit(server.address)
        connection = HTTPConnection(where.hostname, where.port, timeout=10)
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        body = [b"--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n", *[b"x" * 50_000] * 8]
        connection.request("POST", "/classify", iter(body), kind, encode_chunked=True)  # says no length
        assert connection.getresponse().status == 413
        many = client.post("/classify", files={"image": encoded_png(coloured("red", 1, 101))})
        assert many.status_code == 413 and "101×101" in many.json()["error"]
        assert client.post("/classify", files={"image": encoded_png(coloured("red", 1, 100))}).status_code == 200
        codes = [client.post("/classify", files={"image": png("red", 1)}) for _ in range(40)]
        slowed = [answer for answer in codes if answer.status_code == 429]
        assert slowed and all(answer.headers["retry-after"] == "1" for answer in slowed)
        assert {answer.status_code for answer in codes} == {200, 429}
        assert client.get("/classes").status_code == 200  # reading is free
        time.sleep(0.5)
        assert client.post("/classify", files={"image": png("red", 1)}).status_code == 200


@pytest.mark.thorough
def test_a_full_disk_leaves_a_gallery_as_it_was(folder, tmp_path, monkeypatch):
    model, write = Model.load(folder, "cpu"), os.pwrite
    with open_gallery(str(tmp_path / "gallery"), model, write=True) as gallery:
        fill_with_centres(gallery, model)

    def pwrite(handle, data, offset):
        if (tmp_path / "full").exists():
            write(handle, bytes(data)[:100], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with serving(folder, gallery=str(tmp_path / "gallery")) as server, server.client() as client:
        (tmp_path / "full").touch()
        failed = teach(client, "yellow", "yellow", range(2))
        assert failed.status_code == 507 and "No space left" in failed.json()["error"]
        assert classify(client, "yellow", 9)["is_unknown"] and client.get("/classes").json()["version"] == 1
        (tmp_path / "full").unlink()
        assert teach(client, "yellow", "yellow", range(2)).status_code == 200
        assert classify(client, "yellow", 9)["label"] == "yellow"


@pytest.mark.thorough
def test_a_full_disk_changes_nothing(folder, tmp_path):
    """The disk is full from the first touch of it on, from the second, and so on."""
    allowed, passed = tmp_path / "allowed", [0, 0]  # the touches that succeed; the limit they belong to, their count

    def strike(touch):
        if allowed.exists() and touch.kind != "remove":
            limit = int(allowed.read_bytes())
            passed[:] = [limit, passed[1] + 1 if passed[0] == limit else 1]
            if passed[1] > limit:
                if touch.half is not None:
                    touch.half()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(touch.path))

    with watched(folder, strike), serving(folder) as server, server.client() as client:
        state = contents(folder)
        limit, made = 0, False
        while not made:
            write_json(allowed, limit)
            answer = teach(client, "yellow", "yellow", range(2))
            count()
            assert answer.status_code == 507 and "No space left on device" in answer.json()["error"]
            made = "was changed" in answer.json()["error"]  # only the last flush failed
            assert (contents(folder) == state) == (not made)  # not a byte is left behind on a full disk
            assert client.get("/classes").json()["version"] == 1 + made
            limit += 1
        assert limit > 10 and classify(client, "red", 1)["label"] == "red"
        assert classify(client, "yellow", 9)["label"] == "yellow"
        allowed.unlink()
        assert teach(client, "violet", "violet", range(2)).status_code == 200
    assert Model.load(folder).class_names == ["blue", "green", "red", "yellow", "violet"]


def test_pictures_outlive_what_can_be_undone(folder):
    served = ServedModel(folder, "cpu", may_change=True)
    path = keep(encoded(coloured("yellow", 0)), folder)
    served.change(lambda model: model.add("yellow", [path]))
    removed = served.change(lambda model: model.remove("yellow"))

    def fail(model):
        raise OSError(errno.EIO, "the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        served.change(fail)
    assert path.exists()
    served.undo(removed)
    assert "yellow" in served.now.model.class_names and small_photo(str(path), folder)


def test_formats_are_those_of_cameras():
    from nngk.web.uploads import FORMATS

    Image.init()
    assert {"JPEG", "PNG", "WEBP"} <= set(FORMATS) and not {"EPS", "PSD", "FPX", "WMF", "PDF"} & set(FORMATS)
