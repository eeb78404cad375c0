"""Write the decoded, resized images of a table once, and read them back, here or on another machine.

A pack is also what the cache of `Images` is made of: one format, one writer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data.decode import square
from nngk.data.packs.keys import absolute, picture_keys, picture_places
from nngk.data.packs.layout import FORMAT, IMAGES, TABLE, VERSION, finished, is_pack
from nngk.data.table import ImageTable
from nngk.device import cpu_count
from nngk.errors import InputError
from nngk.files import locked, write_json
from nngk.progress import Seen

_CHUNK = 64  # images decoded between two looks at the clock
_SAVE_SECONDS = 5.0  # an interrupted build loses at most this much work


def pack(
    table: ImageTable,
    out: str | Path,
    size: int = 256,
    *,
    threads: int | None = None,
    progress: Seen | None = None,
) -> Path:
    """Write a table's images, cropped to their boxes and squashed to size×size, into the folder `out`.

    An interrupted pack goes on where it stopped; a finished one of the same images is left as it is.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name in "ab":
    ...         Image.new("RGB", (5, 4)).save(f"{home}/{name}.png")
    ...     table = ImageTable([Path(home, "a.png"), Path(home, "b.png")], np.array([0, 1]), ["a", "b"])
    ...     sorted(file.name for file in pack(table, f"{home}/packed", 8).iterdir() if file.name[0] != ".")
    ['images.npy', 'table.json']
    """
    out = Path(out)
    if not len(table):
        raise InputError("There are no images to pack: give a table with at least one.")
    if out.exists() and not is_pack(out) and any(not _ours(file.name) for file in out.iterdir()):
        raise InputError(f"{out} holds other files: name an empty or a new folder for the pack.")
    before = finished(out)
    if before is not None and not set(before.meta.get("places", ())) & set(picture_places(table)):
        raise InputError(f"{out} holds a pack of other images ({before.meta.get('name')}): name a new folder.")
    with locked(out):
        write_pack(table, out, size, threads=threads, progress=progress)
    return out


def write_pack(
    table: ImageTable, folder: Path, size: int, *, threads: int | None = None, progress: Seen | None = None
) -> None:
    """Fill `folder` with the pack of `table`, going on from what an interrupted call left there."""
    row_keys = picture_keys(table)
    whole = finished(folder)
    if whole is not None and whole.meta.get("keys") == row_keys and whole.size == size:
        write_json(folder / TABLE, _meta(table, size, row_keys, whole.meta["crc32"]))  # labels may have changed
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{IMAGES}.part"
    target, sums = _resume(folder, part, size, row_keys)
    saved = time.monotonic()
    with ThreadPoolExecutor(threads or cpu_count()) as pool:
        while len(sums) < len(table):
            rows = range(len(sums), min(len(sums) + _CHUNK, len(table)))
            for row, pixels in zip(rows, pool.map(lambda row: _pixels(table, row, size), rows)):
                target[row] = pixels
                sums.append(zlib.crc32(pixels.data))
            if progress:
                progress(len(sums), len(table))
            if time.monotonic() - saved > _SAVE_SECONDS:
                _save(folder, target, sums, size, row_keys)
                saved = time.monotonic()
    target.flush()
    del target
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    (folder / TABLE).unlink(missing_ok=True)  # never an old table beside new images
    part.replace(folder / IMAGES)
    write_json(folder / TABLE, _meta(table, size, row_keys, sums))
    (folder / "progress.json").unlink(missing_ok=True)


def _pixels(table: ImageTable, row: int, size: int) -> np.ndarray:
    box = None if table.boxes is None else table.boxes[row]
    return square(table.paths[row], size, box).numpy()


def _meta(table: ImageTable, size: int, row_keys: list[str], sums: list[int]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": table.name,
        "task": table.task,
        "size": size,
        "boxes_applied": table.boxes is not None,
        "class_names": table.class_names,
        "labels": table.labels.tolist(),
        "splits": table.splits,
        "paths": _relative(table.paths),
        "places": picture_places(table),
        "keys": row_keys,
        "crc32": sums,
    }


def _relative(paths: list[Path]) -> list[str]:
    """Return the paths below the folder that all of them share."""
    texts = [absolute(path) for path in paths]
    shared = os.path.commonpath([os.path.dirname(text) for text in texts])  # noqa: PTH120
    return [Path(text).relative_to(shared).as_posix() for text in texts]


def _digest(size: int, row_keys: list[str]) -> str:
    return hashlib.blake2b(f"{size} {' '.join(row_keys)}".encode(), digest_size=16).hexdigest()


def _save(folder: Path, target: np.memmap, sums: list[int], size: int, row_keys: list[str]) -> None:
    target.flush()  # the pixels first: the count must never run ahead of them
    write_json(folder / "progress.json", {"digest": _digest(size, row_keys), "crc32": sums})


def _resume(folder: Path, part: Path, size: int, row_keys: list[str]) -> tuple[np.memmap, list[int]]:
    """Return the array to fill and the checksums of the rows that are already in it."""
    shape = (len(row_keys), 3, size, size)
    try:
        state = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
        if state["digest"] == _digest(size, row_keys):
            target = np.lib.format.open_memmap(part, mode="r+")
            if target.shape == shape and target.dtype == np.uint8:
                return target, list(state["crc32"])
    except (OSError, ValueError, KeyError):
        pass  # nothing usable was left: start from the first image
    part.unlink(missing_ok=True)
    _require_room(folder, int(np.prod(shape)))
    return np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape), []


def _require_room(folder: Path, needed: int) -> None:
    # A full disk under a memory map ends the process without a word, so look first.
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"The decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: make "
            "room, name another folder, or use smaller images."
        )


def _ours(name: str) -> bool:
    return name.lstrip(".").startswith((IMAGES, TABLE, "progress.json", "lock"))  # with a dot while it is written
