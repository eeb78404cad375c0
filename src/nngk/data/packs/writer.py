"""Write the decoded pictures of a table once, for many runs, here or on another machine.

A pack is also what the cache of `Images` is made of: one layout, one writer.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data.decode import fitted
from nngk.data.packs.keys import absolute, picture_keys, picture_places
from nngk.data.packs.layout import FORMAT, PIXELS, SQUARES, TABLE, VERSION, finished, is_pack
from nngk.data.table import ImageTable
from nngk.device import cpu_count
from nngk.errors import InputError
from nngk.files import locked, write_json
from nngk.progress import Seen

_PROGRESS = "progress.json"
_CHUNK = 64  # pictures decoded between two looks at the clock
_SAVE_SECONDS = 5.0  # an interrupted build loses at most this much work


def pack(
    table: ImageTable,
    out: str | Path,
    size: int = 256,
    *,
    squash: bool = False,
    threads: int | None = None,
    progress: Seen | None = None,
) -> Path:
    """Write a table's images, cropped to their boxes and with shorter sides of `size`, into the folder `out`.

    They keep their aspect; `squash` makes them size×size. An interrupted pack goes on where it stopped; a finished one
    of the same images is left as it is.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name in "ab":
    ...         Image.new("RGB", (5, 4)).save(f"{home}/{name}.png")
    ...     table = ImageTable([Path(home, "a.png"), Path(home, "b.png")], np.array([0, 1]), ["a", "b"])
    ...     sorted(file.name for file in pack(table, f"{home}/packed", 8).iterdir() if file.name[0] != ".")
    ['pixels.bin', 'table.json']
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
        write_pack(table, out, size, squash=squash, threads=threads, progress=progress)
    return out


def write_pack(
    table: ImageTable,
    folder: Path,
    size: int,
    *,
    squash: bool = False,
    threads: int | None = None,
    progress: Seen | None = None,
) -> None:
    """Fill `folder` with the pack of `table`, going on from what an interrupted call left there."""
    keys = picture_keys(table)
    whole = finished(folder)
    if whole is not None and (whole.meta.get("keys"), whole.size, whole.squash) == (keys, size, squash):
        write_json(folder / TABLE, {**whole.meta, **_of_table(table)})  # labels may have changed
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{PIXELS}.part"
    done = _resumed(folder, part, _digest(size, squash, keys))
    _require_room(folder, 3 * size * size * (len(table) - len(done.sums)))

    def picture(row: int) -> np.ndarray:
        box = None if table.boxes is None else table.boxes[row]
        return fitted(table.paths[row], size, box, squash=squash).numpy()

    try:
        _append(part, picture, len(table), done, threads or cpu_count(), progress)
    except OSError as error:
        where = f"The decoded images cannot be written to {folder} ({error.strerror})"
        raise InputError(f"{where}: make room or name another folder.") from None
    (folder / TABLE).unlink(missing_ok=True)  # never an old table beside new pictures
    (folder / SQUARES).unlink(missing_ok=True)
    part.replace(folder / PIXELS)
    how = {"format": FORMAT, "version": VERSION, "size": size, "squash": squash}
    write_json(folder / TABLE, {**how, **_of_table(table), "keys": keys, "crc32": done.sums, "sizes": done.sizes})
    (folder / _PROGRESS).unlink(missing_ok=True)


@dataclass
class _Done:
    """What is written already: a build's identity, and the checksum and size of each picture."""

    digest: str
    sums: list[int] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(3 * height * width for height, width in self.sizes)


def _append(
    part: Path, picture: Callable[[int], np.ndarray], count: int, done: _Done, threads: int, progress: Seen | None
) -> None:
    """Write the pictures up to `count` that are not `done` to the end of `part`, and note them there."""
    saved = time.monotonic()
    with part.open("ab") as stream, ThreadPoolExecutor(threads) as pool:
        while len(done.sums) < count:
            for pixels in pool.map(picture, range(len(done.sums), min(len(done.sums) + _CHUNK, count))):
                stream.write(pixels.data)
                done.sums.append(zlib.crc32(pixels.data))
                done.sizes.append(list(pixels.shape[1:]))
            if progress:
                progress(len(done.sums), count)
            if time.monotonic() - saved > _SAVE_SECONDS:
                _to_disk(stream)  # the pixels first: the count must never run ahead of them
                write_json(part.with_name(_PROGRESS), vars(done))
                saved = time.monotonic()
        _to_disk(stream)


def _resumed(folder: Path, part: Path, digest: str) -> _Done:
    """Return what an interrupted build of the same pictures noted, with `part` cut to it; or begin with nothing."""
    try:
        state = _Done(**json.loads((folder / _PROGRESS).read_text(encoding="utf-8")))
        if state.digest == digest and part.stat().st_size >= state.length:
            os.truncate(part, state.length)
            return state
    except (OSError, ValueError, TypeError):
        pass  # nothing usable was left: start from the first picture
    part.unlink(missing_ok=True)
    return _Done(digest)


def _to_disk(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _of_table(table: ImageTable) -> dict[str, Any]:
    return {
        "name": table.name,
        "task": table.task,
        "boxes_applied": table.boxes is not None,
        "class_names": table.class_names,
        "labels": table.labels.tolist(),
        "splits": table.splits,
        "paths": _relative(table.paths),
        "places": picture_places(table),
    }


def _relative(paths: list[Path]) -> list[str]:
    """Return the paths below the folder that all of them share."""
    texts = [absolute(path) for path in paths]
    shared = os.path.commonpath([os.path.dirname(text) for text in texts])  # noqa: PTH120
    return [Path(text).relative_to(shared).as_posix() for text in texts]


def _digest(size: int, squash: bool, keys: list[str]) -> str:
    return hashlib.blake2b(f"{VERSION} {size} {squash} {' '.join(keys)}".encode(), digest_size=16).hexdigest()


def _require_room(folder: Path, needed: int) -> None:
    """Raise InputError if a disk is certainly too small, before hours of decoding: squares are the least."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"The decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: make "
            "room, name another folder, or use smaller images."
        )


def _ours(name: str) -> bool:
    return name.lstrip(".").startswith((PIXELS, SQUARES, TABLE, _PROGRESS, "lock"))  # with a dot while it is written
