"""What a decoded picture depends on, as keys: equal keys, equal pixels."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from nngk.data.packs.layout import row_number
from nngk.data.shards.shard_files import holding_shard
from nngk.data.table import ImageTable
from nngk.errors import InputError


def picture_keys(table: ImageTable) -> list[str]:
    """Return one key per image of what its pixels depend on: the file, its time and length, and the box.

    Equal keys mean equal pixels.
    """
    found: dict[Path, str] = {}
    result = []
    for row, path in enumerate(table.paths):
        file = path.parent if row_number(path) is not None else holding_shard(path) or path
        if file not in found:
            try:
                stat = file.stat()
            except OSError:
                raise InputError(f"There is no image {path}: check the path.") from None
            found[file] = f"{stat.st_mtime_ns}|{stat.st_size}"
        box = "" if table.boxes is None or np.isnan(table.boxes[row]).any() else str(table.boxes[row].tolist())
        result.append(_hash(f"{absolute(path)}|{found[file]}|{box}"))
    return result


def picture_places(table: ImageTable) -> list[str]:
    """Return where each image lies, as a hash: a pack that travels does not tell its writer's folders."""
    return [_hash(absolute(path)) for path in table.paths]


def absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 (resolve() would look at every parent on disk)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
