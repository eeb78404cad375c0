"""Unpack an archive that may have been made to fill the disk, or to write where it has no business."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, cast

from nngk.errors import InputError

MOST_MEMBERS = 200_000  # the published datasets have up to 31,000
MOST_TIMES = 20  # the size of the archive: photos hardly shrink in one, emptiness a thousand times
LEAST_BYTES = 100 << 20  # that may be unpacked from any archive
_MOST_NOTES = 1 << 20  # of one member: the names and notes before it, which are read at once


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file into `folder`; one that would write anywhere else, or too much, is refused whole.

    The files appear in the folder only once all of them are unpacked.
    """
    room = folder / f".{archive.name}.unpacking"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    try:
        _extract(archive, room)
        for item in sorted(room.iterdir()):
            _move(item, folder / item.name)
    except tarfile.FilterError as error:
        raise InputError(f"{archive} is refused, since it would write outside of its folder: {error}.") from error
    except InputError:
        raise
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): remove it and download it again.") from error
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _extract(archive: Path, room: Path) -> None:
    most = max(LEAST_BYTES, MOST_TIMES * archive.stat().st_size)
    opened = gzip.open if _is_gzip(archive) else open
    with (
        opened(archive, "rb") as stream,
        tarfile.open(fileobj=cast(IO[bytes], _Bounded(cast(IO[bytes], stream), most)), mode="r:") as tar,
    ):
        total = 0
        for count, member in enumerate(tar, start=1):
            total += member.size
            if count > MOST_MEMBERS or total > most:
                limit = f"{MOST_MEMBERS:,} files" if count > MOST_MEMBERS else f"{most:,} bytes"
                raise InputError(f"{archive} is refused, since it would unpack to more than {limit}: remove it.")
            tar.extract(member, room, filter="data")


def _is_gzip(archive: Path) -> bool:
    with archive.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


class _Bounded:
    """A stream that refuses to give too much, at once or in all: names and notes are read whole into memory."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self.stream, self.most = stream, most
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_NOTES:
            raise tarfile.ReadError(f"it has a piece of {size:,} bytes")
        self._require(self.stream.tell() + size)
        return self.stream.read(size)

    def seek(self, place: int, *rest: Any) -> int:
        self._require(place)
        return self.stream.seek(place, *rest)

    def _require(self, place: int) -> None:
        # Every file has a header, and the end is padded.
        if place > self.most + 1024 * MOST_MEMBERS:
            raise tarfile.ReadError(f"it goes on for more than {self.most:,} bytes")


def _move(item: Path, target: Path) -> None:
    """Move a file or merge a folder into what is there."""
    if item.is_dir() and target.is_dir():
        for inner in sorted(item.iterdir()):
            _move(inner, target / inner.name)
    else:
        item.replace(target)
