"""One line of JSON per request, the counters, and the headers that every answer carries."""

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nngk.web.counters import Counters

LOG = logging.getLogger("nngk.requests")

# The page loads what comes from here and nothing else; pictures that were just chosen are shown from memory.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class JsonLines(logging.Formatter):
    """Write a record as one line of JSON, so that nothing in it can forge another line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


class Witness:
    """Note every request when it is answered, and give every answer its headers."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app, self.counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.perf_counter(), 0, 0

        async def watched(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                extra = [*ENCODED_HEADERS, (b"cache-control", b"no-store")]
                message["headers"] = [*message["headers"], *(each for each in extra if each[0] not in present)]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self._note(scope, status, sent, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, sent: int, seconds: float) -> None:
        # The route as it is declared: addresses that strangers make up must not become labels without end.
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        self.counters.requests.labels(method, route, status).inc()
        self.counters.seconds.labels(route).observe(seconds)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1000 * seconds, 1),
            "bytes": sent,
            "client": (scope.get("client") or ("",))[0],
        }
        if LOG.isEnabledFor(logging.INFO):  # made here, as the logger would first look for who calls it
            LOG.handle(LOG.makeRecord(LOG.name, logging.INFO, "", 0, "request", (), None, extra={"fields": fields}))
