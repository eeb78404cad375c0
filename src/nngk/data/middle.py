"""The middle of a resized picture: what a centre crop reads, without the rest."""

import importlib
import os
from types import ModuleType

import numpy as np
from PIL import Image


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("nngk.data._pictures")
    except ModuleNotFoundError:  # installed without a compiler
        return None


_core = _load()


def core() -> ModuleType | None:
    """Return the compiled core for pictures, or None where it is missing or not to be used."""
    return None if os.environ.get("NNGK_NO_NATIVE") else _core


_ROUNDED = 0.02  # how far the scales of both sides differ at most where only whole pixels make them differ
_TALL = 1.9  # times its width


def planes(image: Image.Image) -> np.ndarray:
    """Return an RGB picture channel by channel, uint8 (3, height, width).

    Without torch: its threads would be woken for every picture.
    """
    return np.stack([np.asarray(channel) for channel in image.split()])


def resized_middle(image: Image.Image, target: tuple[int, int], side: int) -> np.ndarray:
    """Return the middle, uint8 (3, side, side), of an RGB picture resized to ``target``, its width and height.

    The compiled core computes nothing else; the pixels are those of Pillow's bilinear filter, with it and without.
    It makes a picture narrower before it makes it lower, as Pillow does unless it is very tall or squashed.

    >>> resized_middle(Image.new("RGB", (40, 30), "white"), (16, 12), 8).shape
    (3, 8, 8)
    """
    left, top = ((whole - side) // 2 for whole in target)
    if image.size == target:
        return planes(image.crop((left, top, left + side, top + side)))
    squashed = target[0] == target[1] and image.width != image.height  # however little: Pillow then chooses the order
    squashed |= abs(image.width * target[1] - image.height * target[0]) > _ROUNDED * image.width * target[1]
    native = core()
    if native is None or squashed or image.height > _TALL * image.width:
        whole = image.resize(target, Image.Resampling.BILINEAR)
        return planes(whole.crop((left, top, left + side, top + side)))
    out = np.empty((3, side, side), dtype=np.uint8)
    window = target[1], target[0], top, left, out
    try:  # where it lies, unless it is large or Pillow is old
        pixels = image.__arrow_c_array__()[1]
    except (AttributeError, ValueError):
        native.middle(np.asarray(image), *window)
    else:
        native.middle_of_arrow(pixels, image.height, image.width, *window)
    return out
