"""Plain questions go past the framework, whatever else is asked goes through it, and both are answered alike."""

import asyncio
import io
import tracemalloc

import pytest

from nngk.errors import InputError
from nngk.web.direct import Direct
from nngk.web.inquiries import INQUIRIES
from nngk.web.plain_form import LARGEST, boundary, only_picture
from nngk.web.refusals import Busy
from nngk.web.schemas import Classified, Embedded, Found
from serving import classify, coloured, png, raw, serving

HEAD = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
PLAIN = HEAD + b"Content-Type: image/jpeg\r\n\r\npixels\r\n--x--\r\n"
OTHER = {  # what the plain reader leaves to a real parser
    "nothing": b"",
    "no end": PLAIN[:-8],
    "something before the form": b"hello\r\n" + PLAIN,
    "something behind the form": PLAIN + b"more",
    "another field": HEAD.replace(b"image", b"other") + b"\r\npixels\r\n--x--\r\n",
    "no file": b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\npixels\r\n--x--\r\n',
    "a file without a name": HEAD.replace(b"a.jpg", b"") + b"\r\npixels\r\n--x--\r\n",
    "an escaped name": HEAD.replace(b"a.jpg", b'a\\".jpg') + b"\r\npixels\r\n--x--\r\n",
    "two parts": HEAD + b"\r\npixels\r\n" + PLAIN,
    "another encoding": HEAD + b"Content-Transfer-Encoding: base64\r\n\r\npixels\r\n--x--\r\n",
    "a head without an end": HEAD + b"pixels\r\n--x--\r\n",
    "another boundary": PLAIN.replace(b"--x", b"--y"),
    "a field in capitals": PLAIN.replace(b"image", b"IMAGE", 1),
    "a quotation without an end": PLAIN.replace(b'"image"', b'"image'),
    "a quotation without a beginning": PLAIN.replace(b'"image"', b'image"'),
    "a line that is too long": PLAIN.replace(b"a.jpg", b"a" * 5000),
    "a kind that is too long": PLAIN.replace(b"image/jpeg", b"a" * 5000),
}


class Asked:
    """A service that answers what it is asked about, or fails."""

    def __init__(self, fault=None):
        self.fault, self.heard = fault, []

    async def ask(self, inquiry, picture, numbers):
        self.heard.append((inquiry.kind, picture.read(), numbers))
        if self.fault is not None:
            raise self.fault
        return b'{"said": true}'


def attempt(body=PLAIN, *, path="/classify", query=b"", method="POST", headers=None, pieces=1, fault=None):
    """Ask in one request; return what the service heard, what the framework's app was sent, and the answer."""
    service, passed, sent = Asked(fault), [], []
    kind = (b"content-type", b"multipart/form-data; boundary=x")
    given = [kind, (b"content-length", b"%d" % len(body))] if headers is None else headers
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": given}
    size = -(-len(body) // pieces) or 1
    parts = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
    messages = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        more, whole = True, b""
        while more:
            message = await receive()
            more, whole = message["more_body"], whole + message["body"]
        passed.append(whole)

    try:
        asyncio.run(Direct(app, service)(scope, receive, send))
    finally:
        attempt.sent = sent
    return service.heard, passed, sent


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_plain_question_is_answered_past_the_app(pieces):
    heard, passed, sent = attempt(pieces=pieces)
    assert heard == [("classify", b"pixels", {"evidence": 5, "top": 10})] and not passed
    assert sent[0]["status"] == 200 and sent[1]["body"] == b'{"said": true}'
    assert (b"content-type", b"application/json") in sent[0]["headers"]


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_app_sees_the_whole_of_every_other_form(name, pieces):
    assert only_picture(OTHER[name], b"x") is None
    heard, passed, _ = attempt(OTHER[name], pieces=pieces)
    assert passed == [OTHER[name]] and not heard


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (b"evidence=0&top=3", {"evidence": 0, "top": 3}),
        (b"top=1000", {"evidence": 5, "top": 1000}),
        (b"top=0", None),  # out of its range
        (b"top=1001", None),
        (b"top=3&top=4", None),
        (b"top=+3", None),
        (b"top=%33", None),
        (b"top=", None),
        (b"top=\xb2", None),  # a digit, and no number
        (b"other=3", None),
        (b"&", None),
    ],
)
def test_only_numbers_in_their_ranges_are_plain(query, numbers):
    heard, passed, _ = attempt(query=query)
    assert [each[2] for each in heard] == ([] if numbers is None else [numbers])
    assert len(passed) == (numbers is None)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"path": "/classes"},
        {"headers": [(b"content-type", b"multipart/form-data; boundary=x")]},  # of a length that nobody knows
        {"headers": [(b"content-type", b"multipart/form-data"), (b"content-length", b"9")]},
        {"headers": [(b"content-type", b"text/plain; boundary=x"), (b"content-length", b"9")]},
        {"headers": 2 * [(b"content-type", b"multipart/form-data; boundary=x"), (b"content-length", b"9")]},
    ],
)
def test_a_head_that_is_not_plain_goes_to_the_app(change):
    heard, passed, _ = attempt(**change)
    assert passed == [PLAIN] and not heard


def test_large_bodies_are_not_held_in_memory():
    head = {b"content-type": b"multipart/form-data; boundary=x"}
    assert boundary(head | {b"content-length": b"%d" % LARGEST}) == b"x"
    for length in (b"%d" % (LARGEST + 1), b"9" * 30, b"-1", b"1_0", "²".encode()):
        assert boundary(head | {b"content-length": length}) is None


@pytest.mark.parametrize(("fault", "status"), [(Busy(), 503), (InputError("No picture."), 422), (TimeoutError(), 504)])
def test_what_cannot_be_answered_is_said_as_the_routes_say_it(fault, status):
    _, passed, sent = attempt(fault=fault)
    assert sent[0]["status"] == status and b'"error"' in sent[1]["body"] and not passed


def test_a_bug_is_answered_and_raised_for_the_log():
    with pytest.raises(KeyError):
        attempt(fault=KeyError("on purpose"))
    assert attempt.sent[0]["status"] == 500 and b"on purpose" not in attempt.sent[1]["body"]


def test_a_bug_behind_another_form_is_answered_once():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        raise KeyError("for the log")

    async def receive():
        return {"type": "http.request", "body": b"no form"}

    async def send(message):
        sent.append(message["type"])

    kind = (b"content-type", b"multipart/form-data; boundary=x")
    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}
    scope["headers"] = [kind, (b"content-length", b"7")]
    with pytest.raises(KeyError, match="for the log"):
        asyncio.run(Direct(app, Asked())(scope, receive, send))
    assert sent == ["http.response.start", "http.response.body"]


def test_a_body_in_the_smallest_pieces_costs_no_more_memory():
    length, seen = 20_000, []

    async def receive():
        seen.append(tracemalloc.get_traced_memory()[0])
        return {"type": "http.request", "body": bytes(1), "more_body": len(seen) < length}

    async def app(scope, receive, send):
        pass

    kind = (b"content-type", b"multipart/form-data; boundary=x")
    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}
    scope["headers"] = [kind, (b"content-length", b"%d" % length)]
    tracemalloc.start()
    try:
        asyncio.run(Direct(app, Asked())(scope, receive, None))
    finally:
        tracemalloc.stop()
    assert len(seen) == length and seen[-1] - seen[0] < 100 * length


def test_only_the_picture_is_kept_while_a_question_waits():
    body, held = PLAIN.replace(b"pixels", bytes(LARGEST // 2)), []

    class Waiting(Asked):
        async def ask(self, inquiry, picture, numbers):
            held.append(tracemalloc.get_traced_memory()[0] - before)
            return await super().ask(inquiry, picture, numbers)

    async def receive():
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        pass

    kind = (b"content-type", b"multipart/form-data; boundary=x")
    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}
    scope["headers"] = [kind, (b"content-length", b"%d" % len(body))]
    tracemalloc.start()
    try:
        pieces = [body[i : i + 2**16] for i in range(0, len(body), 2**16)]
        before = tracemalloc.get_traced_memory()[0] - len(body)  # the pieces are there already
        asyncio.run(Direct(None, Waiting())(scope, receive, send))
    finally:
        tracemalloc.stop()
    assert held[0] < 1.5 * len(body)


def test_who_goes_away_before_the_end_is_not_answered():
    gone = [{"type": "http.request", "body": PLAIN, "more_body": True}, {"type": "http.disconnect"}]
    service, passed = Asked(), []

    async def app(scope, receive, send):
        passed.extend([await receive(), await receive()])

    async def receive():
        return gone.pop(0)

    kind = (b"content-type", b"multipart/form-data; boundary=x")
    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}
    scope["headers"] = [kind, (b"content-length", b"%d" % (len(PLAIN) + 2))]
    asyncio.run(Direct(app, service)(scope, receive, None))
    assert not service.heard and [message["type"] for message in passed] == ["http.request", "http.disconnect"]


def test_both_ways_say_the_same_in_the_described_shape(server):
    schemas = {"/classify": Classified, "/search": Found, "/embed": Embedded}
    assert schemas.keys() == INQUIRIES.keys()
    with server.client() as client:
        for path, schema in schemas.items():
            files = {"image": png("green", 8)}
            plain, other = client.post(path, files=files), client.post(path, files=files, data={"and": "more"})
            assert plain.status_code == other.status_code == 200 and plain.json() == other.json()
            assert plain.headers.keys() == other.headers.keys()
            schema.model_validate_json(plain.content, strict=True)
            assert plain.json() == schema.model_validate(plain.json()).model_dump()  # and nothing else
            bad = {"image": b"no picture"}
            refused, also = client.post(path, files=bad), client.post(path, files=bad, data={"and": "more"})
            assert refused.status_code == also.status_code == 422 and refused.json() == also.json()
        client.get("/health")  # until then the lines before are written
    lines = [line for line in server.said() if line["path"] == "/embed"]
    assert [line["status"] for line in lines[-4:]] == [200, 200, 422, 422]


def test_a_picture_in_many_chunks_or_of_megabytes_is_answered(folder):
    wide = io.BytesIO()
    coloured("blue", 3, 900).save(wide, "PNG")
    assert len(wide.getvalue()) > LARGEST
    with serving(folder) as server, server.client() as client:
        assert client.post("/classify", files={"image": wide.getvalue()}).json()["label"] == "blue"
        request = client.build_request("POST", "/classify", files={"image": png("red", 3)})
        body = request.read()

        def chunks():
            yield from (body[i : i + 100] for i in range(0, len(body), 100))

        kind = {"Content-Type": request.headers["content-type"]}
        assert client.post("/classify", content=chunks(), headers=kind).json()["label"] == "red"
        head = f"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind['Content-Type']}\r\n"
        gone = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:50]
        raw(server, gone, patience=0.2)  # a client that goes away in its body harms nobody
        assert classify(client, "green", 3)["label"] == "green"
