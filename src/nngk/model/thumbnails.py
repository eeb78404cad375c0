"""Small pictures of the images behind a model's centres, so that evidence can be shown where the photos are not."""

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nngk.data import BatchSource, load_image
from nngk.errors import InputError

SIDE = 96  # pixels of the longer side
MOST = 6 << 10  # bytes of one
ALL = 64 << 20  # bytes of a model's, together
_LEAST = 1 << 10  # bytes that show anything
_QUALITIES = (80, 60, 40, 20)


def thumbnail(picture: Any, most: int = MOST) -> bytes:
    """Return a picture of any kind as a small JPEG of at most ``most`` bytes; empty where none can be that small."""
    image = load_image(picture)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    for quality in _QUALITIES:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality, optimize=True)
        if out.tell() <= most:
            return out.getvalue()
    return b""


def thumbnails_of(source: BatchSource, total: int) -> list[bytes] | None:
    """Return a thumbnail of every image of a source; None where the model's ``total`` are too many for all to fit."""
    most = min(MOST, ALL // max(1, total))
    if most < _LEAST:
        return None
    made = []
    for start in range(0, len(source), 64):
        batch = source.batch(torch.arange(start, min(start + 64, len(source))))
        made += [thumbnail(batch[i], most) for i in range(len(batch))]
    return made


def as_tensors(thumbnails: Sequence[bytes]) -> dict[str, Tensor]:
    """Return thumbnails as tensors: all bytes in a row, and where each ends."""
    ends = np.cumsum([len(each) for each in thumbnails], dtype=np.int64)
    return {"bytes": torch.frombuffer(bytearray(b"".join(thumbnails) or b"\0"), dtype=torch.uint8)} | {
        "ends": torch.from_numpy(ends)
    }


def from_tensors(tensors: dict[str, Tensor], count: int) -> list[bytes]:
    """Return the thumbnails of ``count`` images. Raise InputError if these are not the tensors of thumbnails."""
    flat, ends = tensors.get("bytes"), tensors.get("ends")
    if flat is None or ends is None or flat.dtype != torch.uint8 or ends.dtype != torch.int64 or flat.ndim != 1:
        raise InputError("the thumbnails have no bytes or no ends")
    places = [0, *ends.tolist()] if ends.ndim == 1 else []
    if len(places) != count + 1 or places != sorted(places) or places[-1] > len(flat):
        raise InputError(f"the thumbnails should be {count}, one after the other")
    data = flat.numpy().tobytes()
    return [data[start:end] for start, end in pairwise(places)]
