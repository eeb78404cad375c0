"""Which device to work on, and how to bring tensors there."""

import atexit
import ctypes
import functools
import gc
import os
import subprocess
import sys

import torch

from nngk.defaults import DEVICE
from nngk.errors import InputError


def pick_device(name: str | torch.device = DEVICE) -> torch.device:
    """Return the device of a name; 'auto' is a GPU if there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:  # a name that PyTorch does not know either
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"Unknown device {str(name)!r}: use 'auto', 'cpu' or 'cuda'.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"PyTorch sees no CUDA GPU for the device {str(name)!r}: use 'auto' or 'cpu'.")
    return device


def require_bfloat16(device: torch.device) -> None:
    """Raise InputError if a product of bfloat16 would end this process.

    Some virtual machines announce instructions for it (AMX) and refuse them, so a process of its own tries one.
    """
    if device.type == "cpu" and not _multiplies_bfloat16():
        raise InputError(
            "This processor announces instructions for bfloat16 that it refuses, as some virtual machines do: train "
            "without --amp, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
        )


@functools.cache
def _multiplies_bfloat16() -> bool:
    program = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Let this process keep up to a gigabyte of memory that was freed, where the C library is glibc.

    Otherwise the maps of each layer go back to the system and come again page by page, which takes a good
    part of the time of a pass on a CPU. For programs that are a process of their own: it holds for all of it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for setting, value in ((_ARENAS, 1), (_SEPARATE_MAPS, 0), (_KEPT_BYTES, 1 << 30), (_SET_ASIDE, 0)):
            mallopt(setting, value)


_ARENAS, _SEPARATE_MAPS, _KEPT_BYTES = -8, -4, -1  # M_ARENA_MAX, M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
_SET_ASIDE = 1  # M_MXFAST: small pieces that are set aside are all gone through whenever a map is freed


def keep_objects() -> None:
    """Let Python look for garbage among new objects only, and less often: what is there now stays.

    For programs that are a process of their own, once everything that lasts is there.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # the interpreter clears up at its end
    gc.set_threshold(_NEW_OBJECTS, 10, 10)


_NEW_OBJECTS = 5000  # more of them than are gone again, until they are looked through


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a small tensor on a device; what goes from the CPU to a GPU is not waited for.

    >>> placed(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
