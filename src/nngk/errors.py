"""The one exception for a user's mistake, and what keeps its sentence readable."""

import operator


class InputError(ValueError):
    """Something the user gave cannot be used.

    Its message is a sentence for a person: what was expected, what came, what to do. The command line prints it
    without a traceback; everything else that is raised is a bug.
    """


class MissingExtra(InputError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"Install it with: pip install 'nngk[{extra}]'"
        )


def whole_number(what: str, value: object, least: int, most: int | None = None, limit: str = "") -> int:
    """Return a value as an int. Raise InputError if it is no whole number from ``least`` to ``most``.

    >>> whole_number("k", 3, 1)
    3
    """
    expected = f"at least {least}" if most is None else f"from {least} to {most}{f', {limit}' if limit else ''}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{what} must be a whole number, {expected}; got {value!r}.")
    if number < least or (most is not None and number > most):
        raise InputError(f"{what} must be {expected}; got {number}.")
    return number


# Joiners are part of how some scripts and emoji are written; raw bytes of a name that is no text are left to the
# terminal, except those that some take for control characters.
_HARMLESS = {"\u200c", "\u200d", *map(chr, range(0xDCA0, 0xDD00))}


def printable(text: object) -> str:
    """Return a text that may come from outside as one line that is safe to print.

    Line breaks, terminal escapes, invisible characters and changes of direction are written as escapes, so that a name
    can neither move the cursor, nor colour or forge a line.

    >>> print(printable("cat\\x1b[2J\\nError: none"))
    cat\\x1b[2J\\nError: none
    """
    return "".join(c if c.isprintable() or c in _HARMLESS else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code < 0xDCA0:  # a byte that is no text
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
