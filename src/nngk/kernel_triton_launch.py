"""Launching a Triton kernel with as little of Python as can be.

``kernel[grid](...)`` looks at every argument each time to find the compiled kernel that fits it. A training step
launches the same few kernels with the same kinds of arguments, so the compiled ones are kept here.
"""

from typing import Any, NamedTuple

from torch import Tensor

from nngk.kernel_triton import interpreted


class Tiles(NamedTuple):
    """Gathered elements a program holds at once, and its warps; a row is cut into pieces of at most ``width``."""

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
    """Rows and columns of a program's tile of gathered rows, powers of two."""
    width = max(16, min(tiles.width, power_of_two(dim)))
    rows = max(1, min(tiles.elements // width, 128, power_of_two(count)))
    return rows, width


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()
