"""What a request may cost: who may ask at all, how often, how many at once, how many bytes and for how long."""

import asyncio
import ipaddress
import time
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nngk.web.refusals import RETRY, refusal

_READS = ("GET", "HEAD", "OPTIONS")
_DISCARDED = 8 * 2**20  # bytes of a refused body that are read and dropped, so that the client sees the answer
_REMEMBERED = 10_000  # clients whose rates are known


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    body: int = 64 * 2**20  # bytes of a request
    pixels: int = 50_000_000  # of a picture
    waiting: int = 512  # requests
    rate: float = 200.0  # requests with a body per second and client, 0 for any number
    seconds: float = 30.0  # for reading a request, and for answering it
    at_once: int = 32  # pictures in one pass of the network


USUAL = Limits()


class Rates:
    """Buckets that fill with time: a client may spend ``rate`` requests per second, and two seconds' worth at once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._spent: dict[str, tuple[float, float]] = {}

    def allow(self, client: str, now: float) -> bool:
        """Return whether a client may ask now, and count it.

        >>> rates = Rates(1.0)
        >>> [rates.allow("a", 0.0) for _ in range(3)], rates.allow("b", 0.0), rates.allow("a", 1.0)
        ([True, True, False], True, True)
        """
        if not self.rate:
            return True
        left, last = self._spent.get(client, (2 * self.rate, now))
        left = min(2 * self.rate, left + (now - last) * self.rate)
        if len(self._spent) > _REMEMBERED:
            self._spent.clear()
        self._spent[client] = (left - 1 if left >= 1 else left, now)
        return left >= 1


class Gate:
    """Let a request in, or answer it before it costs anything."""

    def __init__(self, app: ASGIApp, limits: Limits, host: str) -> None:
        self.app, self.limits = app, limits
        self.rates = Rates(limits.rate)
        self.inside = 0
        self.names = _own_names(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.names is not None and _name(headers.get(b"host", "")) not in self.names:
            # A page from elsewhere whose name was made to point here must not read what is here.
            await refusal(421, "This server answers only to the name of this machine.")(scope, receive, send)
        elif scope["method"] in _READS:
            await self.app(scope, receive, send)
        else:
            await self._with_body(scope, receive, send, headers)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, str]) -> None:
        refused = self._refused(scope, headers)
        if refused is not None:
            if headers.get(b"expect", "").lower() == "100-continue":  # the body was not sent, and should not be
                send = _closing(send)
            else:
                await _discard(receive)
            await refused(scope, receive, send)
            return
        self.inside += 1
        try:
            await self.app(scope, _bounded(receive, self.limits), send)
        finally:
            self.inside -= 1

    def _refused(self, scope: Scope, headers: dict[bytes, str]) -> ASGIApp | None:
        client = (scope.get("client") or ("",))[0]
        length = headers.get(b"content-length", "0")
        if headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            return refusal(403, "Pages of other sites may not ask this server.")
        if not self.rates.allow(client, time.monotonic()):
            return refusal(429, f"At most {self.limits.rate:g} requests per second are answered.", RETRY)
        if self.inside >= self.limits.waiting:
            return refusal(503, "Too many requests are waiting: try again in a moment.", RETRY)
        if length.isdecimal() and int(length) > self.limits.body:
            return refusal(413, _TOO_LONG.format(self.limits.body), {"Connection": "close"})
        return None


def _closing(send: Send) -> Send:
    """Return ``send`` for a connection that ends with its answer: a body that never comes must not be waited for."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [(name, value) for name, value in message["headers"] if name.lower() != b"connection"]
            message = {**message, "headers": [*others, (b"connection", b"close")]}
        await send(message)

    return sent


_TOO_LONG = "The request is too long: at most {:,} bytes are read."


def _bounded(receive: Receive, limits: Limits) -> Receive:
    """Return ``receive`` with an end: so many bytes, and so many seconds until the last of them is there."""
    total, done, due = 0, False, time.monotonic() + limits.seconds

    async def bounded() -> Message:
        nonlocal total, done
        if done:  # what is left is whether the client goes away
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "The request took too long to arrive.", {"Connection": "close"}) from None
        total += len(message.get("body", b""))
        done = not message.get("more_body", False)
        if total > limits.body:
            raise HTTPException(413, _TOO_LONG.format(limits.body), {"Connection": "close"})
        return message

    return bounded


async def _discard(receive: Receive) -> None:
    """Read a body that nobody wants, up to a point: a client that is cut off while it sends sees no answer."""
    total = 0
    try:
        async with asyncio.timeout(2.0):
            while total < _DISCARDED:
                message = await receive()
                total += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _name(host: str) -> str:
    """Return the name in a Host header, without its port.

    >>> _name("localhost:8000"), _name("[::1]:80"), _name("Example.org")
    ('localhost', '::1', 'example.org')
    """
    if host.startswith("["):
        return host[1:].split("]")[0]
    return host.rsplit(":", 1)[0].lower()


def _own_names(host: str) -> set[str] | None:
    """Return the names that this machine has for itself; None, for any name, where others may connect."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return {"localhost", "127.0.0.1", "::1", host} if local else None
