"""Standard input and output as a command line needs them, however the process was started."""

import codecs
import io
import os
import sys

ESCAPES = "nngk-escapes"  # the name of how characters are written that a terminal's encoding does not have


def prepare_streams() -> None:
    """Put nothing in the place of streams that were closed, and let any name be printed in any encoding."""
    # A file that is opened later must not get the number of a closed stream: libraries print there.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    codecs.register_error(ESCAPES, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write bytes of a file's name that are no text as they are, and what the encoding lacks as an escape."""
    assert isinstance(error, UnicodeEncodeError)
    part = error.object[error.start : error.end]
    out = bytearray()
    for character in part:
        raw = 0xDC80 <= ord(character) <= 0xDCFF
        out += bytes([ord(character) - 0xDC00]) if raw else character.encode("ascii", "backslashreplace")
    return bytes(out), error.end
