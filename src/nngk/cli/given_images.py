"""Images as they are given on a command line: files, folders, web addresses, and '-' for standard input."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nngk.errors import InputError
from nngk.progress import say

if TYPE_CHECKING:
    from nngk.data.broken import Tolerance

STDIN = "-"
_MOST_BYTES = 1 << 26  # of a picture from standard input

STRICT = "Stop at the first image that cannot be read."
SKIP_BROKEN = "Go on without whatever images cannot be read."
strict_option = click.option("--strict", is_flag=True, help=STRICT)
skip_option = click.option("--skip-broken", is_flag=True, help=SKIP_BROKEN)


def broken_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about images that cannot be read."""
    return strict_option(skip_option(command))


def tolerance_of(strict: bool, skip_broken: bool) -> "Tolerance":
    """Return what the options say about broken images; a person at a terminal is asked."""
    from nngk.data.broken import Tolerance

    if strict and skip_broken:
        raise InputError("--strict stops at a broken image and --skip-broken goes on: give one of them.")
    return Tolerance(strict, skip_broken, _ask if sys.stdin.isatty() and sys.stderr.isatty() else None)


def _ask(question: str) -> bool:
    return click.confirm(question, err=True)


def sure(question: str) -> None:
    """Ask a person whether to go on. Raise InputError where nobody is there, or the answer is no."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        if click.confirm(f"{question} Go on all the same?", err=True):
            return
        raise InputError("Stopped; nothing was written.")
    raise InputError(f"{question} If it is as you want it, say so with --yes.")


def given_images(given: Sequence[str | Path]) -> tuple[list[str], list[Any]]:
    """Return the names of images and what to read them from; in place of a folder the images in it.

    What lies in a folder and is not read is said.
    """
    from nngk.data.folder import images_below, overlooked
    from nngk.data.remote import fetch_picture, is_address

    names: list[str] = []
    pictures: list[Any] = []
    for text, path in ((str(each), Path(each)) for each in given):
        if text == STDIN:
            found: list[Any] = [_standard_input()]
        elif is_address(text):
            found = [fetch_picture(text)]
        elif path.is_dir():
            found = sorted(images_below(path))
            said = overlooked(path)
            if not found:
                raise InputError(f"The folder {path} holds no images. {said}".rstrip())
            if said:
                say(said)
        elif path.exists():
            found = [path]
        else:
            raise InputError(f"There is no image {path}: check the path.")
        pictures += found
        names += [str(each) if isinstance(each, Path) else text for each in found]
    return names, pictures


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if not data:
        raise InputError("'-' reads an image from standard input, but nothing came: pipe a file into the command.")
    if len(data) > _MOST_BYTES:
        raise InputError(f"More than {_MOST_BYTES:,} bytes came from standard input: give a smaller picture.")
    return data


def readable_images(given: Sequence[str | Path], tolerance: "Tolerance") -> tuple[list[Any], int]:
    """Return the images that can be read, and how many were given."""
    from nngk.data.decode import load_image

    names, pictures = given_images(given)
    broken: dict[object, str] = {}
    for place, picture in enumerate(pictures):
        try:
            load_image(picture)
        except InputError as error:
            broken[place] = str(error) if isinstance(picture, Path) else f"{names[place]}: {error}"
    tolerance.accept(broken, len(pictures))
    return [picture for place, picture in enumerate(pictures) if place not in broken], len(pictures)
