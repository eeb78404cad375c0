"""The compiled core, where there is one."""

import importlib
import os
from types import ModuleType

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search.checks import whole

KERNELS = ("plain", "avx2", "avx512")


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("nngk.search._native")
    except ModuleNotFoundError:  # installed without a compiler
        return None


_native = _load()


def core() -> ModuleType | None:
    """Return the compiled module, or None where the package was installed without a compiler.

    Raise InputError where the environment asks for kernels that the core does not run with.
    """
    if os.environ.get("NNGK_NO_NATIVE") or _native is None:
        return None
    wanted = os.environ.get("NNGK_KERNELS")
    if wanted and wanted != _native.kernels:
        runs = ", ".join(name for name in KERNELS if _native.has_kernels(name))
        raise InputError(
            f"NNGK_KERNELS asks for {wanted!r}, but the search core runs with {_native.kernels!r}. This processor runs "
            f"{runs}: set the variable to one of these before nngk is imported, or unset it."
        )
    return _native


def required_core(purpose: str) -> ModuleType:
    """Return the compiled module, or raise InputError that says how to get it."""
    found = core()
    if found is None:
        raise InputError(
            f"{purpose} needs the compiled core, which this installation lacks: there was no C++ compiler when it was "
            "installed. Install one (for example: apt install g++) and run: pip install --force-reinstall --no-deps "
            "nngk. Exact search works without it: use search='exact'."
        )
    return found


def thread_count(threads: int | None) -> int:
    """Return how many threads to use: as many as were asked for, or as torch uses."""
    return torch.get_num_threads() if threads is None else whole(threads, "threads")


def plain(x: Tensor) -> Tensor:
    """Return the numbers as a contiguous float32 matrix in main memory, which the core reads without a copy."""
    return x.detach().to(device="cpu", dtype=torch.float32).contiguous()


def empty_answer(rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Return room for squared distances and indices (rows, k), of the types that the core writes.

    It would write into a copy of anything else, such as tensors of another default type of torch.
    """
    return torch.empty(rows, k, dtype=torch.float32), torch.empty(rows, k, dtype=torch.long)
