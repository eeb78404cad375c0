"""A picture from the web, bounded in size and in time."""

import http.client
import threading
import time
import urllib.error
import urllib.request
from queue import Empty, Queue

from nngk.errors import InputError

_MOST_BYTES = 1 << 26
_SECONDS = 30.0
_BLOCK = 1 << 16


def is_address(text: str) -> bool:
    """Return whether a text is the address of something on the web.

    >>> is_address("https://example.org/owl.jpg"), is_address("owl.jpg")
    (True, False)
    """
    return text.lower().startswith(("http://", "https://"))


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follow a redirection to the web, and to nothing else."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if not is_address(newurl):
            raise urllib.error.URLError(f"it leads to {newurl}, which is no web address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_picture(address: str, seconds: float = _SECONDS, most: int = _MOST_BYTES) -> bytes:
    """Return the bytes at a web address. Raise InputError if it does not answer, or sends too much or too slowly."""
    come: Queue[bytes | BaseException] = Queue()

    def fetch() -> None:
        try:
            come.put(_fetched(address, seconds, most))
        except BaseException as error:
            come.put(error)

    # In a thread: a timeout of the library begins anew with every byte, of which one now and then is enough for it.
    threading.Thread(target=fetch, daemon=True).start()
    try:
        found = come.get(timeout=seconds + 1)
    except Empty:
        found = InputError(f"{address} has not answered after {seconds:g} seconds: give a file, or try again.")
    if isinstance(found, BaseException):
        raise found
    return found


def _fetched(address: str, seconds: float, most: int) -> bytes:
    end = time.monotonic() + seconds
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "nngk"})
        with urllib.request.build_opener(_WebOnly).open(request, timeout=seconds) as answer:
            data = bytearray()
            while block := answer.read1(_BLOCK):
                data += block
                if len(data) > most:
                    raise InputError(f"{address} sends more than {most:,} bytes: give a smaller picture.")
                if time.monotonic() > end:
                    raise TimeoutError(f"it was not there after {seconds:g} seconds")
            length = answer.headers.get("Content-Length")
            if length is not None and len(data) < int(length):
                raise http.client.IncompleteRead(bytes(data), int(length) - len(data))
            return bytes(data)
    except InputError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{address} answers '{error.code} {error.reason}': check the address.") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise InputError(
            f"{address} cannot be fetched ({why}): check the address and the connection, or give a file."
        ) from None
