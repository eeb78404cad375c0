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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nngk.data.decode import square
from nngk.data.packs.format import (
    FORMAT,
    IMAGES,
    TABLE,
    VERSION,
    finished,
    is_pack,
    open_pack,
    row_number,
    row_path,
)
from nngk.data.table import ImageTable
from nngk.errors import InputError
from nngk.files import locked, write_json

if TYPE_CHECKING:
    from nngk.data.images import Images

Progress = Callable[[int, int], None]  # images done, images in all

_CHUNK = 64  # images decoded between two looks at the clock
_SAVE_SECONDS = 5.0  # an interrupted build loses at most this much work


def pack(
    table: ImageTable,
    out: str | Path,
    size: int = 256,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a table's images, cropped to their boxes and squashed to size×size, into the folder `out`.

    An interrupted pack goes on where it stopped; a finished one of the same images is left as it is.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name in "ab":
    ...         Image.new("RGB", (5, 4)).save(f"{home}/{name}.png")
    ...     table = ImageTable([Path(home, "a.png"), Path(home, "b.png")], np.array([0, 1]), ["a", "b"])
    ...     images, again = read_pack(pack(table, f"{home}/packed", 8))
    ...     images.batch([1, 0]).shape, again.class_names
    (torch.Size([2, 3, 8, 8]), ['a', 'b'])
    """
    out = Path(out)
    if not len(table):
        raise InputError("There are no images to pack: give a table with at least one.")
    if out.exists() and not is_pack(out) and any(not _ours(file.name) for file in out.iterdir()):
        raise InputError(f"{out} holds other files: name an empty or a new folder for the pack.")
    before = finished(out)
    if before is not None and not set(before.meta.get("places", ())) & set(places(table)):
        raise InputError(f"{out} holds a pack of other images ({before.meta.get('name')}): name a new folder.")
    with locked(out):
        write(table, out, size, threads=threads, progress=progress)
    return out


def read_pack(folder: str | Path) -> tuple[Images, ImageTable]:
    """The images of a pack, ready for `.batch()`, and their table."""
    from nngk.data.images import Images

    table = pack_table(Path(folder))
    return Images(table, open_pack(Path(folder)).size), table


def pack_table(folder: Path) -> ImageTable:
    """The table of a pack. Its paths lead into the pack, its boxes are already applied."""
    meta = open_pack(folder).meta
    return ImageTable(
        paths=[row_path(folder, row, path) for row, path in enumerate(meta["paths"])],
        labels=np.array(meta["labels"], dtype=np.int64),
        class_names=list(meta["class_names"]),
        splits=meta["splits"],
        name=meta["name"],
        task=meta["task"],
    )


def keys(table: ImageTable) -> list[str]:
    """What each decoded image depends on: the file, its time and length, and the box. Equal keys, equal pixels."""
    found: dict[Path, str] = {}
    result = []
    for row, path in enumerate(table.paths):
        file = path.parent if row_number(path) is not None else path
        if file not in found:
            try:
                stat = file.stat()
            except OSError:
                raise InputError(f"There is no image {path}: check the path.") from None
            found[file] = f"{stat.st_mtime_ns}|{stat.st_size}"
        box = "" if table.boxes is None or np.isnan(table.boxes[row]).any() else str(table.boxes[row].tolist())
        result.append(_hash(f"{_absolute(path)}|{found[file]}|{box}"))
    return result


def places(table: ImageTable) -> list[str]:
    """Where each image lies, as a hash: a pack that travels does not tell its writer's folders."""
    return [_hash(_absolute(path)) for path in table.paths]


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 (resolve() would look at every parent on disk)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def write(
    table: ImageTable, folder: Path, size: int, *, threads: int | None = None, progress: Progress | None = None
) -> None:
    """Fill `folder` with the pack of `table`, going on from what an interrupted call left there."""
    row_keys = keys(table)
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
        "places": places(table),
        "keys": row_keys,
        "crc32": sums,
    }


def _relative(paths: list[Path]) -> list[str]:
    """The paths below the folder that all of them share."""
    texts = [_absolute(path) for path in paths]
    shared = os.path.commonpath([os.path.dirname(text) for text in texts])  # noqa: PTH120
    return [Path(text).relative_to(shared).as_posix() for text in texts]


def _digest(size: int, row_keys: list[str]) -> str:
    return hashlib.blake2b(f"{size} {' '.join(row_keys)}".encode(), digest_size=16).hexdigest()


def _save(folder: Path, target: np.memmap, sums: list[int], size: int, row_keys: list[str]) -> None:
    target.flush()  # the pixels first: the count must never run ahead of them
    write_json(folder / "progress.json", {"digest": _digest(size, row_keys), "crc32": sums})


def _resume(folder: Path, part: Path, size: int, row_keys: list[str]) -> tuple[np.memmap, list[int]]:
    """The array to fill and the checksums of the rows that are already in it."""
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


def cpu_count() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
