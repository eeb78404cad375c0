"""A pack on disk: `images.npy`, uint8 (n, 3, S, S), and `table.json` with labels, class names and splits.

The folder is all there is: copied to another machine it reads the same. A picture in it has a path too,
`PACK/images.npy/00000012 name.jpg`, so that whatever takes an image path takes one from a pack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data.table import ImageTable
from nngk.errors import InputError

IMAGES = "images.npy"
TABLE = "table.json"
FORMAT = "nngk-pack"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack: where it is, its memory-mapped images and what `table.json` says."""

    folder: Path
    images: np.memmap  # (n, 3, S, S) uint8
    meta: dict[str, Any]

    @property
    def size(self) -> int:
        return int(self.images.shape[-1])


def is_pack(folder: Path) -> bool:
    """Return whether a folder holds a finished pack."""
    return (folder / TABLE).is_file() and (folder / IMAGES).is_file()


def was_pack(folder: Path) -> bool:
    """Return whether a folder holds a pack, or what is left of one: somebody's own table.json is neither."""
    if is_pack(folder):
        return True
    try:
        with (folder / TABLE).open("rb") as stream:
            return f'"{FORMAT}"'.encode() in stream.read(200)
    except OSError:
        return False


def open_pack(folder: Path) -> Pack:
    """Map a pack's images and read its table; a damaged pack is refused with the reason."""
    again = f"The pack in {folder} is damaged: copy or write it again"
    try:
        meta = json.loads((folder / TABLE).read_text(encoding="utf-8"))
        images = map_images(folder / IMAGES)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} is not a pack: it has no {Path(error.filename).name}. Write one with nngk.data.pack()."
        ) from None
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{again} ({error}).") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InputError(f"{folder / TABLE} does not belong to a pack: its format is not '{FORMAT}'.")
    if meta.get("version") != VERSION:
        raise InputError(
            f"The pack in {folder} has version {meta.get('version')}, this program reads version {VERSION}: "
            "write the pack again or update nngk."
        )
    expected = (len(meta.get("paths", ())), 3, meta.get("size"), meta.get("size"))
    if images.shape != expected or images.dtype != np.uint8 or len(meta.get("labels", ())) != len(images):
        raise InputError(f"{again} ({IMAGES} has shape {images.shape}, {TABLE} says {expected}).")
    return Pack(folder, images, meta)


def finished(folder: Path) -> Pack | None:
    """Return the pack in a folder; None where there is none, or a damaged one, which is as good as none."""
    if not is_pack(folder):
        return None
    try:
        return open_pack(folder)
    except InputError:
        return None


def map_images(file: Path) -> np.memmap:
    """Return the array in `file`, mapped afresh whenever the file has been replaced."""
    stat = file.stat()
    return _map(str(file), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=32)
def _map(file: str, mtime: int, size: int) -> np.memmap:
    return np.lib.format.open_memmap(file, mode="r")


def row_path(folder: Path, row: int, original: str) -> Path:
    """Return the path of one picture of a pack."""
    return folder / IMAGES / f"{row:08d} {Path(original).name}"


def row_number(path: Path) -> int | None:
    """Return the row that a path inside a pack means; None for any other path."""
    if path.parent.name != IMAGES:
        return None
    digits = path.name.split(" ", 1)[0]
    return int(digits) if digits.isdigit() else None


def packed_row(path: Path) -> np.ndarray | None:
    """Return the pixels (3, S, S) of a path inside a pack; None for a path that is not."""
    row = row_number(path)
    if row is None or not path.parent.is_file():
        return None
    images = map_images(path.parent)
    if row >= len(images):
        raise InputError(f"The pack {path.parent.parent} has {len(images)} images, so there is no {path.name}.")
    return np.asarray(images[row])


def pack_table(folder: Path) -> ImageTable:
    """Return the table of a pack. Its paths lead into the pack, its boxes are already applied."""
    meta = open_pack(folder).meta
    return ImageTable(
        paths=[row_path(folder, row, path) for row, path in enumerate(meta["paths"])],
        labels=np.array(meta["labels"], dtype=np.int64),
        class_names=list(meta["class_names"]),
        splits=meta["splits"],
        name=meta["name"],
        task=meta["task"],
    )
