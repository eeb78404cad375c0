"""HTTP/1.1 from strangers: heads of requests, and clients that do not read, have an end."""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from nngk.web.request_log import ENCODED_HEADERS

_HEAD_SECONDS = 10.0
_HEAD_BYTES = 32 * 2**10
_HEADERS = 100
_UNREAD_SECONDS = 30.0
_TOO_LONG = "The head of the request is too long."
_BODY = (b"content-length", b"transfer-encoding")
_UPGRADE = "This server speaks HTTP/1.1 and nothing else: send what has a body without the header 'Upgrade'."


class PatientProtocol(HttpToolsProtocol):
    """A connection whose patience has an end.

    A head has so many seconds, bytes and lines; what else comes without being part of a body (sizes of chunks and what
    stands behind the last one) has as many bytes; and an answer must be read, however slowly.
    """

    _due: asyncio.TimerHandle | None = None
    _watch: asyncio.TimerHandle | None = None
    _beside = 0  # bytes that came since the last head, or part of a body
    _unread = 0  # bytes of answers that nobody had read when we last looked
    _running: RequestResponseCycle | None = None  # others may wait behind it
    _why: str | None = None  # what is wrong with the head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of a request."""
        super().connection_made(transport)
        self._expect_head()
        self._watch = self.loop.call_later(_UNREAD_SECONDS, self._look)

    def data_received(self, data: bytes) -> None:
        """Take bytes in; whoever has sent a part of a head must send the rest in time."""
        if self._due is None and self._idle():
            self._expect_head()
        self._beside += len(data)
        super().data_received(data)
        if self._beside > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)
        if not self._idle():
            self._forget()

    def on_headers_complete(self) -> None:
        """Begin with the request unless its head is refused; an error here is answered with 400."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _HEAD_BYTES or len(self.headers) > _HEADERS:
            self._why = _TOO_LONG
        elif self.parser.should_upgrade() and any(name in _BODY for name, _ in self.headers):
            self._why = _UPGRADE  # the parser would skip the body
        if self._why is not None:
            raise ValueError(self._why)
        super().on_headers_complete()
        self._beside = 0

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, which has limits of its own."""
        super().on_body(body)
        self._beside = 0

    def on_message_complete(self) -> None:
        """Count the next head from its beginning."""
        super().on_message_complete()
        self._beside = 0

    def send_400_response(self, msg: str) -> None:
        """Answer as all errors are answered, or say nothing where another answer is on its way."""
        if not self.pipeline and (self._idle() or not self.cycle.response_started):
            body = json.dumps({"error": self._why or msg}).encode()
            own = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), b"connection": b"close"}
            lines = [b"%s: %s" % each for each in (*own.items(), *ENCODED_HEADERS)]
            self.transport.write(b"\r\n".join([b"HTTP/1.1 400 Bad Request", *lines, b"", body]))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._forget()
        if self._watch is not None:
            self._watch.cancel()
        if self._running is not None:
            self._running.disconnected = True  # uvicorn tells the last request only
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        self._due = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look(self) -> None:
        """Cut a client that has read nothing of its answer since the last look; closing would wait for it."""
        unread = self.transport.get_write_buffer_size()
        if unread and unread == self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._watch = self.loop.call_later(_UNREAD_SECONDS, self._look)
