"""Clients that send too much, too slowly, out of order or in other protocols, and those that do not read."""

import contextlib
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import nngk.web.patience
from serving import FREE, classify, png, raw, serving

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"Connection: close\r\n\r\n"
POST = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
FORM = b"--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n" + png("red", 1) + b"\r\n--x--\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(FORM)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "a line that is no header": GET + b"broken\r\n\r\n",
    "a header on two lines": GET + b"X: a\r\n  b\r\n" + CLOSE,
    "a length on two lines": POST + b"Content-Length:\r\n 5\r\n\r\nhello",
    "two lengths": POST + LENGTH + b"Content-Length: 5\r\n" + CLOSE + FORM,
    "a length and chunks": POST + LENGTH + CHUNKED + b"0\r\n\r\n",
    "a length below zero": POST + b"Content-Length: -5\r\n" + CLOSE,
    "a length beyond numbers": POST + b"Content-Length: 99999999999999999999999\r\n" + CLOSE,
    "an encoding that is not known": POST + b"Transfer-Encoding: gzip\r\n" + CLOSE + FORM,
    "a size of a chunk that is no number": POST + CHUNKED + b"zz\r\n",
    "a zero byte": GET + b"X: a\0b\r\n" + CLOSE,
    "an address without a path": b"GET ?x HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "an address that is no ASCII": b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "a tunnel": b"CONNECT elsewhere:1 HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),
    "a long header": GET + b"X-Long: " + b"x" * 40_000 + b"\r\n" + CLOSE,
    "a longer header": GET + b"X-Long: " + b"x" * 200_000 + b"\r\n" + CLOSE,
    "a long address": b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE,
    "many headers": GET + b"a: b\r\n" * 110 + CLOSE,
}


def statuses(said):
    """The status of each answer that was said, without what invites a body."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", said) if status != b"100"]


def still_answers(server):
    with server.client() as client:
        assert classify(client, "red", 1)["label"] == "red"


@pytest.mark.parametrize("request_", BROKEN.values(), ids=BROKEN)
def test_what_is_not_http_is_refused_with_a_sentence(server, request_):
    said = raw(server, request_)
    assert statuses(said) == [400] and said.endswith(b'."}')
    assert b"\r\ncontent-type: application/json\r\n" in said and b"\r\nx-content-type-options: nosniff\r\n" in said
    still_answers(server)


def test_what_is_hardly_shorter_is_answered(server):
    for line in (b"X-Long: " + b"x" * 30_000 + b"\r\n", b"a: b\r\n" * 90):
        assert statuses(raw(server, GET + line + CLOSE)) == [200]


# Nothing comes to an end here: neither a header or an address, nor the size of a chunk or what follows the last one.
ENDLESS = {
    "a header": (GET + b"X: ", b"x" * 1000),
    "headers": (GET, b"Some-Header: some value\r\n" * 40),
    "an address": (b"GET /", b"x" * 1000),
    "a size of a chunk": (POST + CHUNKED + b"1;", b"x" * 1000),
    "a trailer": (POST + CHUNKED + b"1\r\n-\r\n0\r\nX: ", b"x" * 1000),
    "trailers": (POST + CHUNKED + b"1\r\n-\r\n0\r\n", b"Some-Trailer: some value\r\n" * 40),
    "a header of the second request": (GET + b"\r\n" + GET + b"X: ", b"x" * 1000),
}


@pytest.mark.parametrize("beginning, piece", ENDLESS.values(), ids=ENDLESS)
def test_a_long_head_that_arrives_in_pieces_is_refused(server, beginning, piece):
    sent = 0

    def pieces():
        nonlocal sent
        yield beginning
        for _ in range(1000):
            sent += len(piece)
            yield piece

    said = raw(server, pieces(), pause=0.002)
    assert statuses(said)[-1] == 400 and b"too long" in said
    assert 32_000 < sent < 300_000  # what is on its way when the server closes counts
    still_answers(server)


@pytest.mark.thorough
def test_slow_clients_are_cut(colours, monkeypatch):
    monkeypatch.setattr(nngk.web.patience, "_HEAD_SECONDS", 0.5)
    part = b"--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n"
    with serving(colours, limits=replace(FREE, seconds=0.7)) as server:
        start = time.monotonic()
        assert raw(server, b"GET / HTTP/1.1\r\nHost: localh", 10) == b""  # the head never ends
        drops = [GET + b"X: ", *[b"x"] * 40]
        assert raw(server, drops, 10, pause=0.05) == b""  # nor does this, of which something comes all the time
        for body in (
            [LENGTH + b"\r\n" + part],  # falls silent
            [CHUNKED + b"%x\r\n%b\r\n" % (len(part), part), *[b"1\r\nx\r\n"] * 40],  # drips without an end
        ):
            said = raw(server, [POST, *body], 10, pause=0.05)
            assert statuses(said) == [408] and b"took too long" in said
        assert statuses(raw(server, GET + b"Content-Length: 9999\r\n\r\nx", 10)) == [200]  # nobody waits for the rest
        assert time.monotonic() - start < 20
        still_answers(server)


@pytest.mark.thorough
def test_clients_that_drip_are_cut_and_others_are_answered(colours, monkeypatch):
    """Slowloris: many connections, each of which sends a byte of its head now and then."""
    monkeypatch.setattr(nngk.web.patience, "_HEAD_SECONDS", 1.0)
    with serving(colours) as server, server.client() as client:
        where = urlsplit(server.address)
        dripping = [socket.create_connection((where.hostname, where.port), timeout=5) for _ in range(100)]
        end, cut = time.monotonic() + 20, set()
        while len(cut) < len(dripping) and time.monotonic() < end:
            assert classify(client, "red", 1)["label"] == "red"
            for number, connection in enumerate(dripping):
                try:
                    connection.sendall(b"G")
                except OSError:
                    cut.add(number)
            time.sleep(0.1)
        for connection in dripping:
            connection.close()
        assert len(cut) == len(dripping)


def pages(server, times):
    """Ask for many answers at once over a connection that holds few of them, and return it."""
    connection, where = socket.socket(), urlsplit(server.address)
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((where.hostname, where.port))
    asked = b"GET /page/map.js HTTP/1.1\r\nHost: localhost\r\n"
    connection.sendall((asked + b"\r\n") * (times - 1) + asked + CLOSE)
    return connection


def sockets(server):
    """How many sockets the server has open; its files come and go."""
    count = 0
    for place in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += str(place.readlink()).startswith("socket:")
    return count


@pytest.mark.thorough
def test_clients_that_read_nothing_are_cut(folder, monkeypatch):
    monkeypatch.setattr(nngk.web.patience, "_UNREAD_SECONDS", 0.5)
    with serving(folder) as server:
        still_answers(server)
        end, before = time.monotonic() + 20, sockets(server)
        with contextlib.ExitStack() as held:
            for _ in range(5):
                held.enter_context(pages(server, 1000))
            still_answers(server)  # who came after them, so that they are in
            while sockets(server) > before and time.monotonic() < end:
                time.sleep(0.1)
            assert sockets(server) <= before
        still_answers(server)
        assert all(line["level"] == "info" for line in server.said())


@pytest.mark.thorough
def test_clients_that_read_slowly_get_everything(folder, monkeypatch):
    monkeypatch.setattr(nngk.web.patience, "_UNREAD_SECONDS", 0.5)
    with serving(folder) as server, pages(server, 60) as connection:
        said = b"".join(iter(lambda: time.sleep(0.002) or connection.recv(2048), b""))
        assert statuses(said) == [200] * 60


def test_requests_behind_each_other_are_answered_in_order(server):
    kinds = [GET + b"\r\n", POST + LENGTH + b"\r\n" + FORM, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    assert statuses(raw(server, b"".join(kinds * 5) + GET + CLOSE)) == [200, 200, 404] * 5 + [200]


def test_who_asks_first_is_told_first(colours):
    """A client that waits for '100 Continue' is not invited to send what would be refused."""
    with serving(colours, limits=replace(FREE, body=100_000)) as server:
        expect = b"Expect: 100-continue\r\n"
        said = raw(server, [POST + LENGTH + expect + CLOSE, FORM], pause=0.3)
        assert said.startswith(b"HTTP/1.1 100 ") and statuses(said) == [200]
        said = raw(server, POST + b"Content-Length: 1000000\r\n" + expect + b"\r\n")
        assert statuses(said) == [413] and b" 100 " not in said


def test_a_refusal_before_the_body_ends_the_connection(colours):
    """The body that was announced never comes: what follows on the connection would be taken for it."""
    with serving(colours, limits=replace(FREE, rate=0.5)) as server:
        asked = POST + LENGTH + b"Expect: 100-continue\r\n\r\n"
        raw(server, POST + LENGTH + CLOSE + FORM)  # takes the only answer for now
        said = raw(server, [asked, GET + b"\r\n"], pause=0.3)
        assert statuses(said) == [429] and b"\r\nconnection: close\r\n" in said.lower()
        said = raw(server, [POST + LENGTH + b"Expect: nothing\r\n\r\n" + FORM, GET + CLOSE], pause=0.3)
        assert statuses(said) == [429, 200]


def test_other_protocols_are_not_spoken(server):
    """What asks for another protocol is answered in this one; a body would be skipped, so it is refused."""
    http2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
    socket_ = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    for upgrade in (http2, socket_):
        assert statuses(raw(server, GET + upgrade, 1.0)) == [200]
        said = raw(server, POST + LENGTH + upgrade + FORM)
        assert statuses(said) == [400] and b"'Upgrade'" in said
    still_answers(server)
