"""From the bytes that a stranger sends to a picture, or a sentence."""

from collections.abc import Callable
from typing import BinaryIO, TypeVar

from PIL import Image
from starlette.exceptions import HTTPException

from nngk.data.opening import FORMATS, require_bounded
from nngk.errors import InputError

Image.init()
_READ: list[str] = [name for name in FORMATS if name in Image.OPEN]


T = TypeVar("T")


def read_upload(file: BinaryIO, most_pixels: int, read: Callable[[bytes], T]) -> T:
    """Return what ``read`` makes of an uploaded picture. Raise InputError if it is none, HTTPException if too large.

    The size is read from the head of the file: nothing is decoded of a picture that has too many pixels.
    """
    try:
        with Image.open(file, formats=_READ) as image:
            if image.width * image.height > most_pixels:
                raise _too_large(f"{image.width}×{image.height}", most_pixels)
            require_bounded(image, "The upload")
        file.seek(0)
        return read(file.read())
    except (InputError, HTTPException):
        raise
    except Image.DecompressionBombError:
        raise _too_large("far more", most_pixels) from None
    except Exception as error:  # decoders raise anything for bytes that somebody made up
        kinds = "JPEG, PNG, WebP, GIF, BMP or TIFF"
        raise InputError(
            f"The upload is not a picture that can be read: it is damaged, cut short, or not {kinds} "
            f"({type(error).__name__})."
        ) from None


def _too_large(size: str, most_pixels: int) -> HTTPException:
    return HTTPException(413, f"The picture has {size} pixels; at most {most_pixels:,} are read. Send a smaller one.")
