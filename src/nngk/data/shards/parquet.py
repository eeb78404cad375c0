"""Parquet files as Hugging Face's ``datasets`` writes them: a column of encoded pictures and one of labels."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from nngk.errors import InputError, MissingExtra

_IMAGES, _LABELS = ("image", "img"), ("label", "labels", "fine_label")
_GROUPS = 8  # row groups whose pictures are kept in memory, encoded: neighbouring rows are asked for together


def parquet_rows(shard: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each picture, which is its row, and its class."""
    file = _opened(shard, _version(shard))
    label = _column(file, _LABELS, shard)
    _column(file, _IMAGES, shard)
    names = _class_names(file.schema_arrow.metadata or {}, label)
    row = 0
    for batch in file.iter_batches(columns=[label]):
        for value in batch.column(0).to_pylist():
            if value is None or (names and not (isinstance(value, int) and 0 <= value < len(names))):
                raise InputError(f"{shard} says {value!r} in the column {label} of row {row}, which is no class.")
            yield f"{row:08d}", names[value] if names else str(value)
            row += 1


def parquet_bytes(shard: Path, place: str) -> bytes:
    """Return the bytes of a picture. Raise FileNotFoundError if there is no such row."""
    version = _version(shard)
    ends = _ends(shard, version)
    if not place.isdigit() or int(place) >= ends[-1]:
        raise FileNotFoundError(shard / place)
    group = bisect.bisect_right(ends, int(place)) - 1
    value = _pictures(shard, version, group)[int(place) - ends[group]].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise OSError("the row holds no bytes of a picture: they must be in the file, not beside it")
    return data


def _version(shard: Path) -> tuple[int, int]:
    status = shard.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _opened(shard: Path, version: tuple[int, int]) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", "A Parquet file") from None
    try:
        return pyarrow.parquet.ParquetFile(shard)
    except pyarrow.ArrowException as error:
        raise InputError(f"{shard} cannot be read as a Parquet file ({error}).") from None


@lru_cache(maxsize=4096)
def _ends(shard: Path, version: tuple[int, int]) -> list[int]:
    """Return the row that each row group begins with, and the number of rows."""
    about = _opened(shard, version).metadata
    return list(accumulate((about.row_group(i).num_rows for i in range(about.num_row_groups)), initial=0))


@lru_cache(maxsize=_GROUPS)
def _pictures(shard: Path, version: tuple[int, int], group: int) -> Any:
    file = _opened(shard, version)
    return file.read_row_group(group, columns=[_column(file, _IMAGES, shard)], use_threads=False).column(0)


def _column(file: Any, wanted: tuple[str, ...], shard: Path) -> str:
    names = file.schema_arrow.names
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise InputError(
            f"{shard} has no column {wanted[0]!r}: expected 'image' and 'label'; it has {', '.join(names)}."
        )
    return found


def _class_names(metadata: dict[bytes, bytes], label: str) -> list[str]:
    """Return the names that ``datasets`` gives to the numbers of a label column; none where it does not."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        names = features[label]["names"]
    except (ValueError, KeyError, TypeError):
        return []
    return [str(name) for name in names]
