"""From the bytes that a stranger sends to a picture, or a sentence."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, TypeVar

from PIL.Image import DecompressionBombError
from PIL.ImageFile import ImageFile
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from nngk.data.opening import FORMATS, Allowed
from nngk.errors import InputError

T = TypeVar("T")

# What `sent_picture` reads, for the description of the routes. FastAPI can read such a form itself, at a higher cost.
PICTURE_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {
                            "type": "string",
                            "contentMediaType": "application/octet-stream",
                            "description": "A JPEG, PNG, WebP, GIF, BMP or TIFF file.",
                        }
                    },
                }
            }
        },
    }
}


@asynccontextmanager
async def sent_picture(request: Request) -> AsyncIterator[BinaryIO]:
    """Yield the file in the field ``image`` of a form. Raise HTTPException if there is none."""
    try:
        form = await request.form()
    except HTTPException:
        raise
    except Exception as error:  # parsers raise anything for bytes that somebody made up, or that never come
        raise HTTPException(400, f"The form could not be read ({type(error).__name__}).") from None
    try:
        image = form.get("image")
        if not isinstance(image, UploadFile):
            raise HTTPException(
                422,
                "The request does not fit the description at /openapi.json (image: a file in a multipart form was "
                "expected).",
            )
        yield image.file
    finally:
        await form.close()


def read_upload(file: BinaryIO, most_pixels: int, read: Callable[[bytes, Allowed], T]) -> T:
    """Return what ``read`` makes of an uploaded picture. Raise InputError if it is none, HTTPException if too large.

    The size is read from the head of the file: nothing is decoded of a picture that has too many pixels.
    """

    def too_large(size: str) -> HTTPException:
        return HTTPException(
            413, f"The picture has {size} pixels; at most {most_pixels:,} are read. Send a smaller one."
        )

    def require(image: ImageFile) -> None:
        if image.width * image.height > most_pixels:
            raise too_large(f"{image.width}×{image.height}")

    try:
        return read(file.read(), Allowed(FORMATS, require))
    except HTTPException:
        raise
    except Exception as error:
        if isinstance(error, InputError) and error.__cause__ is None:
            raise
        cause = error.__cause__ or error  # decoders raise anything for bytes that somebody made up
        if isinstance(cause, DecompressionBombError):  # before the size could be asked for
            raise too_large("far more") from None
        kinds = "JPEG, PNG, WebP, GIF, BMP or TIFF"
        raise InputError(
            f"The upload is not a picture that can be read: it is damaged, cut short, or not {kinds} "
            f"({type(cause).__name__})."
        ) from None
