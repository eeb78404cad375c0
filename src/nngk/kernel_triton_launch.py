"""Launching a Triton kernel with as little of Python as can be.

``kernel[grid](...)`` looks at every argument each time to find the compiled kernel that fits it. A training step
launches the same few kernels with the same kinds of arguments, so the compiled ones are kept here.
"""

from typing import Any

from torch import Tensor

from nngk.kernel_triton import interpreted

_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
    constants: tuple[int | bool, ...],
    warps: int = 4,
) -> None:
    """Run ``kernel``, whose parameters are some tensors, then numbers it is not specialised for, then constants."""
    if not interpreted():
        # What Triton would decide by: types, constants, and whether addresses are multiples of 16.
        aligned = not any(t.data_ptr() & 15 for t in tensors)
        key = (id(kernel), constants, tuple([t.dtype for t in tensors]), warps, aligned, tensors[0].get_device())
        compiled = _COMPILED.get(key)
        if compiled is not None:
            compiled[(programs, 1, 1)](*tensors, *numbers, *constants)
            return
        compiled = kernel[(programs,)](*tensors, *numbers, *constants, num_warps=warps)
        # With a mixture of aligned and other addresses one key would stand for several kernels.
        if aligned and hasattr(compiled, "__getitem__"):
            _COMPILED[key] = compiled
        return
    kernel[(programs,)](*tensors, *numbers, *constants, num_warps=warps)
