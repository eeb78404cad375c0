"""A folder of packs in which every picture is looked up by what its pixels depend on.

Tables that share pictures (the splits of another seed, a part of a set) share them here too: only what no pack
has yet is decoded, into a pack of its own.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np

from nngk.data.packs.keys import picture_keys, picture_places
from nngk.data.packs.layout import TABLE, Pack, finished
from nngk.data.packs.writer import write_pack
from nngk.data.table import ImageTable
from nngk.errors import InputError
from nngk.files import locked
from nngk.progress import Seen

_PREFIX = "cache-"


def cached(
    table: ImageTable,
    size: int,
    squash: bool,
    folder: Path,
    threads: int,
    progress: Seen | None = None,
    *,
    tolerant: bool = False,
) -> tuple[list[Pack], np.ndarray, np.ndarray]:
    """Return packs that hold the table's pictures, and for each picture the number of its pack and its row there.

    With ``tolerant`` pictures that cannot be read are noted in their pack (:func:`broken_rows`).
    """
    wanted = picture_keys(table)
    packs, found = _look_up(folder, size, squash, wanted)
    if (found[:, 0] < 0).any():
        with locked(folder):
            packs, found = _look_up(folder, size, squash, wanted)  # another process may have just written them
            missing = np.flatnonzero(found[:, 0] < 0)
            if len(missing):
                shard = _shard(folder, size, squash, table, missing)
                _forget_stale(folder, table, wanted)
                _clear_unfinished(folder, shard)
                rest = table.select(missing)
                write_pack(rest, shard, size, squash=squash, threads=threads, progress=progress, tolerant=tolerant)
                packs, found = _look_up(folder, size, squash, wanted)
    if (found[:, 0] < 0).any():
        raise InputError(f"Pictures that were just decoded are not in {folder}: remove that folder and start again.")
    return packs, found[:, 0], found[:, 1]


def broken_rows(packs: list[Pack], where: np.ndarray) -> list[int]:
    """Return the rows of ``where``, which has packs and rows there, whose pictures could not be read."""
    known = [{int(row) for row in pack.meta.get("broken") or ()} for pack in packs]
    return [place for place, (number, row) in enumerate(where.tolist()) if row in known[number]]


def _shard(folder: Path, size: int, squash: bool, table: ImageTable, missing: np.ndarray) -> Path:
    # Named by files and boxes and not by times, so that a build goes on, or starts over, in the same place.
    digest = hashlib.blake2b(digest_size=8)
    for i in missing:
        digest.update(str(table.paths[i]).encode("utf-8", "surrogateescape") + b"\n")
        digest.update(b"" if table.boxes is None else table.boxes[i].tobytes())
    how = f"{size}" if squash else f"short-{size}"
    return folder / f"{_PREFIX}{how}-{digest.hexdigest()}"


def _packs(folder: Path) -> list[Pack]:
    return [pack for place in [folder, *sorted(folder.glob("*/"))] if (pack := finished(place)) is not None]


def _keys(pack: Pack) -> list[str]:
    return pack.meta.get("keys") or []


def _look_up(folder: Path, size: int, squash: bool, wanted: list[str]) -> tuple[list[Pack], np.ndarray]:
    found = np.full((len(wanted), 2), -1, dtype=np.int64)
    packs = [pack for pack in _packs(folder) if (pack.size, pack.squash) == (size, squash)]
    known = {key: (number, row) for number, pack in enumerate(packs) for row, key in enumerate(_keys(pack))}
    for position, key in enumerate(wanted):
        if key in known:
            found[position] = known[key]
    return packs, found


def _forget_stale(folder: Path, table: ImageTable, wanted: list[str]) -> None:
    """Drop the packs this cache wrote whose every picture has changed on disk since."""
    current: dict[str, set[str]] = {}
    for place, key in zip(picture_places(table), wanted):
        current.setdefault(place, set()).add(key)
    for pack in _packs(folder):
        if not pack.folder.name.startswith(_PREFIX) or pack.meta["boxes_applied"] != (table.boxes is not None):
            continue
        rows = zip(pack.meta.get("places") or [], _keys(pack))
        if all(place in current and key not in current[place] for place, key in rows):
            shutil.rmtree(pack.folder, ignore_errors=True)


def _clear_unfinished(folder: Path, shard: Path) -> None:
    """Remove what killed writers left of other packs: nobody else writes here now, and nobody would go on with them."""
    for place in folder.glob(f"{_PREFIX}*/"):
        if place != shard and finished(place) is None:
            shutil.rmtree(place, ignore_errors=True)


def forget_damaged(pack: Pack) -> None:
    """Let a damaged pack of a cache be written anew by whoever needs it next; a pack of the user's stays."""
    if pack.folder.name.startswith(_PREFIX):
        (pack.folder / TABLE).unlink(missing_ok=True)
