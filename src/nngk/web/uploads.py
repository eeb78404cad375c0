"""From the bytes that a stranger sends to a picture, or a sentence."""

from typing import BinaryIO

from PIL import Image
from starlette.exceptions import HTTPException

from nngk.data.decode import load_image
from nngk.errors import InputError

# What cameras, phones and browsers make. Formats that run programs or have rare decoders (EPS, PSD, FPX …) are out.
Image.init()
FORMATS: list[str] = [name for name in ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF") if name in Image.OPEN]


def read_upload(file: BinaryIO, most_pixels: int) -> Image.Image:
    """Return an uploaded picture, upright and in RGB. Raise InputError if it is none, HTTPException if it is too large.

    The size is read from the head of the file: nothing is decoded of a picture that has too many pixels.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > most_pixels:
                raise _too_large(f"{image.width}×{image.height}", most_pixels)
            return load_image(image)
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
