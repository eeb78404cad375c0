"""The one exception for a user's mistake."""


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
