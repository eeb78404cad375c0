"""A table's pictures as square uint8 tensors, decoded when asked for or read from a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from nngk.data.decode import square
from nngk.data.packs.cache import cached
from nngk.data.packs.layout import map_images, row_number
from nngk.data.table import ImageTable
from nngk.device import cpu_count
from nngk.errors import InputError
from nngk.progress import Seen


class Images:
    """Every picture of a table, cropped to its box if it has one and squashed to size×size RGB.

    `cache` names a folder that keeps the decoded pictures, so that each is decoded once for all runs and splits.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Image.new("RGB", (5, 4)).save(f"{home}/a.png")
    ...     images = Images(ImageTable([Path(home, "a.png")], np.array([0]), ["a"]), size=8)
    ...     len(images), images[0].shape, images.batch([0, 0]).shape
    (1, torch.Size([3, 8, 8]), torch.Size([2, 3, 8, 8]))
    """

    def __init__(
        self,
        table: ImageTable,
        size: int = 256,
        cache: str | Path | None = None,
        threads: int | None = None,
        *,
        progress: Seen | None = None,
    ) -> None:
        if size < 1:
            raise InputError(f"Images have a size of at least one pixel, not {size}.")
        self.table = table
        self.size = size
        self.threads = threads or min(cpu_count(), 8)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        # Where each picture's pixels lie: an array and a row of it. No arrays: decode the files.
        self._stores: list[np.memmap] = []
        self._store = self._row = np.zeros(len(table), dtype=np.int64)
        packed = _in_one_pack(table, size)
        if packed is not None:
            self._stores, self._row = [packed[0]], packed[1]
        elif cache is not None and len(table):
            self._stores, self._store, self._row = cached(table, size, Path(cache), self.threads, progress)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch([index])[0]

    def __getstate__(self) -> dict[str, Any]:
        # To another process go the names of the arrays, not their gigabytes, and no threads.
        return {**self.__dict__, "_pool": None, "_stores": [str(store.filename) for store in self._stores]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_stores": [map_images(Path(file)) for file in state["_stores"]]}

    def batch(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return the pictures at `indices`, uint8 (B, 3, S, S)."""
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(rows) and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"There are {len(self)} images, so there is no image {rows.max()}.")
        out = np.empty((len(rows), 3, self.size, self.size), dtype=np.uint8)
        if self._stores:
            store, row = self._store[rows], self._row[rows]
            for number in np.unique(store):
                mine = np.flatnonzero(store == number)
                out[mine] = self._stores[number][row[mine]]
        else:
            for position, pixels in enumerate(self._threads().map(self._decode, rows.tolist())):
                out[position] = pixels
        return torch.from_numpy(out)

    def _decode(self, index: int) -> np.ndarray:
        box = None if self.table.boxes is None else self.table.boxes[index]
        return square(self.table.paths[index], self.size, box).numpy()

    def _threads(self) -> ThreadPoolExecutor:
        # A forked worker inherits the object but not its threads.
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self.threads, thread_name_prefix="nngk-decode")
        return self._pool[1]


class ImageDataset(Dataset[tuple[torch.Tensor, int, int]]):
    """Pictures and labels for a torch DataLoader: yields (image, label, index).

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Image.new("RGB", (5, 4)).save(f"{home}/a.png")
    ...     table = ImageTable([Path(home, "a.png")], np.array([0]), ["a"])
    ...     image, label, index = ImageDataset(Images(table, size=8), table.labels)[0]
    ...     image.shape, label, index
    (torch.Size([3, 8, 8]), 0, 0)
    """

    def __init__(
        self,
        images: Images,
        labels: Sequence[int] | np.ndarray | torch.Tensor,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        if len(images) != len(labels):
            raise InputError(f"There are {len(images)} images but {len(labels)} labels: give one label per image.")
        self.images = images
        self.labels = np.asarray(labels, dtype=np.int64)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        image = self.images[index]
        return (self.transform(image) if self.transform else image), int(self.labels[index]), index


def _in_one_pack(table: ImageTable, size: int) -> tuple[np.memmap, np.ndarray] | None:
    """Return the array and the rows of a table read from a pack of this size: nothing is left to decode."""
    if not len(table) or (table.boxes is not None and not np.isnan(table.boxes).all()):
        return None
    rows = [row_number(path) for path in table.paths]
    if len({path.parent for path in table.paths}) > 1 or any(row is None for row in rows):
        return None
    file = table.paths[0].parent
    if not file.is_file():
        return None
    images = map_images(file)
    return (images, np.array(rows, dtype=np.int64)) if images.shape[-1] == size else None
