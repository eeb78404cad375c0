"""Tables of shards, and the pictures in them.

A picture's path leads into its shard and says where it lies there, so that any rank reads any picture by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from nngk.data.folder import split_name, subfolders
from nngk.data.rows import classes_of
from nngk.data.shards.parquet import parquet_bytes, parquet_rows
from nngk.data.shards.tar import tar_bytes, tar_rows
from nngk.data.table import ImageTable
from nngk.errors import InputError

_KINDS = {".tar": (tar_rows, tar_bytes), ".parquet": (parquet_rows, parquet_bytes)}


def is_shard(path: Path) -> bool:
    """Return whether a name is that of a shard."""
    return path.suffix.lower() in _KINDS and not path.name.startswith(".")


def shards_in(folder: Path) -> list[Path]:
    """Return the shards in a folder that has no folders in it, sorted; one with folders is a folder of classes."""
    found = sorted(path for path in folder.iterdir() if is_shard(path))
    return found if found and not subfolders(folder) else []


def read_shards(shards: list[Path], name: str) -> ImageTable:
    """Return the table of all pictures in some shards.

    Shards whose names begin with train, val or test, as in ``train-00000-of-00002.parquet``, are those parts.
    """
    rows = [(shard, place, label) for shard in shards for place, label in _KINDS[shard.suffix.lower()][0](shard)]
    if not rows:
        raise InputError(f"{name} holds no pictures: look into {shards[0]}.")
    names, labels = classes_of([label for _, _, label in rows])
    roles = {shard: split_name(re.split(r"[-_.]", shard.name)[0]) for shard in shards}
    splits = [str(roles[shard]) for shard, _, _ in rows] if all(roles.values()) and "train" in roles.values() else None
    return ImageTable([shard / place for shard, place, _ in rows], labels, names, splits, name=name)


def holding_shard(path: Path) -> Path | None:
    """Return the shard that a path leads into; None for any other path."""
    return path.parent if is_shard(path.parent) and path.parent.is_file() else None


def picture_in_shard(path: Path) -> bytes | None:
    """Return the bytes of a picture in a shard; None for a path that leads into none."""
    shard = holding_shard(path)
    return None if shard is None else _KINDS[shard.suffix.lower()][1](shard, path.name)
