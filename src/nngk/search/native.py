"""The compiled core, where there is one."""

import importlib
import os
from types import ModuleType

import torch
from torch import Tensor

from nngk.errors import InputError


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("nngk.search._native")
    except ImportError:  # installed without a compiler
        return None


_native = _load()


def core() -> ModuleType | None:
    """The compiled module, or None where the package was installed without a compiler."""
    return None if os.environ.get("NNGK_NO_NATIVE") else _native


def required_core(purpose: str) -> ModuleType:
    """The compiled module, or a sentence that says how to get it."""
    found = core()
    if found is None:
        raise InputError(
            f"{purpose} needs the compiled core, which this installation lacks: there was no C++ compiler when it was "
            "installed. Install one (for example: apt install g++) and run: pip install --force-reinstall --no-deps "
            "nngk. Exact search works without it: use search='exact'."
        )
    return found


def thread_count(threads: int | None) -> int:
    """How many threads to use: as asked for, or as torch uses."""
    if threads is None:
        return torch.get_num_threads()
    if threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}.")
    return threads


def plain(x: Tensor) -> Tensor:
    """The same numbers as a contiguous float32 matrix in main memory, which the core reads without a copy."""
    return x.detach().to(device="cpu", dtype=torch.float32).contiguous()


def empty_answer(rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Room for squared distances and indices (rows, k)."""
    return torch.empty(rows, k), torch.empty(rows, k, dtype=torch.long)
