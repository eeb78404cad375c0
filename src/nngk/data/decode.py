"""From any picture a user may hold to an RGB image, and to the uint8 tensor that training reads."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile

from nngk.data.arrays import picture_of, tensor_values
from nngk.data.flat_pictures import FlatPictures
from nngk.data.middle import planes, resized_middle
from nngk.data.opening import (
    ANYTHING,
    MOST_PIXELS,
    Allowed,
    Smaller,
    opened_bytes,
    opened_picture,
    require_bounded,
    silence_pillow,
)
from nngk.data.packs.layout import packed_picture
from nngk.data.shards.shard_files import picture_in_shard
from nngk.errors import InputError, whole_number
from nngk.files import forbidden

# What Pillow raises for damaged files, depending on the format and on where the damage is.
_DAMAGE: tuple[type[Exception], ...] = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, MemoryError)
_DAMAGE += (struct.error, zlib.error, RuntimeError, TypeError, AttributeError, OverflowError)
_DAMAGE += (ArithmeticError, Image.DecompressionBombError)

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_STRIP = 1 << 20  # pixels that are converted at a time, where that takes several copies

_LARGEST = 1 << 13  # pixels of a shorter side
_FINER = 2  # times the pixels that are wanted are decoded at least, along each side: resizing makes an average of them
LONGEST = 4  # times the shorter side: what a picture has beyond, at both ends of its longer side, is cut off


def load_image(source: Any, allowed: Allowed = ANYTHING) -> Image.Image:
    """Return an upright RGB picture from a path, the bytes of a file, a PIL image, an array or a tensor.

    Arrays are (H, W), (H, W, C) or (C, H, W); integers span their type's range, floats span 0 to 1. Greyscale,
    palette, 16-bit and CMYK become RGB, transparency is laid on white, EXIF rotation is applied. Files of JPEG, PNG,
    WebP, BMP, GIF, TIFF, PPM, AVIF, JPEG 2000, TGA and, with the extra 'heic', HEIC are read, up to 25 million pixels;
    larger JPEG pictures are read at a half, a quarter or an eighth of their size. Of bytes only what is ``allowed`` is
    decoded.

    >>> load_image(np.zeros((4, 6), dtype=np.uint8)).size
    (6, 4)
    """
    return _loaded(source, allowed=allowed)[0]


def _loaded(source: Any, smaller: Smaller | None = None, allowed: Allowed = ANYTHING) -> tuple[Image.Image, float]:
    """Return a picture, and how much smaller it is than its file says, which ``smaller`` may allow."""
    if isinstance(source, (str, Path)):
        return _from_file(Path(source), smaller)
    if isinstance(source, bytes):
        return _from_bytes(source, smaller, allowed)
    if isinstance(source, Image.Image):
        return _from_image(source), 1.0
    if isinstance(source, torch.Tensor):
        return _rgb(picture_of(tensor_values(source), channels_first=True), "The image"), 1.0
    if isinstance(source, np.ndarray):
        return _rgb(picture_of(source), "The image"), 1.0
    raise InputError(
        f"Cannot read an image from {type(source).__name__}: give a path, the bytes of a file, a PIL image, an "
        "array or a tensor."
    )


def fitted(
    source: Any,
    size: int,
    box: Sequence[float] | np.ndarray | None = None,
    *,
    squash: bool = False,
    middle: int | None = None,
    allowed: Allowed = ANYTHING,
) -> torch.Tensor:
    """Return the picture (or its box, clipped to the picture) with a shorter side of `size`, uint8 (3, height, width).

    Its aspect is kept, up to a longer side of four times the shorter one; `squash` makes it size×size instead. Of
    `middle` pixels along each side only the middle is computed, which is all that a centre crop of that size reads.

    >>> fitted(np.zeros((4, 6, 3), dtype=np.uint8), 8).shape
    torch.Size([3, 8, 12])
    """
    size = whole_number("The size of a picture", size, 1, _LARGEST)
    corners = _corners(box)
    if corners is None and _is_fitted(source, size, squash):
        return _cut(source.cpu(), middle).contiguous()

    def smaller(width: int, height: int) -> float:
        sides = (width, height) if corners is None else (corners[2] - corners[0], corners[3] - corners[1])
        return float(min(sides)) / (_FINER * size)

    image, scale = _loaded(source, smaller, allowed)
    if corners is not None:
        image = image.crop(_clip(corners * scale, image, source))
    if not squash:
        image = _without_ends(image)
    target = (size, size) if squash else fitted_size(image.width, image.height, size)
    if middle is not None and middle <= size:
        return torch.from_numpy(resized_middle(image, target, middle))
    if image.size != target:
        image = image.resize(target, Image.Resampling.BILINEAR)
    return torch.from_numpy(planes(image))


def _is_fitted(source: Any, size: int, squash: bool) -> bool:
    """Return whether a picture is what :func:`fitted` returns already."""
    if not isinstance(source, torch.Tensor) or source.dtype != torch.uint8 or source.ndim != 3 or source.is_sparse:
        return False
    channels, height, width = source.shape
    if channels != 3 or not height or not width:
        return False
    if squash:
        return height == width == size
    return max(height, width) <= LONGEST * min(height, width) and fitted_size(width, height, size) == (width, height)


def fitted_size(width: int, height: int, size: int) -> tuple[int, int]:
    """Return the width and height of a picture whose shorter side is brought to `size`, rounded as torchvision does.

    >>> fitted_size(500, 333, 256)
    (384, 256)
    """
    return (size, int(size * height / width)) if width <= height else (int(size * width / height), size)


def _cut(picture: torch.Tensor, middle: int | None) -> torch.Tensor:
    """Return the middle of a picture that is fitted already."""
    height, width = picture.shape[1:]
    if middle is None or middle > min(height, width):
        return picture
    left, top = (width - middle) // 2, (height - middle) // 2
    return picture[:, top : top + middle, left : left + middle]


def square(source: Any, size: int, box: Sequence[float] | np.ndarray | None = None) -> torch.Tensor:
    """Return the picture (or its box, clipped to the picture) squashed to a uint8 tensor (3, size, size).

    >>> square(np.zeros((4, 6, 3), dtype=np.uint8), 8).shape
    torch.Size([3, 8, 8])
    """
    return fitted(source, size, box, squash=True)


def squares(sources: Sequence[Any], size: int) -> torch.Tensor:
    """Return several pictures, squashed, as one uint8 batch (B, 3, size, size).

    >>> squares([np.zeros((4, 6), dtype=np.uint8)] * 2, 8).shape
    torch.Size([2, 3, 8, 8])
    """
    return as_batch([square(source, size) for source in sources], size, squash=True)  # type: ignore[return-value]


def fitted_pictures(sources: Sequence[Any], size: int, *, squash: bool = False) -> FlatPictures | torch.Tensor:
    """Return several pictures as one batch: `FlatPictures` that keep their aspect, or a stack of squares.

    >>> fitted_pictures([np.zeros((4, 6), dtype=np.uint8)], 8)[0].shape
    torch.Size([3, 8, 12])
    """
    return as_batch([fitted(source, size, squash=squash) for source in sources], size, squash=squash)


def as_batch(pictures: Sequence[torch.Tensor], size: int, *, squash: bool = False) -> FlatPictures | torch.Tensor:
    """Return decoded pictures as one batch: `FlatPictures`, or where they are squashed a stack of squares."""
    if not squash:
        return FlatPictures.of(list(pictures))
    return torch.stack(list(pictures)) if len(pictures) else torch.empty((0, 3, size, size), dtype=torch.uint8)


def stand_in(size: int) -> torch.Tensor:
    """Return a grey square in the place of a picture that cannot be read."""
    return torch.full((3, size, size), 128, dtype=torch.uint8)


def _without_ends(image: Image.Image) -> Image.Image:
    """Return the middle of a picture that is longer than is allowed; others as they are."""
    wide, tall = (min(side, LONGEST * other) for side, other in (image.size, image.size[::-1]))
    left, top = (image.width - wide) // 2, (image.height - tall) // 2
    return image if image.size == (wide, tall) else image.crop((left, top, left + wide, top + tall))


def _corners(box: Sequence[float] | np.ndarray | None) -> np.ndarray | None:
    """Return a box as four numbers; None for the whole picture, which a number that is missing stands for too."""
    if box is None:
        return None
    try:
        corners = np.asarray(box, dtype=np.float64)
    except (TypeError, ValueError):
        corners = np.empty(0)
    if corners.shape != (4,) or np.isinf(corners).any():
        raise InputError(f"A box is four numbers of pixels, x1, y1, x2, y2; got {box!r}.")
    return None if np.isnan(corners).any() else corners


def _clip(box: np.ndarray, image: Image.Image, source: Any) -> tuple[int, int, int, int]:
    """Return the corners of every pixel that the box touches and the picture has."""
    x1, y1, x2, y2 = (float(v) for v in box)
    clipped = (
        *(max(math.floor(x1), 0), max(math.floor(y1), 0)),
        *(min(math.ceil(x2), image.width), min(math.ceil(y2), image.height)),
    )
    if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
        where = f" of {source}" if isinstance(source, (str, Path)) else ""
        raise InputError(
            f"The box ({x1:g}, {y1:g}, {x2:g}, {y2:g}){where} has nothing inside the {image.width}×{image.height} "
            "picture: boxes are x1, y1, x2, y2 in pixels with x1 < x2 and y1 < y2."
        )
    return clipped


def _from_file(path: Path, smaller: Smaller | None) -> tuple[Image.Image, float]:
    try:
        packed = packed_picture(path)
        if packed is not None:
            return Image.fromarray(np.ascontiguousarray(packed.transpose(1, 2, 0))), 1.0
        inside = picture_in_shard(path)
        with opened_picture(path, smaller) if inside is None else opened_bytes(inside, smaller) as (image, size):
            picture = _rgb(image, f"The image {path}", own=True)
            return picture, max(picture.size) / max(size)
    except FileNotFoundError:
        raise InputError(f"There is no image {path}: check the path.") from None
    except PermissionError:
        raise forbidden(path) from None
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"The image {path} cannot be read ({error}): it is damaged, cut short or not an image. "
            "Replace it or remove it."
        ) from error


def _from_bytes(data: bytes, smaller: Smaller | None, allowed: Allowed) -> tuple[Image.Image, float]:
    try:
        with opened_bytes(data, smaller, allowed) as (image, size):
            picture = _rgb(image, "The image", own=True)
            return picture, max(picture.size) / max(size)
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"The image cannot be read ({error}): the bytes are damaged, cut short or not those of an image file."
        ) from error


def _from_image(image: Image.Image) -> Image.Image:
    try:
        if isinstance(image, ImageFile.ImageFile) and image.tile:  # it is not decoded yet
            require_bounded(image, "The image", MOST_PIXELS)  # nor ours to make smaller
        return _rgb(image, "The image")
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"The image cannot be read ({error}): open it again, or give its path.") from error


def _rgb(image: Image.Image, name: str, own: bool = False) -> Image.Image:
    """Return a picture as upright RGB: a copy, unless it is our ``own``, whose file may be closed once it is loaded."""
    if image.width == 0 or image.height == 0:
        raise InputError(f"{name} is empty ({image.width}×{image.height} pixels): give a picture.")
    image.load()
    turn = _UPRIGHT.get(_orientation(image))
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        flat = _deep_grey(image, name)
    elif image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        flat = _on_white(image)
    else:
        flat = image if own and image.mode == "RGB" else image.convert("RGB")
    return flat if turn is None else flat.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """Return how a camera says it was held; a picture whose notes are damaged is taken as it is."""
    silence_pillow()
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except _DAMAGE:
        return 1


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield an image in pieces of some rows each, and the row at which each begins."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(image: Image.Image) -> Image.Image:
    flat = Image.new("RGB", image.size)
    for top, piece in _strips(image):
        layered = piece.convert("RGBA")
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        flat.paste(Image.alpha_composite(white, layered).convert("RGB"), (0, top))
    return flat


def _deep_grey(image: Image.Image, name: str) -> Image.Image:
    """Return more than 8 bits of grey as RGB; the range of Pillow's 'I' and 'F' is read off the data."""
    top = max(float(np.asarray(piece).max()) for _, piece in _strips(image))
    if not all(np.isfinite(np.asarray(piece)).all() for _, piece in _strips(image)):
        raise InputError(f"{name} has values that are not finite: replace it or remove it.")
    scale = 1.0
    if image.mode.startswith("I;16") or top > 255:
        scale = 1 / 257.0
    elif image.mode == "F" and top <= 1:
        scale = 255.0
    grey = Image.new("L", image.size)
    for start, piece in _strips(image):
        values = np.rint(np.asarray(piece).astype(np.float64) * scale)
        grey.paste(Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)), (0, start))
    return grey.convert("RGB")
