"""Small pictures of the images behind the answers, found by an id that only they have."""

import hashlib
import io
from functools import lru_cache
from pathlib import Path

from PIL import Image

from nngk.data.decode import load_image
from nngk.errors import InputError
from nngk.web.taught import FOLDER

SIDE = 256


def photo_id(source: str) -> str:
    """Return the id of the image that came from ``source``; it says nothing about where that is.

    >>> photo_id("photos/owl/1.jpg")
    '588152c7bba7ea52fe3c'
    """
    return hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def photo_name(source: str) -> str:
    """Return what a person may read of a source: the file's name without its folders."""
    return source.replace("\\", "/").rsplit("/", 1)[-1]


@lru_cache(maxsize=1024)
def small_photo(source: str, folder: Path) -> bytes:
    """Return the image of a source as a small JPEG. Raise InputError if it is gone or cannot be read."""
    picture = load_image(_found(source, folder))
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=85)
    return out.getvalue()


def _found(source: str, folder: Path) -> Path:
    """Return the path of a source; what was taught lies in the model's folder, wherever that was moved to."""
    path = Path(source)
    moved = folder / FOLDER / path.name
    if path.parent.name == FOLDER and not path.exists() and moved.exists():
        return moved
    if "\0" in source:
        raise InputError("This image has no file.")
    return path
