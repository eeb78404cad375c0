"""Arrays and tensors as pictures: which axis holds the channels, and which range of numbers is black to white."""

import numpy as np
import torch
from PIL import Image

from nngk.errors import InputError


def tensor_values(tensor: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor as an array. Raise InputError if it is not a dense one of numbers."""
    try:
        dense = tensor.detach().cpu()
        return (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(f"An image tensor is a dense one of numbers ({error}).") from None


def picture_of(array: np.ndarray, channels_first: bool = False) -> Image.Image:
    """Return an array (H, W), (H, W, C) or (C, H, W) of 1, 3 or 4 channels as a picture of 8 bits.

    >>> picture_of(np.zeros((4, 6), dtype=np.uint8)).size
    (6, 4)
    """
    shape = array.shape
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3:
        first, last = shape[0] in (1, 3, 4), shape[2] in (1, 3, 4)
        if first and (channels_first or not last):  # tensors are (C, H, W) by custom, arrays (H, W, C)
            array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise InputError(
            f"An image array has the shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, not {shape}."
        )
    values = _eight_bits(array)
    if values.shape[2] == 1:
        return Image.fromarray(values[:, :, 0])
    return Image.fromarray(np.ascontiguousarray(values))


def _eight_bits(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        return np.rint(array / 257.0).astype(np.uint8)
    if np.issubdtype(array.dtype, np.integer):
        if array.min() < 0 or array.max() > 255:
            raise InputError(
                f"An image of type {array.dtype} has values from {array.min()} to {array.max()}: expected 0 to 255."
            )
        return array.astype(np.uint8)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4):  # also catches NaN
            raise InputError(
                f"An image of floats has values from {low:g} to {high:g}: expected 0 to 1, before any normalisation."
            )
        return np.clip(np.rint(array.astype(np.float64) * 255), 0, 255).astype(np.uint8)
    raise InputError(f"An image array holds numbers, not {array.dtype}.")
