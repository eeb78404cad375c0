"""What threads find out for those who wait in an event loop: they are woken once for many answers."""

import asyncio
from collections import deque
from typing import Any

_Found = deque[tuple["Awaited", Any, BaseException | None]]


class Awaited:
    """An answer to come. A thread sets it as it sets a future's; who waits for it hears when mail is delivered."""

    def __init__(
        self, future: "asyncio.Future[Any]", found: "deque[tuple[Awaited, Any, BaseException | None]]"
    ) -> None:
        self.future, self._found, self._set = future, found, False

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether somebody still waits."""
        return not self.future.cancelled()

    def done(self) -> bool:
        """Return whether there is an answer."""
        return self._set

    def set_result(self, value: Any) -> None:
        """Answer."""
        self._set = True
        self._found.append((self, value, None))

    def set_exception(self, error: BaseException) -> None:
        """Say why there is no answer."""
        self._set = True
        self._found.append((self, None, error))


class Mail:
    """Answers on their way from threads to one event loop."""

    def __init__(self) -> None:
        self._found: _Found = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def awaited(self) -> Awaited:
        """Return an answer to wait for, in the event loop that runs."""
        self._loop = asyncio.get_running_loop()
        return Awaited(self._loop.create_future(), self._found)

    def deliver(self) -> None:
        """Wake those whose answers are there; for any thread."""
        if self._found and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        while self._found:
            awaited, value, error = self._found.popleft()
            if awaited.future.done():  # who waited is gone
                continue
            if error is None:
                awaited.future.set_result(value)
            else:
                awaited.future.set_exception(error)
