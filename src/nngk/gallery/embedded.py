"""A gallery in a folder of this machine: ``gallery.json``, segments in safetensors, and a log that only grows.

A change is one record of the log, on the disk before the call returns. ``flush`` moves what the log holds into a
segment; the JSON, which names the segments with their checksums and the log, is renamed into place last, so that a
reader sees the gallery before or after it, never a mixture. One process writes, any number read.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta, Struct
from safetensors import SafetensorError
from torch import Tensor

from nngk.errors import InputError
from nngk.files import (
    alone,
    clear_leftovers,
    damaged,
    fitted,
    parse_tensors,
    read_record,
    read_tensors,
    write_named_tensors,
    write_record,
)
from nngk.gallery.append_log import AppendLog, create_log, cut_log, read_log
from nngk.gallery.in_memory import Table
from nngk.gallery.interface import Gallery, Ids
from nngk.gallery.references import Found, References, joined, no_references
from nngk.progress import say

FORMAT = 1
RECORD = "gallery.json"
WRITER = ".writer"
LONGEST_LOG = 64 * 2**20  # bytes from which on a change also flushes
_WHAT = "a gallery"


class _Segment(Struct, forbid_unknown_fields=True):
    file: Annotated[str, Meta(pattern=r"^segment-[0-9a-f]+\.safetensors$")]  # in this folder and nowhere else
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _Record(Struct, forbid_unknown_fields=True):
    format: int
    dim: Annotated[int, Meta(ge=1, le=65536)]
    width: Annotated[int, Meta(ge=0, le=65536)]  # of the coordinates
    network: str  # what the vectors were computed by
    segments: list[_Segment]
    log: Annotated[str, Meta(pattern=r"^log-[0-9a-f]+\.bin$")]
    checksum: str = ""


@dataclass(frozen=True)
class Kind:
    """What the references of a gallery have in common."""

    dim: int
    width: int
    network: str


class Embedded(Gallery):
    """The gallery of a folder. ``Embedded(folder, kind, write=True)`` makes it where there is none."""

    def __init__(self, folder: Path, kind: Kind, *, write: bool = False, engine: str = "exact") -> None:
        self.folder, self.kind, self._engine = folder, kind, engine
        self._held = ExitStack()
        self._turn = threading.RLock()
        self._writes = write
        self._log: AppendLog | None = None
        self._ids: dict[str, Tensor] = {}  # of the rows in each segment
        self._touched: set[int] = set()  # ids that the log says something about
        if write:
            complaint = f"Another process writes into the gallery {folder}: wait for it, or read without writing."
            self._held.enter_context(alone(folder, WRITER, complaint))
        try:
            if write:
                self._prepare()
            self._open()
        except BaseException:
            self._held.close()
            raise

    # -- reading

    def count(self) -> int:
        return len(self._table)

    def view(self) -> Table:
        return self._table

    def search(self, x: Tensor, k: int) -> Found:
        return self._table.search(x, k)

    def get(self, ids: Ids) -> References:
        return self._table.get(ids)

    def scan(self) -> Iterator[References]:
        for part in self._table.parts():
            yield part.without_vectors()

    def _open(self) -> None:
        while True:
            before = _status(self.folder / RECORD)
            try:
                self._load()
                return
            except InputError:
                # A writer may have put other files in the place of those that were being read.
                if _status(self.folder / RECORD) == before:
                    raise

    def _load(self) -> None:
        record = self._read_record()
        self._segments, self._log_name = record.segments, record.log
        parts = [no_references(self.kind.dim, self.kind.width)]
        for each in record.segments:
            path = self.folder / each.file
            parts.append(self._references(path, read_tensors(path, each.sha256)))
            self._ids[each.file] = parts[-1].ids
        path = self.folder / record.log
        said, end, torn = read_log(path)
        if torn and self._writes:
            _cut_with_a_note(path, end, torn)
        if len(set(torch.cat([part.ids for part in parts]).tolist())) != sum(map(len, parts)):
            raise damaged(self.folder / RECORD, "two segments hold the same row")
        changes = [self._record_of(path, each) for each in said]
        self._touched = {number for added, out in changes for number in (*added.ids.tolist(), *out.tolist())}
        self._table = Table.of(_replayed(parts, changes), self._engine)
        if self._writes:
            self._log = AppendLog(path, end)
            self._clear()

    def _read_record(self) -> _Record:
        path = self.folder / RECORD
        record = fitted(read_record(path, _WHAT, FORMAT, first_sealed=1), _Record, path)
        if (record.dim, record.width, record.network) != (self.kind.dim, self.kind.width, self.kind.network):
            raise InputError(
                f"The gallery {self.folder} holds embeddings of another network than this model's ({record.dim} "
                f"dimensions, the model {self.kind.dim}): fill another gallery with this model by nngk embed."
            )
        return record

    def _references(self, path: Path, tensors: dict[str, Tensor]) -> References:
        try:
            rows = References.read(tensors)
        except InputError as error:
            raise damaged(path, error) from None
        if rows.vectors.shape[1] != self.kind.dim or rows.coordinates.shape[1] != self.kind.width:
            raise damaged(path, f"its rows are {tuple(rows.vectors.shape)} and {tuple(rows.coordinates.shape)}")
        return rows

    def _record_of(self, path: Path, said: bytes) -> tuple[References, Tensor]:
        try:
            tensors, _ = parse_tensors(said)
        except SafetensorError as error:
            raise damaged(path, error) from None
        removed = tensors.get("removed")
        if removed is None or removed.ndim != 1 or removed.dtype != torch.int64:
            raise damaged(path, "a record does not say what it removes")
        return self._references(path, tensors), removed

    # -- writing

    def change(self, added: References | None = None, removed: Ids = ()) -> None:
        from safetensors.torch import save

        with self._turn:
            if self._writable().broken:
                self.flush()  # into another log
            log = self._writable()
            rows = no_references(self.kind.dim, self.kind.width) if added is None else added
            if rows.vectors.shape[1] != self.kind.dim or rows.coordinates.shape[1] != self.kind.width:
                raise InputError(
                    f"The gallery holds rows of {self.kind.dim} and {self.kind.width} dimensions; got "
                    f"{rows.vectors.shape[1]} and {rows.coordinates.shape[1]}."
                )
            out = torch.as_tensor(removed, dtype=torch.int64).reshape(-1)
            if not len(rows) and not len(out):
                return
            tensors = {name: t.contiguous() for name, t in (rows.tensors() | {"removed": out}).items()}
            log.append(save(tensors))
            self._touched.update(rows.ids.tolist(), out.tolist())
            self._table = self._table.changed(rows, out)
            if log.end > LONGEST_LOG:
                try:
                    self.flush()
                except OSError as error:  # what was changed is safe in the log
                    say(f"The log of the gallery {self.folder} could not be made shorter ({error.strerror or error}).")

    def flush(self) -> None:
        """Move what the log holds into a segment, with the segments that are not larger."""
        with self._turn:
            log = self._writable()
            if not log.end and not log.broken:
                return
            rows = joined(self._table.parts())
            kept, covered = self._untouched(rows)
            rest = rows.select(~covered)
            held = {each.file: self._ids[each.file] for each in kept}
            if len(rest):
                name, digest = write_named_tensors(self.folder, "segment", rest.tensors())
                kept, held[name] = [*kept, _Segment(name, digest)], rest.ids
            try:
                self._write(kept)
                self._ids, self._touched = held, set()
                self._log = AppendLog(self.folder / self._log_name, 0)
            except OSError:
                # Where another record is in place already, what came into this log would not be read again.
                log.broken = log.broken or not self._is_named(log)
                raise
            log.close()
            self._clear()

    def _is_named(self, log: AppendLog) -> bool:
        """Return whether the record in the folder is one that names this log."""
        try:
            return self._read_record().log == log.path.name
        except (InputError, OSError):
            return False

    def _untouched(self, rows: References) -> tuple[list[_Segment], Tensor]:
        """Return the segments that stay as they are, and which rows they hold.

        Those are the ones of which no row was changed, and that are larger than what is written anew.
        """
        whole = [each for each in self._segments if self._touched.isdisjoint(self._ids[each.file].tolist())]
        kept, anew = [], len(rows) - sum(len(self._ids[each.file]) for each in whole)
        for each in sorted(whole, key=lambda one: len(self._ids[one.file])):
            if len(self._ids[each.file]) > anew:
                kept.append(each)
            else:
                anew += len(self._ids[each.file])
        held = [self._ids[each.file] for each in kept]
        covered = torch.isin(rows.ids, torch.cat(held)) if held else torch.zeros(len(rows), dtype=torch.bool)
        return [each for each in self._segments if each in kept], covered

    def close(self) -> None:
        """Flush, and let others write."""
        with self._turn:
            if self._log is not None:
                with suppress(OSError):
                    self.flush()
                self._log.close()
                self._log = None
            self._held.close()

    def _writable(self) -> AppendLog:
        if self._log is None:
            raise InputError(f"The gallery {self.folder} was opened for reading alone.")
        return self._log

    def _prepare(self) -> None:
        """Make an empty gallery where there is none; clear what killed writers left."""
        if not (self.folder / RECORD).exists():
            strangers = [p.name for p in self.folder.iterdir() if p.name != WRITER and not p.name.startswith(".")]
            if any(not name.startswith(("segment-", "log-")) for name in strangers):
                raise InputError(f"{self.folder} is no gallery, and not empty: name a new folder.")
            self._write([])

    def _write(self, segments: list[_Segment]) -> None:
        """Put a new record in the place of the old one, with an empty log."""
        name = f"log-{secrets.token_hex(6)}.bin"
        create_log(self.folder / name)
        said = {
            "format": FORMAT,
            "dim": self.kind.dim,
            "width": self.kind.width,
            "network": self.kind.network,
            "segments": [{"file": each.file, "sha256": each.sha256} for each in segments],
            "log": name,
        }
        write_record(self.folder / RECORD, said)
        self._segments, self._log_name = segments, name

    def _clear(self) -> None:
        """Remove what no record names any more."""
        clear_leftovers(self.folder, RECORD, "segment", "log")
        named = {self._log_name, *(each.file for each in self._segments)}
        for pattern in ("log-*.bin", "segment-*.safetensors"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink(missing_ok=True)


def _status(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _replayed(parts: list[References], changes: list[tuple[References, Tensor]]) -> References:
    """Return the rows that are left of ``parts`` after changes, each of which adds rows and removes others."""
    alive = {number: (at, row) for at, part in enumerate(parts) for row, number in enumerate(part.ids.tolist())}
    for at, (added, removed) in enumerate(changes, len(parts)):
        for number in removed.tolist():
            alive.pop(number, None)
        for row, number in enumerate(added.ids.tolist()):
            alive.pop(number, None)  # it stands where it was written last
            alive[number] = at, row
    kept: dict[int, list[int]] = {}
    for at, row in alive.values():
        kept.setdefault(at, []).append(row)
    everything = [*parts, *(added for added, _ in changes)]
    chosen = [everything[at].select(torch.tensor(rows)) for at, rows in sorted(kept.items())]
    return joined([parts[0].select(torch.empty(0, dtype=torch.int64)), *chosen])


def _cut_with_a_note(path: Path, end: int, torn: int) -> None:
    kept = cut_log(path, end)
    say(
        f"The last record of {path} was never finished: its {torn} bytes were cut off and are kept in {kept.name}. "
        "Nothing that was acknowledged is missing."
    )
