"""Downloads from a server that the tests run, which can break off, ignore ranges and change its files."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import published
from nngk.data import download, read_images
from nngk.data.datasets import unpack as module
from nngk.data.datasets.by_name import DATASETS
from nngk.data.datasets.download import PUBLICATIONS, Publication, PublishedFile
from nngk.data.datasets.fetch import fetch
from nngk.data.datasets.unpack import unpack
from nngk.errors import InputError

BODY = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    daemon_threads = True
    files: dict[str, bytes]
    asked: list[str | None]  # the Range of every request
    cut: int | None = None  # bytes to send before the connection breaks, once
    busy = 0  # requests to turn away before one is answered
    ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        body = self.server.files.get(self.path)
        if self.server.busy:
            self.server.busy -= 1
            self.send_error(503)
            return
        if body is None:
            self.send_error(404)
            return
        tag = f'"{hashlib.sha1(body).hexdigest()}"'
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if self.headers.get("If-Range") not in (None, tag):
            start = 0
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        if self.server.cut is not None:
            self.wfile.write(body[start : start + self.server.cut])
            self.server.cut = None
            self.close_connection = True
            return
        self.wfile.write(body[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("nngk.data.datasets.fetch._PAUSE", 0.0)
    running = Server(("127.0.0.1", 0), Handler)
    running.files, running.asked = {"/file.bin": BODY}, []
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    file = fetch(
        f"{server.url}/file.bin", tmp_path / "a" / "file.bin", md5=md5(BODY), progress=lambda *p: seen.append(p)
    )
    assert file.read_bytes() == BODY and seen[-1] == (len(BODY), len(BODY))
    fetch(f"{server.url}/file.bin", file, md5=md5(BODY))
    assert server.asked == [None]
    assert [path.name for path in file.parent.iterdir()] == ["file.bin"]


def test_a_broken_connection_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cut = 300_000
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin", md5=md5(BODY)).read_bytes() == BODY
    assert server.asked == [None, "bytes=300000-"]


def test_an_earlier_part_is_gone_on_from(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin", md5=md5(BODY)).read_bytes() == BODY
    assert server.asked == ["bytes=1000-"]


def test_a_server_without_ranges_and_a_file_that_changed(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin").read_bytes() == BODY
    server.ranges = True
    (tmp_path / "new.bin.part").write_bytes(b"old" * 100)
    (tmp_path / "new.bin.part.etag").write_text('"of the old file"')
    server.files["/new.bin"] = BODY
    assert fetch(f"{server.url}/new.bin", tmp_path / "new.bin").read_bytes() == BODY


def test_a_part_that_is_whole_or_too_long(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin", md5=md5(BODY)).read_bytes() == BODY
    (tmp_path / "b.bin.part").write_bytes(BODY + b"more")
    server.files["/b.bin"] = BODY
    assert fetch(f"{server.url}/b.bin", tmp_path / "b.bin", md5=md5(BODY)).read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the published checksum"):
        fetch(f"{server.url}/file.bin", tmp_path / "file.bin", md5="0" * 32)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file.bin").write_bytes(b"damaged")
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin", md5=md5(BODY)).read_bytes() == BODY


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.busy = 3
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin").read_bytes() == BODY
    server.busy = 9
    with pytest.raises(InputError, match="run the same command again"):
        fetch(f"{server.url}/file.bin", tmp_path / "other.bin")


def test_no_such_file_and_no_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="404"):
        fetch(f"{server.url}/other.bin", tmp_path / "file.bin")
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match="run the same command again"):
        fetch(f"{url}/file.bin", tmp_path / "file.bin")


def archive(root: Path, inside: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.add(root, inside)
    return stream.getvalue()


@pytest.fixture
def small_cub(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publication:
    """A CUB of 60 images that counts as complete, on the test's server."""
    body = archive(published.write_cub(tmp_path / "made"), "CUB_200_2011")
    server.files["/CUB_200_2011.tgz"] = body
    small = {"images": 60, "classes": 6, "official": {"train": 30, "test": 30}, "metric": (30, 30)}
    monkeypatch.setitem(DATASETS, "cub200", replace(DATASETS["cub200"], **small))
    here = replace(PUBLICATIONS["cub200"], files=(PublishedFile(f"{server.url}/CUB_200_2011.tgz", md5(body)),))
    monkeypatch.setitem(PUBLICATIONS, "cub200", here)
    return here


def test_a_dataset_is_fetched_unpacked_and_checked(server: Server, small_cub: Publication, tmp_path: Path) -> None:
    said: list[str] = []
    told: list[tuple[str, int, int]] = []
    server.cut = 500
    root = download("cub200", tmp_path / "data", say=said.append, progress=lambda *p: told.append(p))
    assert root == tmp_path / "data" / "CUB_200_2011"
    assert "non-commercial research" in said[0] and "complete" in said[-1]
    assert told[-1][0] == "CUB_200_2011.tgz" and told[-1][1] == told[-1][2]
    assert len(read_images("cub200", data_dir=tmp_path / "data")) == 60
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["CUB_200_2011"]
    requests = len(server.asked)
    assert requests == 2 and download("cub200", tmp_path / "data") == root
    assert len(server.asked) == requests


def test_a_dataset_that_comes_incomplete_is_told(
    small_cub: Publication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "cub200", replace(DATASETS["cub200"], images=61))
    with pytest.raises(InputError, match="not complete: Its lists name 60 images"):
        download("cub200", tmp_path / "data")


def test_files_that_go_into_a_folder_together(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = published.write_flowers(tmp_path / "made")
    server.files["/102flowers.tgz"] = archive(made / "jpg", "jpg")
    for name in ("imagelabels.mat", "setid.mat"):
        server.files[f"/{name}"] = (made / name).read_bytes()
    files = tuple(
        PublishedFile(server.url + path, md5(body)) for path, body in server.files.items() if path != "/file.bin"
    )
    monkeypatch.setitem(PUBLICATIONS, "flowers102", replace(PUBLICATIONS["flowers102"], files=files))
    small = {"images": 408, "official": {"train": 102, "val": 102, "test": 204}, "metric": (204, 204)}
    monkeypatch.setitem(DATASETS, "flowers102", replace(DATASETS["flowers102"], **small))
    assert download("flowers102", tmp_path / "data") == tmp_path / "data" / "flowers-102"
    assert len(read_images("flowers102", data_dir=tmp_path / "data")) == 408


def test_cars_have_no_address_but_mirrors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dead since 2023.*kaggle.*pytorch/vision/issues/7545"):
        download("cars196", tmp_path)


def test_a_dead_address_names_its_mirror(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = replace(PUBLICATIONS["leafsnap"], files=(PublishedFile(f"{server.url}/leafsnap-dataset.tar"),))
    monkeypatch.setitem(PUBLICATIONS, "leafsnap", dead)
    with pytest.raises(InputError, match=r"404.*kaggle"):
        download("leafsnap", tmp_path)


def test_the_published_addresses_and_sums() -> None:
    assert PUBLICATIONS["cub200"].files == (
        PublishedFile(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78"
        ),
    )
    torchvision = pytest.importorskip("torchvision.datasets").Flowers102
    for source in PUBLICATIONS["flowers102"].files:
        name = source.url.rsplit("/", 1)[1]
        assert source.url == torchvision._download_url_prefix + name
        assert (name, source.md5) in torchvision._file_dict.values()
    assert PUBLICATIONS.keys() == DATASETS.keys()


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/nngk-outside.txt", "inside/../../outside.txt"])
def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    file, place = tmp_path / "bad.tar", tmp_path / "deep" / "place"
    with tarfile.open(file, "w") as tar:
        for inner in ("good.txt", name):
            item = tarfile.TarInfo(inner)
            item.size = 4
            tar.addfile(item, io.BytesIO(b"evil"))
    if name.startswith("/"):
        unpack(file, place)  # the leading slash is taken off: it lands inside
        assert (place / name[1:]).read_bytes() == b"evil" and not Path(name).exists()
        return
    with pytest.raises(InputError, match="outside of its folder"):
        unpack(file, place)
    assert list(place.iterdir()) == [] and not list(tmp_path.rglob("outside.txt"))


def test_links_out_of_an_archive_and_damage_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        item = tarfile.TarInfo("link")
        item.type, item.linkname = tarfile.SYMTYPE, "../../etc"
        tar.addfile(item)
    with pytest.raises(InputError, match="outside of its folder"):
        unpack(tmp_path / "bad.tar", tmp_path / "place")
    whole = archive(published.write_cub(tmp_path / "made"), "CUB")
    (tmp_path / "half.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack(tmp_path / "half.tgz", tmp_path / "place")
    assert list((tmp_path / "place").iterdir()) == []


def test_unpacking_merges_into_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "place" / "CUB" / "images").mkdir(parents=True)
    (tmp_path / "place" / "CUB" / "mine.txt").write_text("kept")
    (tmp_path / "a.tgz").write_bytes(archive(published.write_cub(tmp_path / "made"), "CUB"))
    unpack(tmp_path / "a.tgz", tmp_path / "place")
    assert (tmp_path / "place" / "CUB" / "mine.txt").read_text() == "kept"
    assert len(list((tmp_path / "place" / "CUB" / "images").rglob("*.jpg"))) == 60


def bomb(file: Path, *members: tarfile.TarInfo) -> Path:
    """Write an archive whose members hold nothing but zeros."""
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        for member in members:
            tar.addfile(member, Zeros(member.size))
    return file


class Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        given = min(size, self.left)
        self.left -= given
        return bytes(given)


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    item = tarfile.TarInfo(name)
    item.size, item.type = size, kind
    return item


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 1 << 20)
    written = []
    monkeypatch.setattr(tarfile.TarFile, "makefile", lambda self, item, place: written.append(item.size))
    file = bomb(tmp_path / "bomb.tgz", member("a", 1 << 19), member("b", 1 << 24))
    with pytest.raises(InputError, match=r"bomb.tgz is refused, since it would unpack to more than [0-9,]+ bytes"):
        unpack(file, tmp_path / "place")
    assert written == [1 << 19] and list((tmp_path / "place").iterdir()) == []


def test_an_archive_of_very_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEMBERS", 20)
    file = bomb(tmp_path / "bomb.tgz", *(member(f"{i}", 0) for i in range(21)))
    with pytest.raises(InputError, match=r"unpack to more than 20 files"):
        unpack(file, tmp_path / "place")
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_name_of_megabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    file = bomb(tmp_path / "bomb.tgz", member("a", 1 << 25, kind), member("b", 1))
    with pytest.raises(InputError, match=r"cannot be unpacked \(it has a piece of 33,554,432 bytes\)"):
        unpack(file, tmp_path / "place")


def test_what_a_killed_unpacking_left_is_cleared(tmp_path: Path) -> None:
    file = bomb(tmp_path / "a.tgz", member("a", 5))
    left = tmp_path / "place" / ".a.tgz.unpacking"
    left.mkdir(parents=True)
    (left / "half.jpg").write_bytes(b"half")
    unpack(file, tmp_path / "place")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["a"]


def test_a_source_without_a_checksum_says_so(
    server: Server, small_cub: Publication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    download("cub200", tmp_path / "data", say=said.append)
    assert not any("checksum" in line for line in said)
    bare = replace(small_cub, files=(replace(small_cub.files[0], md5=None),))
    monkeypatch.setitem(PUBLICATIONS, "cub200", bare)
    download("cub200", tmp_path / "other", say=said.append)
    assert sum("published no checksum of CUB_200_2011.tgz" in line for line in said) == 1
    assert [name for name, each in PUBLICATIONS.items() if any(file.md5 is None for file in each.files)] == [
        "cub200", "leafsnap",
    ]  # fmt: skip
