"""The accelerator: whether fused kernels can run on some tensors, and launching them with as little Python as can be.

``kernel[grid](...)`` looks at every argument each time to find the compiled kernel that fits it. A training step
launches the same few kernels with the same kinds of arguments, so the compiled ones are kept here.
"""

import contextlib
import functools
import importlib.util
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NOTHING: Any = contextlib.nullcontext()
_thread = threading.local()


@functools.cache
def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def installed() -> bool:
    """Return whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Return whether the fused losses can work on these tensors.

    They can on a GPU, in single or half precision, where Triton is installed.

    >>> usable(torch.zeros(1, dtype=torch.float64))
    False
    """
    return installed() and all((t.is_cuda or interpreted()) and t.dtype in DTYPES for t in tensors)


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Mark what this thread does inside as the capture of a CUDA graph, or as the warm-up before it.

    Some kernels are faster than PyTorch's only when they are replayed, since launching them takes the host longer.

    >>> with capturing():
    ...     is_capturing()
    True
    """
    before = is_capturing()
    _thread.capturing = True
    try:
        yield
    finally:
        _thread.capturing = before


def is_capturing() -> bool:
    """Return whether this thread is inside `capturing()`."""
    return getattr(_thread, "capturing", False)


def device_of(x: Tensor) -> Any:
    """Make the device that holds ``x`` the current one, on which kernels are launched."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device_of(x)


class Tiles(NamedTuple):
    """How many gathered elements a program holds at once, the largest piece of a row, and the number of warps."""

    elements: int = 4096
    width: int = 512
    warps: int = 4


_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    programs: int | tuple[int, int],
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    constants: tuple[int | float, ...],
    warps: int = 4,
) -> None:
    """Run ``kernel``, whose parameters are some tensors, then numbers it is not specialised for, then constants."""
    arguments = (*tensors, *numbers, *constants)
    grid = (programs, 1, 1) if isinstance(programs, int) else (*programs, 1)
    # With a mixture of aligned and other addresses one key would stand for several kernels.
    if interpreted() or any(t.data_ptr() & 15 for t in tensors):
        kernel[grid](*arguments, num_warps=warps)
        return
    # What Triton decides by, besides the addresses: types and constants.
    key = (id(kernel), constants, tuple([t.dtype for t in tensors]), warps, tensors[0].get_device())
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*arguments, num_warps=warps)
    else:
        compiled[grid](*arguments)


def blocks(tiles: Tiles, dim: int, count: int) -> tuple[int, int]:
    """Return the rows and columns of a program's tile of gathered rows, powers of two."""
    width = max(16, min(tiles.width, power_of_two(dim)))
    rows = max(1, min(tiles.elements // width, 128, power_of_two(count)))
    return rows, width


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()
