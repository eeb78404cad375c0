"""Questions that are asked as nearly everybody asks them, answered past the framework's machinery.

It takes longer than all else that a question costs beside the network and the decoding. The routes of
``nngk.web.questions`` say the same, and answer whatever is not asked so plainly.
"""

from dataclasses import dataclass
from io import BytesIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nngk.web.inquiries import INQUIRIES, Inquiry
from nngk.web.plain_form import boundary, only_picture
from nngk.web.refusals import answer_to, is_bug
from nngk.web.service import Service


@dataclass(frozen=True)
class _Plain:
    """What the head of a plain request says."""

    inquiry: Inquiry
    numbers: dict[str, int]
    between: bytes


class Direct:
    """Answer plain questions, and leave all other requests to ``app``."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = _plain(scope) if scope["type"] == "http" else None
        if plain is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = plain.inquiry  # what the counters ask for
        try:
            picture, receive = await _received(receive, plain.between)
            if picture is not None:
                answer = await self.service.ask(plain.inquiry, picture, plain.numbers)
        except Exception as error:
            await answer_to(error)(scope, receive, send)
            if is_bug(error):
                raise  # so that the log says what it was
            return
        if picture is None:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def _received(receive: Receive, between: bytes) -> tuple[BytesIO | None, Receive]:
    """Return the picture of a plain form, or None and what gives another reader all that was received.

    A body is one piece of memory, however small the pieces are that it comes in.
    """
    body, last = bytearray(), await receive()
    body += last.get("body", b"")
    while last.get("more_body"):
        last = await receive()
        body += last.get("body", b"")
    whole = last["type"] == "http.request"  # otherwise the client is gone
    picture = only_picture(bytes(body), between) if whole else None
    if picture is not None:
        return BytesIO(picture), receive
    first: Message = {"type": "http.request", "body": bytes(body), "more_body": not whole}
    left = [first] if whole else [first, last]

    async def again() -> Message:
        return left.pop(0) if left else await receive()

    return None, again


def _plain(scope: Scope) -> _Plain | None:
    """Return what a request asks, as far as its head says; None if it is not a plain question."""
    inquiry = INQUIRIES.get(scope["path"]) if scope["method"] == "POST" else None
    if inquiry is None:
        return None
    headers = dict(scope["headers"])
    between = boundary(headers) if len(headers) == len(scope["headers"]) else None
    numbers = _numbers(inquiry, scope["query_string"])
    return None if between is None or numbers is None else _Plain(inquiry, numbers, between)


def _numbers(inquiry: Inquiry, query: bytes) -> dict[str, int] | None:
    """Return the numbers of a question; None if its query has anything but some of them, in their ranges."""
    given: dict[str, int] = {}
    for pair in query.decode("latin-1").split("&") if query else ():
        name, _, digits = pair.partition("=")
        number = inquiry.numbers.get(name)
        if number is None or name in given or not (digits.isascii() and digits.isdecimal() and len(digits) < 6):
            return None
        given[name] = int(digits)
        if not number.least <= given[name] <= number.most:
            return None
    return {name: given.get(name, number.usual) for name, number in inquiry.numbers.items()}
