"""A pack on disk: `pixels.bin` with decoded pictures, and `table.json` with their sizes, labels, classes and splits.

The pictures lie in `pixels.bin` one after the other, uint8, each (3, height, width). The folder is all there is: copied
to another machine it reads the same. A picture in it has a path too, `PACK/pixels.bin/00000012 name.jpg`, so that
whatever takes an image path takes one from a pack. Packs of version 1 have `images.npy`, (n, 3, S, S), instead: their
pictures are squares. The table holds a checksum of each picture and, from version 3 on, one of itself.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from nngk.data.packs.pixel_file import SQUARES, PixelFile
from nngk.data.table import ImageTable
from nngk.errors import InputError
from nngk.files import checksum

PIXELS = "pixels.bin"
TABLE = "table.json"
FORMAT = "nngk-pack"
VERSION = 3
_FIRST_SEALED = 3  # the first version whose table has a checksum

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Side = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class _Table(msgspec.Struct):
    """What `table.json` says, as far as it is read; older packs lack what has a default."""

    size: _Side
    name: str
    paths: list[str]
    labels: list[_Count]
    class_names: list[str]
    splits: list[str] | None
    task: str | None
    squash: bool = True
    sizes: list[tuple[_Side, _Side]] | None = None
    boxes_applied: bool = False
    keys: list[str] | None = None
    places: list[str] | None = None
    crc32: list[_Count] | None = None


class DamagedPicture(InputError):
    """A picture of a pack is not what was written."""


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack: where it is, the file of its pixels, its pictures' places and what `table.json` says."""

    folder: Path
    pixels: PixelFile
    places: np.ndarray  # (n, 3) int64: each picture's first value, height and width
    meta: dict[str, Any]
    checked: np.ndarray  # (n,) bool: whose checksum was found right since the pack was opened

    def __reduce__(self) -> Any:
        return open_pack, (self.folder,)  # to another process goes the name of the pack, not its gigabytes

    @property
    def size(self) -> int:
        """The shorter side of the pictures."""
        return int(self.meta["size"])

    @property
    def squash(self) -> bool:
        """Whether the pictures were squashed to squares."""
        return bool(self.meta.get("squash", True))

    def picture(self, row: int) -> np.ndarray:
        """Return one picture, (3, height, width); raise DamagedPicture if its checksum is wrong at first."""
        height, width = self.places[row, 1:].tolist()
        found = np.empty((3, height, width), dtype=np.uint8)
        self.read(row, found.reshape(-1))
        return found

    def read(self, row: int, into: np.ndarray) -> None:
        """Read one picture into an array of as many values; raise DamagedPicture if its checksum is wrong at first."""
        whole = self.pixels.read(int(self.places[row, 0]), into)
        if not whole or not (self.checked[row] or self._agrees(row, into)):
            why = "its checksum is wrong" if whole else "its file ends before it does"
            raise DamagedPicture(
                f"The picture '{self.meta['paths'][row]}' in the pack {self.folder} is damaged ({why}): copy the pack "
                "again or write it anew."
            )
        self.checked[row] = True

    def nbytes(self, rows: np.ndarray) -> int:
        """Return the bytes that some of the pictures take."""
        return int(3 * self.places[rows, 1:].prod(1).sum())

    def intact(self, row: int) -> bool:
        """Return whether a picture has the checksum that was written with it, where there is one."""
        found = np.empty(self.nbytes(np.array([row])), dtype=np.uint8)
        return self.pixels.read(int(self.places[row, 0]), found) and self._agrees(row, found)

    def _agrees(self, row: int, pixels: np.ndarray) -> bool:
        sums = self.meta.get("crc32")
        return sums is None or zlib.crc32(pixels.data) == sums[row]


def is_pack(folder: Path) -> bool:
    """Return whether a folder holds a finished pack."""
    return (folder / TABLE).is_file() and any((folder / name).is_file() for name in (PIXELS, SQUARES))


def was_pack(folder: Path) -> bool:
    """Return whether a folder holds a pack, or what is left of one: somebody's own table.json is neither."""
    if is_pack(folder):
        return True
    if not (folder / TABLE).is_file():
        return False
    try:
        with (folder / TABLE).open("rb") as stream:
            return f'"{FORMAT}"'.encode() in stream.read(200)
    except OSError:
        return False


def open_pack(folder: Path) -> Pack:
    """Return a pack with its pixels mapped; raise InputError with the reason if it is damaged."""
    table, file = folder / TABLE, pixels_file(folder)
    try:
        # An opened pack is kept until its files change: finding one picture must not read the whole table again.
        return _open(folder, *(each for path in (table, file) for each in _stamp(path)))
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise InputError(f"{folder} is not a pack: it has no {name}. Write one with nngk.data.pack().") from None
    except InputError:
        raise
    except (ValueError, OSError, EOFError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"The pack in {folder} is damaged: copy or write it again ({error}).") from error


@lru_cache(maxsize=16)
def _open(folder: Path, *stamps: int) -> Pack:
    meta = json.loads((folder / TABLE).read_text(encoding="utf-8"))
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InputError(f"{folder / TABLE} does not belong to a pack: its format is not '{FORMAT}'.")
    if meta.get("version") not in range(1, VERSION + 1):
        raise InputError(
            f"The pack in {folder} has version {meta.get('version')}, this program reads versions up to {VERSION}: "
            "write the pack again or update nngk."
        )
    if (meta["version"] >= _FIRST_SEALED or "checksum" in meta) and meta.get("checksum") != checksum(meta):
        raise ValueError(f"the checksum of {TABLE} is wrong")
    count, size = _required(meta), int(meta["size"])
    sizes = np.full((count, 2), size, np.int64) if meta["version"] == 1 else np.array(meta["sizes"], np.int64)
    sizes = sizes.reshape(-1, 2)
    pixels = PixelFile(pixels_file(folder))
    ends = np.cumsum(3 * sizes.prod(1))
    expected = int(ends[-1]) if len(ends) else 0
    if (sizes.min(1, initial=size) != size).any():
        raise ValueError(f"it has pictures whose shorter side is not {size}")
    if meta.get("squash", True) and (sizes != size).any():
        raise ValueError("it has pictures that are not square")
    if len(pixels) != expected or count != len(sizes):
        raise ValueError(f"its pictures have {len(pixels):,} values, {TABLE} says {expected:,}")
    places = np.concatenate([(ends - 3 * sizes.prod(1))[:, None], sizes], axis=1)
    return Pack(folder, pixels, places, meta, np.zeros(count, dtype=bool))


def _required(meta: dict[str, Any]) -> int:
    """Return the number of pictures; raise ValueError if the table's parts are not what they must be or disagree."""
    table = msgspec.convert(meta, _Table)  # its error is a ValueError
    count = len(table.paths)
    for name in ("labels", "splits", "keys", "places", "crc32", "sizes"):
        part = getattr(table, name)
        if part is not None and len(part) != count:
            raise ValueError(f"{TABLE} has {count:,} paths but {len(part):,} {name}")
    if max(table.labels, default=-1) >= len(table.class_names):
        raise ValueError(f"{TABLE} has labels beyond its {len(table.class_names):,} classes")
    return count


def finished(folder: Path) -> Pack | None:
    """Return the pack in a folder; None where there is none, or a damaged one, which is as good as none."""
    if not is_pack(folder):
        return None
    try:
        return open_pack(folder)
    except InputError:
        return None


def pixels_file(folder: Path) -> Path:
    """Return the file of a pack that holds its pictures."""
    old = folder / SQUARES
    return old if old.is_file() and not (folder / PIXELS).is_file() else folder / PIXELS


def _stamp(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


def row_number(path: Path) -> int | None:
    """Return the row that a path inside a pack means; None for any other path."""
    if path.parent.name not in (PIXELS, SQUARES):
        return None
    digits = path.name.split(" ", 1)[0]
    return int(digits) if digits.isdigit() else None


def packed_picture(path: Path) -> np.ndarray | None:
    """Return the picture (3, height, width) of a path inside a pack; None for a path that is not inside one."""
    row = row_number(path)
    if row is None or not path.parent.is_file():
        return None
    pack = open_pack(path.parent.parent)
    if row >= len(pack.places):
        raise InputError(f"The pack {pack.folder} has {len(pack.places)} images, so there is no {path.name}.")
    return np.asarray(pack.picture(row))


def pack_table(folder: Path) -> ImageTable:
    """Return the table of a pack. Its paths lead into the pack, its boxes are already applied."""
    meta = open_pack(folder).meta
    file = pixels_file(folder)
    return ImageTable(
        paths=[file / f"{row:08d} {Path(path).name}" for row, path in enumerate(meta["paths"])],
        labels=np.array(meta["labels"], dtype=np.int64),
        class_names=list(meta["class_names"]),
        splits=meta["splits"],
        name=meta["name"],
        task=meta["task"],
    )
