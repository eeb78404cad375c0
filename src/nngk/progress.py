"""Progress bars on a terminal and plain lines elsewhere, both on standard error, so that answers stay clean."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nngk.errors import printable

Advance = Callable[..., None]  # (more, note=…)
Seen = Callable[..., None]  # (done, total, note=…)

_live: Any = None  # the display on the terminal: a task inside a task becomes a second line of it
quiet = False  # whether nothing is shown at all


def say(line: str) -> None:
    """Print one line for a person; what it says of names from outside is made safe to print."""
    if quiet:
        return
    line = printable(line)
    if _live is not None:
        _live.console.print(line, highlight=False, markup=False)
    else:
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def task(description: str, total: int) -> Iterator[Advance]:
    """Show a bar with the time left, which ``advance(n, note="…")`` moves on; without a terminal, show nothing.

    >>> with task("counting", 3) as advance:
    ...     advance(3)
    """
    with watch(description) as seen:
        done = 0

        def advance(n: int = 1, note: str | None = None) -> None:
            nonlocal done
            done += n
            seen(done, total, note)

        advance(0)
        yield advance


@contextlib.contextmanager
def watch(description: str) -> Iterator[Seen]:
    """Show the same bar for work that tells how much is done of how much: ``seen(done, total)``."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, note=None: None
        return
    try:
        display, outermost = _live or _display(), _live is None
    except ImportError:  # a machine without rich still trains
        yield lambda done, total, note=None: None
        return
    with _up(display) if outermost else contextlib.nullcontext():
        number = display.add_task(description, total=None, note="")

        def seen(done: int, total: int, note: str | None = None) -> None:
            display.update(number, completed=done, total=total, **({} if note is None else {"note": note}))

        try:
            yield seen
        finally:
            display.remove_task(number)


@contextlib.contextmanager
def _up(display: Any) -> Iterator[None]:
    global _live
    _live = display
    try:
        with display:
            yield
    finally:
        _live = None


def _display() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
