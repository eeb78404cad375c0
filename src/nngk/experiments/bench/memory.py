"""What an engine's building takes of this process's memory, on Linux."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

GIB = 2**20  # KiB in it
T = TypeVar("T")


class Taken(NamedTuple):
    """GiB that stayed taken after the work, and the most that was taken during it."""

    held: float
    peak: float


def memory_of(work: Callable[[], T]) -> tuple[T, Taken | None]:
    """Return what ``work`` returns and the memory it took; None where the system does not tell.

    Memory that was given back before and is used again counts, but for what the C library had kept.

    >>> memory_of(lambda: 7)[0]
    7
    """
    own = Path("/proc/self")
    try:
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
        (own / "clear_refs").write_text("5")  # the peak so far is forgotten
    except OSError:
        return work(), None
    before = _resident("VmRSS")
    done = work()
    return done, Taken((_resident("VmRSS") - before) / GIB, (_resident("VmHWM") - before) / GIB)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])
