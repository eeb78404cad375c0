"""The file of a pack's pixels, read piece by piece.

It is not mapped into memory: a mapped file that becomes shorter while it is read, because somebody copies over it or
the disk fails, ends the process without a word.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from nngk.files import require_regular

SQUARES = "images.npy"  # of packs of version 1: behind a header of numpy's


class PixelFile:
    """Values (N,) uint8 in a file; any thread and any forked process may read them."""

    def __init__(self, file: Path) -> None:
        require_regular(file, "the pictures of a pack")
        self._start, self._length = _extent(file)
        self._handle = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        self._turn = threading.Lock()  # where reading moves the file's position

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def __len__(self) -> int:
        """Return how many values the file held when it was opened."""
        return self._length

    def read(self, offset: int, into: np.ndarray) -> bool:
        """Fill an array with the values from ``offset`` on; return False if the file ends before or cannot be read."""
        view, at = into.data, self._start + offset
        try:
            while len(view):
                got = self._fill(view, at)
                if not got:
                    return False
                view, at = view[got:], at + got
        except OSError:
            return False
        return True

    def _fill(self, view: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [view], at)
        with self._turn:  # Windows has no reading at a place
            os.lseek(self._handle, at, os.SEEK_SET)
            data = os.read(self._handle, len(view))
        view[: len(data)] = data
        return len(data)


def _extent(file: Path) -> tuple[int, int]:
    """Return where the values of a file begin, and how many there are."""
    if file.name != SQUARES:
        return 0, file.stat().st_size
    squares = np.lib.format.open_memmap(file, mode="r")
    if squares.dtype != np.uint8 or not squares.flags.c_contiguous:
        order = "" if squares.flags.c_contiguous else " in another order"
        raise ValueError(f"{file.name} holds {squares.dtype} values{order}, not uint8 values row by row")
    return int(squares.offset), squares.size
