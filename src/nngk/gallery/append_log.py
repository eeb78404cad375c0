"""A file that only grows: each record is on the disk before anybody is told, and a torn end is noticed.

A record is a head (a mark, the length of what follows, both with a checksum) and what was said, with its SHA-256.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from nngk.errors import InputError
from nngk.files import damaged, forbidden, require_regular, sync_folder, write_atomically

_HEAD = struct.Struct("<4sQI32s")  # mark, length, checksum of both, SHA-256 of what follows
_MARK = b"ngk1"


class AppendLog:
    """The log at ``path``, opened for appending behind its first ``end`` bytes."""

    def __init__(self, path: Path, end: int) -> None:
        self.path, self.end = path, end
        self._file = os.open(path, os.O_RDWR)
        self.broken = False  # nothing may be appended: what lies behind the end, or which log counts, is uncertain

    def append(self, said: bytes) -> None:
        """Write a record and return when it is on the disk. If it raises, the log is as it was."""
        if self.broken:
            raise OSError(f"{self.path} could not be written before: nothing is appended to it")
        try:
            _write_all(self._file, _head(said) + said, self.end)
            os.fsync(self._file)
        except OSError:
            self._cut()
            raise
        self.end += _HEAD.size + len(said)

    def _cut(self) -> None:
        """Take back what a failed write left; where even that fails, nothing is appended behind it."""
        self.broken = True
        os.ftruncate(self._file, self.end)
        os.fsync(self._file)
        self.broken = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def create_log(path: Path) -> None:
    """Make an empty log."""
    write_atomically(path, lambda part: part.write_bytes(b""))


def read_log(path: Path) -> tuple[list[bytes], int, int]:
    """Return what the records of a log say, where they end, and how many bytes of a torn record lie behind them.

    A record is torn if a kill or a power cut stopped its writer: then it is the last one. Raise InputError if there is
    damage with a whole record behind it.
    """
    try:
        require_regular(path, "a log")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it from a copy or fill the gallery again.") from None
    except PermissionError:
        raise forbidden(path) from None
    records, end = [], 0
    for said, after in _records(data):
        records.append(said)
        end = after
    if any(_whole(data, place) for place in _marks(data, end + 1)):
        raise damaged(path, f"the record at byte {end} is wrong, and others follow it")
    return records, end, len(data) - end


def cut_log(path: Path, end: int) -> Path:
    """Cut a torn record off and keep what there is of it in a file of its own, whose path is returned."""
    data = path.read_bytes()
    kept = path.with_name(f"{path.stem}-torn-{hashlib.sha256(data[end:]).hexdigest()[:8]}.cut")
    write_atomically(kept, lambda part: part.write_bytes(data[end:]))
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return kept


def _head(said: bytes) -> bytes:
    start = struct.pack("<4sQ", _MARK, len(said))
    return start + struct.pack("<I", zlib.crc32(start)) + hashlib.sha256(said).digest()


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield what whole records from the beginning on say, and where each ends."""
    place = 0
    while (said := _whole(data, place)) is not None:
        place += _HEAD.size + len(said)
        yield said, place


def _whole(data: bytes, place: int) -> bytes | None:
    """Return what the record at a place says, if it is whole."""
    if place + _HEAD.size > len(data):
        return None
    mark, length, crc, digest = _HEAD.unpack_from(data, place)
    start = place + _HEAD.size
    if mark != _MARK or crc != zlib.crc32(data[place : place + 12]) or start + length > len(data):
        return None
    said = data[start : start + length]
    return said if hashlib.sha256(said).digest() == digest else None


def _marks(data: bytes, place: int) -> Iterator[int]:
    """Yield where records may begin."""
    while (place := data.find(_MARK, place)) >= 0:
        yield place
        place += 1


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while len(view):
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
