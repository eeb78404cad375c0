"""A table's pictures as uint8 tensors, decoded when asked for or read from a cache."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from nngk.data.decode import fitted, stand_in
from nngk.data.flat_pictures import FlatPictures, places_of
from nngk.data.packs.cache import broken_rows, cached, forget_damaged
from nngk.data.packs.layout import DamagedPicture, Pack, is_pack, open_pack, pixels_file, row_number
from nngk.data.table import ImageTable
from nngk.device import cpu_count
from nngk.errors import InputError
from nngk.progress import Seen, say

_USUAL_ASPECT = 1.5  # of photos, where nobody has decoded them yet


class Images:
    """Every picture of a table, cropped to its box if it has one, its shorter side brought to `size`.

    Pictures keep their aspect, so that a batch is `FlatPictures` of different sizes; with `squash` they are size×size,
    and a batch is a tensor. `cache` names a folder that keeps the decoded pictures, so that each is decoded once for
    all runs and splits. With `tolerant` a picture that cannot be read is grey, and `broken` says why, by its row.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Image.new("RGB", (6, 4)).save(f"{home}/a.png")
    ...     table = ImageTable([Path(home, "a.png")], np.array([0]), ["a"])
    ...     Images(table, size=8)[0].shape, Images(table, size=8, squash=True).batch([0, 0]).shape
    (torch.Size([3, 8, 12]), torch.Size([2, 3, 8, 8]))
    """

    def __init__(
        self,
        table: ImageTable,
        size: int = 256,
        cache: str | Path | None = None,
        threads: int | None = None,
        *,
        squash: bool = False,
        tolerant: bool = False,
        progress: Seen | None = None,
    ) -> None:
        if size < 1:
            raise InputError(f"Images have a size of at least one pixel, not {size}.")
        self.table = table
        self.size = size
        self.squash = squash
        self.threads = threads or min(cpu_count(), 8)
        self._pools: dict[int, ThreadPoolExecutor] = {}  # by process: a forked one inherits no threads
        # Where each picture's pixels lie: the number of its pack and a row there. No packs: decode the files.
        self._packs: list[Pack] = []
        self._where = np.zeros((len(table), 2), dtype=np.int64)
        self._again: set[int] = set()  # pictures that are damaged in the cache
        self._middle: int | None = None
        self.tolerant = tolerant
        self.broken: dict[int, str] = {}  # sentences about pictures that cannot be read
        packed = _in_one_pack(table, size, squash)
        self._cached = packed is None  # what is damaged can be decoded again
        if packed is not None:
            self._packs, self._where[:, 1] = [packed[0]], packed[1]
        elif cache is not None and len(table):
            self._packs, self._where[:, 0], self._where[:, 1] = cached(
                table, size, squash, Path(cache), self.threads, progress, tolerant=tolerant
            )
            for row in broken_rows(self._packs, self._where):
                self._again.add(row)
                self._decode(row)  # it may be well by now: what was missing may have been a package

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch([index])[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": {}}  # no threads go to another process

    def middles(self, side: int) -> Images:
        """Return the same images, of which only the middle of ``side`` pixels along each side is given.

        That is what a centre crop reads. Where pictures are cached they stay whole: nothing would be saved.
        """
        other = copy.copy(self)
        other._middle = None if self._packs else side
        other._pools = self._pools  # one pool for all of them
        return other

    @property
    def nbytes(self) -> int:
        """The bytes that all decoded pictures take; an estimate where they are decoded as they are asked for."""
        if self._packs:
            packs = enumerate(self._packs)
            return sum(pack.nbytes(self._rows_in(number)) for number, pack in packs)
        return int(len(self) * 3 * self.size**2 * (1.0 if self.squash else _USUAL_ASPECT))

    def batch(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> torch.Tensor | FlatPictures:
        """Return the pictures at `indices`: `FlatPictures`, or where they are squashed uint8 (B, 3, size, size)."""
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(rows) and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"There are {len(self)} images, so there is no image {rows.max()}.")
        flat, sizes = self._stored(rows) if self._packs else _joined(self._decoded(rows.tolist()))
        pixels = torch.from_numpy(flat)
        if self.squash:
            return pixels.view(-1, 3, *sizes[0]) if len(sizes) else pixels.view(0, 3, self.size, self.size)
        return FlatPictures(pixels, places_of(torch.from_numpy(sizes)))

    def _rows_in(self, number: int) -> np.ndarray:
        return self._where[self._where[:, 0] == number, 1]

    def _stored(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pictures from their packs, one after the other, and their sizes (B, 2)."""
        if not self._again:
            try:
                return self._filled(rows)
            except DamagedPicture:
                if not self._cached:
                    raise  # the pack is all there is
        return _joined([self._read(index) for index in rows.tolist()])

    def _filled(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same, read straight into place: an array for each picture takes many times as long."""
        places = [(self._packs[number], row) for number, row in self._where[rows].tolist()]
        sizes = np.array([pack.places[row, 1:] for pack, row in places], dtype=np.int64).reshape(-1, 2)
        ends = np.cumsum(3 * sizes.prod(1)).tolist()
        flat = np.empty(ends[-1] if ends else 0, dtype=np.uint8)
        for (pack, row), start, end in zip(places, [0, *ends], ends):
            pack.read(row, flat[start:end])
        return flat, sizes

    def _read(self, index: int) -> np.ndarray:
        """Return a picture of a cache; one that is damaged there is decoded again from its file."""
        number, row = self._where[index].tolist()
        if index not in self._again:
            try:
                return self._packs[number].picture(row)
            except DamagedPicture:
                forget_damaged(self._packs[number])
                say(
                    f"The cache {self._packs[number].folder} is damaged: {self.table.paths[index]} is decoded from its "
                    "file, and the cache is written anew by the next run."
                )
                self._again.add(index)
        return self._decode(index)

    def _decoded(self, rows: list[int]) -> list[np.ndarray]:
        return list(self._threads().map(self._decode, rows))

    def _decode(self, index: int) -> np.ndarray:
        box = None if self.table.boxes is None else self.table.boxes[index]
        try:
            return fitted(self.table.paths[index], self.size, box, squash=self.squash, middle=self._middle).numpy()
        except InputError as error:
            if not self.tolerant:
                raise
            self.broken[index] = str(error)
            return stand_in(min(self.size, self._middle or self.size)).numpy()

    def _threads(self) -> ThreadPoolExecutor:
        here = os.getpid()
        if here not in self._pools:  # of several threads that come here at once the first one's pool is everybody's
            self._pools.setdefault(here, ThreadPoolExecutor(self.threads, thread_name_prefix="nngk-decode"))
        return self._pools[here]


def _joined(pictures: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures one after the other, and their sizes (B, 2)."""
    sizes = np.array([each.shape[1:] for each in pictures], dtype=np.int64).reshape(-1, 2)
    return np.concatenate([np.empty(0, np.uint8), *(each.reshape(-1) for each in pictures)]), sizes


class ImageDataset(Dataset[tuple[torch.Tensor, int, int]]):
    """Pictures and labels for a torch DataLoader: yields (image, label, index).

    Without a transform that brings them to one size, pictures that keep their aspect do not stack into batches.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     Image.new("RGB", (5, 4)).save(f"{home}/a.png")
    ...     table = ImageTable([Path(home, "a.png")], np.array([0]), ["a"])
    ...     image, label, index = ImageDataset(Images(table, size=8), table.labels)[0]
    ...     image.shape, label, index
    (torch.Size([3, 8, 10]), 0, 0)
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


def _in_one_pack(table: ImageTable, size: int, squash: bool) -> tuple[Pack, np.ndarray] | None:
    """Return the pack and the rows of a table read from a pack of this size: nothing is left to decode.

    Squares serve both: squashed or not, they stay what they are.
    """
    if not len(table) or (table.boxes is not None and not np.isnan(table.boxes).all()):
        return None
    rows = [row_number(path) for path in table.paths]
    if len({path.parent for path in table.paths}) > 1 or any(row is None for row in rows):
        return None
    folder = table.paths[0].parent.parent
    if not is_pack(folder) or pixels_file(folder) != table.paths[0].parent:
        return None
    pack = open_pack(folder)
    return (pack, np.array(rows, dtype=np.int64)) if pack.size == size and (pack.squash or not squash) else None
