"""Answers to what cannot be done: JSON with a sentence, and the status that says whose turn it is."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from nngk.errors import InputError
from nngk.gallery.interface import Unreachable

RETRY = {"Retry-After": "1"}


class Conflict(InputError):
    """The model is no longer what the request takes it for."""


class Unflushed(OSError):
    """The model was written, but the disk failed to promise that it stays."""


class Busy(Exception):
    """More is waiting than the server holds."""


def as_text(words: object) -> str:
    """Return a text that JSON can carry: bytes of a file name that are no text become question marks.

    >>> as_text("ca\\udcfft")
    'ca?t'
    """
    return str(words).encode("utf-8", "replace").decode()


def refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an answer that says in a sentence what was wrong."""
    return JSONResponse({"error": as_text(sentence)}, status, headers)


def _of_http(error: HTTPException) -> Response:
    sentences = {404: "There is nothing at this address.", 405: "This address does not take such requests."}
    plain = error.detail in ("Not Found", "Method Not Allowed")
    return refusal(
        error.status_code, sentences[error.status_code] if plain else error.detail, dict(error.headers or {})
    )


def _of_form(error: RequestValidationError) -> Response:
    wrong = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:3]]
    return refusal(422, f"The request does not fit the description at /openapi.json ({'; '.join(wrong)}).")


def _of_input(error: InputError) -> Response:
    return refusal(409 if isinstance(error, Conflict) else 422, str(error))


def _of_gallery(error: Unreachable) -> Response:
    return refusal(503, "The gallery does not answer at the moment: try again later.", RETRY)


def _of_busy(error: Busy) -> Response:
    return refusal(503, "Too many requests are waiting: try again in a moment.", RETRY)


def _of_time(error: TimeoutError) -> Response:
    return refusal(504, "The answer took too long; a change may still be made. Try again, or look at /classes.")


def _of_disk(error: OSError) -> Response:
    why = error.strerror or "disk error"
    if isinstance(error, Unflushed):
        return refusal(507, f"The model was changed, but the disk failed ({why}): a power cut may undo the change.")
    return refusal(507, f"The model could not be written ({why}); it is as it was before.")


def _of_bug(error: Exception) -> Response:
    return refusal(500, "Something went wrong inside the server; its log says what.")


# The first that fits: what is more special stands before what it is a kind of.
_KINDS: tuple[tuple[type[Exception], Callable[[Any], Response]], ...] = (
    (HTTPException, _of_http),
    (RequestValidationError, _of_form),
    (Unreachable, _of_gallery),
    (InputError, _of_input),
    (Busy, _of_busy),
    (TimeoutError, _of_time),
    (OSError, _of_disk),
    (Exception, _of_bug),
)


def is_bug(error: Exception) -> bool:
    """Return whether an error is nobody's but ours: the log must say what it was.

    >>> is_bug(KeyError("x")), is_bug(Busy())
    (True, False)
    """
    return not any(isinstance(error, kind) for kind, _ in _KINDS[:-1])


def answer_to(error: Exception) -> Response:
    """Return the answer that says what was wrong."""
    return next(say(error) for kind, say in _KINDS if isinstance(error, kind))


def answer_with_sentences(app: FastAPI) -> None:
    """Let an app answer everything that is raised with JSON."""

    def handle(request: Request, error: Exception) -> Response:
        return answer_to(error)

    for kind, _ in _KINDS:
        app.add_exception_handler(kind, handle)
