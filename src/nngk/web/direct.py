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
        messages: list[Message] = []
        try:
            picture = await _picture(receive, messages, plain.between)
            if picture is not None:
                answer = await self.service.ask(plain.inquiry, picture, plain.numbers)
        except Exception as error:
            await answer_to(error)(scope, receive, send)
            if is_bug(error):
                raise  # so that the log says what it was
            return
        if picture is None:
            await self.app(scope, _again(messages, receive), send)
            return
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def _picture(receive: Receive, messages: list[Message], between: bytes) -> BytesIO | None:
    """Return the picture that is received, of which nothing else is kept; None, with the messages, if it is not plain.

    Nothing plain is received from a client that goes away.
    """
    while not messages or messages[-1].get("more_body"):
        messages.append(await receive())
    picture = only_picture(b"".join(message.get("body", b"") for message in messages), between)
    if picture is None or messages[-1]["type"] != "http.request":
        return None
    messages.clear()
    return BytesIO(picture)


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


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Return ``receive`` with what was received already."""

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again
