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

import msgspec
import numpy as np

from nngk.data.decode import fitted, stand_in
from nngk.data.packs.keys import absolute, picture_keys, picture_places
from nngk.data.packs.layout import FORMAT, PIXELS, TABLE, VERSION, Pack, finished, is_pack
from nngk.data.packs.pixel_file import SQUARES
from nngk.data.table import ImageTable
from nngk.device import cpu_count
from nngk.errors import InputError
from nngk.files import clear_leftovers, locked, sync_folder, write_json, write_record
from nngk.progress import Seen

_PROGRESS = "progress.json"
_PART = f"{PIXELS}.part"  # the pictures that are decoded so far
_NEXT = "table.next.json"  # the new table, until its pictures are in place
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
    tolerant: bool = False,
) -> None:
    """Fill `folder` with the pack of `table`, going on from what an interrupted call left there.

    With `tolerant` a picture that cannot be read becomes a grey square, and the table says why.
    """
    keys = picture_keys(table)
    how = {"format": FORMAT, "version": VERSION, "size": size, "squash": squash}
    folder.mkdir(parents=True, exist_ok=True)
    clear_leftovers(folder, TABLE, _NEXT, _PROGRESS)
    try:
        whole = finished(folder)
        if whole is not None and _holds(whole, keys, size, squash):
            write_record(folder / TABLE, {**whole.meta, **_of_table(table)})  # labels may have changed
            _remove(folder, _PROGRESS, _PART, _NEXT)  # of a killed writer, of another size
            return
        done = _resumed(folder, _digest(size, squash, keys))
        _require_room(folder, 3 * size * size * (len(table) - len(done.sums)))

        def picture(row: int) -> np.ndarray:
            box = None if table.boxes is None else table.boxes[row]
            try:
                return fitted(table.paths[row], size, box, squash=squash).numpy()
            except InputError as error:
                if not tolerant:
                    raise
                done.broken[str(row)] = str(error)
                return stand_in(size).numpy()

        _append(folder / _PART, picture, len(table), done, threads or cpu_count(), progress)
        # All that needs room on the disk is written before anything of an older pack goes.
        record = {**how, **_of_table(table), "keys": keys, "crc32": done.sums, "sizes": done.sizes}
        write_record(folder / _NEXT, record | ({"broken": done.broken} if done.broken else {}))
        _exchange(folder)
    except OSError as error:
        _remove(folder, _PART, _PROGRESS, _NEXT, *(() if (folder / TABLE).exists() else (PIXELS,)))
        where = f"The decoded images cannot be written to {folder} ({error.strerror or error})"
        raise InputError(f"{where}: make room or name another folder.") from None


def _holds(pack: Pack, keys: list[str], size: int, squash: bool) -> bool:
    """Return whether a pack holds these pictures, every one of them undamaged."""
    return (pack.meta.get("keys"), pack.size, pack.squash) == (keys, size, squash) and all(
        map(pack.intact, range(len(keys)))
    )


def _exchange(folder: Path) -> None:
    """Put the new pictures and then their table in place; whatever happens, no table lies beside other pictures."""
    _remove(folder, TABLE, SQUARES)
    sync_folder(folder)
    (folder / _PART).replace(folder / PIXELS)
    sync_folder(folder)
    (folder / _NEXT).replace(folder / TABLE)
    sync_folder(folder)
    _remove(folder, _PROGRESS)


def _remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


@dataclass
class _Done:
    """What is written already: a build's identity, and the checksum and size of each picture."""

    digest: str
    sums: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # why pictures could not be read, by their row

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
                done.sizes.append((pixels.shape[1], pixels.shape[2]))
            if progress:
                progress(len(done.sums), count)
            if time.monotonic() - saved > _SAVE_SECONDS or len(done.sums) == count:
                _to_disk(stream)  # the pixels first: the count must never run ahead of them
                write_json(part.with_name(_PROGRESS), vars(done))
                saved = time.monotonic()


def _resumed(folder: Path, digest: str) -> _Done:
    """Return what an interrupted build of the same pictures wrote, its pixels cut to it; or begin with nothing.

    A picture counts only if its checksum is right, and so do those before it: the pixels may be of another build.
    """
    part = folder / _PART
    try:
        if not part.exists() and not (folder / TABLE).exists():
            (folder / PIXELS).replace(part)  # killed while the parts of the pack were put in place
        state = msgspec.convert(json.loads((folder / _PROGRESS).read_text(encoding="utf-8")), _Done)
        if state.digest == digest and len(state.sums) == len(state.sizes):
            state = _right(part, state)
            os.truncate(part, state.length)
            return state
    except (OSError, ValueError, RecursionError):
        pass  # nothing usable was left: start from the first picture
    _remove(folder, _PROGRESS, _PART)  # the notes first: they must never describe the pixels of another build
    return _Done(digest)


def _right(part: Path, state: _Done) -> _Done:
    """Return the pictures from the first on whose pixels are in `part` with the right checksums."""
    with part.open("rb") as stream:
        for number, (height, width) in enumerate(state.sizes):
            count = 3 * height * width
            pixels = stream.read(count)
            if len(pixels) < count or zlib.crc32(pixels) != state.sums[number]:
                broken = {row: why for row, why in state.broken.items() if int(row) < number}
                return _Done(state.digest, state.sums[:number], state.sizes[:number], broken)
    return state


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
    return name.lstrip(".").startswith(
        (PIXELS, SQUARES, TABLE, _NEXT, _PROGRESS, "lock")
    )  # with a dot while it is written
