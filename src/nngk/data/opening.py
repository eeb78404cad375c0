"""Open a file that may be anything as a picture, and bound what it costs before a pixel is decoded.

Only regular files are opened, only by the decoders of the formats that are meant to be read, and only if their header
promises a picture that fits: a small file may hold a picture of gigabytes, or start another program.
"""

from __future__ import annotations

import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from PIL import Image, ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile

from nngk.errors import InputError, MissingExtra
from nngk.files import require_regular

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "JPEG2000")
_HEIF = "HEIF"  # photos of phones, read by an optional package
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_BY_NAME = {".tga": "TGA"}  # a format without a mark of its own, which anything may look like

MOST_PIXELS = 25_000_000  # that are decoded: about ten bytes each with all copies, and a second of work
_JPEG = ("JPEG", "MPO")
_MOST = {"JPEG": 256_000_000, "MPO": 256_000_000, "WEBP": 12_500_000, "JPEG2000": 16_000_000}
_MOST_JPEG2000 = 4_000_000  # that are decoded
_MOST_SLOW = 200_000  # of what Pillow decodes in Python, pixel by pixel
_SLOW = ("ppm", "ppm_plain", "bmp_rle")
_MOST_SCANS = 500_000_000  # pixels × scans of a progressive JPEG: each scan is a walk over all pixels
_MOST_BYTES = 1 << 29  # of a file: some decoders read it whole
_AT_ONCE = 4 * MOST_PIXELS  # in all threads together
_NO_PATH = Path("bytes")
_PILLOW = r"PIL\."
_SILENT = ("ignore", None, UserWarning, re.compile(_PILLOW), 0)  # as `warnings.filters` holds it

Smaller = Callable[[int, int], float]  # of a width and a height: by how much they may be divided


class Allowed(NamedTuple):
    """What may be decoded: some formats, and of them what ``require`` does not raise for when it sees the head."""

    formats: tuple[str, ...]
    require: Callable[[ImageFile.ImageFile], object]


ANYTHING = Allowed((*FORMATS, _HEIF), lambda image: None)


@contextmanager
def opened_picture(path: Path, smaller: Smaller | None = None) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """Yield a picture whose pixels are not decoded yet, and the size that its file says.

    A JPEG picture is set to be decoded at a half, a quarter or an eighth of its size where ``smaller`` allows it, and
    like a JPEG 2000 picture where it is very large. Raise
    InputError if the file is not a regular one, or its picture is too large; OSError and others if it is no picture.
    """
    status = require_regular(path, "an image")
    if status.st_size > _MOST_BYTES:
        raise InputError(
            f"The image {path} has {status.st_size:,} bytes; files of at most {_MOST_BYTES:,} are read: make it "
            "smaller or remove it."
        )
    # Without waiting: what is a file now may have been exchanged for a pipe.
    with (
        open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as stream,
        _opened(stream, path, f"The image {path}", smaller) as found,
    ):
        yield found


@contextmanager
def opened_bytes(
    data: bytes, smaller: Smaller | None = None, allowed: Allowed = ANYTHING
) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """Yield the picture in the bytes of a file, if it is ``allowed``, as :func:`opened_picture` does."""
    if len(data) > _MOST_BYTES:
        raise InputError(f"The image has {len(data):,} bytes; at most {_MOST_BYTES:,} are read: make it smaller.")
    with _opened(io.BytesIO(data), _NO_PATH, "The image", smaller, allowed) as found:
        yield found


@contextmanager
def _opened(
    stream: IO[bytes], path: Path, name: str, smaller: Smaller | None, allowed: Allowed = ANYTHING
) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    image = _recognised(stream, path, allowed.formats)
    size = image.size
    allowed.require(image)
    require_bounded(image, name)
    _set_smaller(image, 1 if smaller is None else smaller(*size))
    with _room.taken(image.width * image.height):
        yield image, size


def _register_heif() -> None:
    """Teach Pillow to read HEIC photos. Raise MissingExtra where the package for that is not installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise MissingExtra("pillow-heif", "heic", "A HEIC photo") from None
    register_heif_opener(thumbnails=False)


def silence_pillow() -> None:
    """Let no raw warning of Pillow about a damaged picture through: whether it can be read is said in our own words.

    Pictures are opened in many threads, in which `warnings.catch_warnings` would undo each other's filters.
    """
    if _SILENT not in warnings.filters:
        warnings.filterwarnings("ignore", category=UserWarning, module=_PILLOW)


def _recognised(stream: IO[bytes], path: Path, formats: tuple[str, ...]) -> ImageFile.ImageFile:
    """Return the picture in a stream, in whichever of some formats it is."""
    Image.init()
    silence_pillow()
    start = stream.read(16)
    heif = start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS
    if heif and _HEIF in formats and _HEIF not in Image.OPEN:
        _register_heif()
    why = "it is no JPEG, PNG, WebP, BMP, GIF, TIFF, PPM, AVIF, JPEG 2000 or HEIC picture"
    for name in (*formats, *filter(None, [_BY_NAME.get(path.suffix.lower())])):
        factory, accepts = Image.OPEN.get(name, (None, None))
        if factory is None or (accepts is not None and accepts(start) is not True):
            continue
        stream.seek(0)
        try:
            return factory(stream, os.fspath(path))
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            why = str(error) or why
    raise OSError(why)


def require_bounded(image: ImageFile.ImageFile, name: str, most: int | None = None) -> None:
    """Raise InputError if a picture that is not decoded yet has more pixels than its kind, or ``most``, allows."""
    most, hint = most or _MOST.get(image.format or "", MOST_PIXELS), ""
    if image.tile and image.tile[0][0] in _SLOW:
        most, hint = _MOST_SLOW, " of this kind, which is slow to decode,"
    elif image.format in _JPEG:
        scans = _scans(image)
        if scans > 1:
            most, hint = min(MOST_PIXELS, _MOST_SCANS // scans), f" in a JPEG of {scans} scans"
    if image.width * image.height > most:
        raise InputError(
            f"{name} has {image.width:,}×{image.height:,} pixels; pictures of at most {most:,}{hint} are read: make "
            "it smaller or remove it."
        )


def _set_smaller(image: Image.Image, allowed: float) -> None:
    """Set a picture to be decoded at a part of its size, where its format can: if it is very large, or as allowed."""
    pixels = image.width * image.height
    if image.format in _JPEG:
        needed = next(scale for scale in (1, 2, 4, 8) if pixels <= scale * scale * MOST_PIXELS)
        scale = max(needed, *(scale for scale in (1, 2, 4, 8) if scale <= max(allowed, 1)))
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
    elif isinstance(image, Jpeg2KImageFile) and pixels > _MOST_JPEG2000:
        image.reduce = next(power for power in range(1, 5) if pixels <= 4**power * _MOST_JPEG2000)


def _scans(image: ImageFile.ImageFile) -> int:
    """Return how often a JPEG walks over its pixels: once, or if they come in steps, as often as scans begin in it."""
    stream = image.fp
    if stream is None:
        return 1
    here = stream.tell()
    try:
        if not image.info.get("progressive") and _first_scan(stream) == getattr(image, "layers", 1):
            return 1
        stream.seek(0)
        count, last = 0, b""
        while block := stream.read(1 << 20):
            count += (last + block).count(b"\xff\xda")
            last = block[-1:]
        return max(count, 2)
    finally:
        stream.seek(here)


def _first_scan(stream: IO[bytes]) -> int:
    """Return the number of components in a JPEG's first scan; 0 if that is not to be seen."""
    stream.seek(2)
    while len(head := stream.read(4)) == 4 and head[0] == 0xFF:
        if head[1] == 0xDA:
            return int.from_bytes(stream.read(1), "big")
        stream.seek(int.from_bytes(head[2:], "big") - 2, os.SEEK_CUR)
    return 0


class _Room:
    """A number of pixels that may be in the making at one time, in all threads together."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reset()

    def reset(self) -> None:
        self.used, self.changed = 0, threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Wait until there is room for this much, or nothing else is being made, and hold it."""
        with self.changed:
            self.changed.wait_for(lambda: not self.used or self.used + amount <= self.total)
            self.used += amount
        try:
            yield
        finally:
            with self.changed:
                self.used -= amount
                self.changed.notify_all()


_room = _Room(_AT_ONCE)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_room.reset)  # the threads that hold it are not there
