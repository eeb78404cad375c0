"""The log of a run: one row per epoch, as JSON lines and CSV, and to TensorBoard if asked for.

A checkpoint marks how far the log had come and what it said, so that a resumed run notices a damaged one. The rows have
no format number of their own: they are read under that of the checkpoint.
"""

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from nngk.errors import InputError, MissingExtra
from nngk.files import require_regular, write_atomically

LOG = "log.jsonl"


class LogMark(Struct, forbid_unknown_fields=True):
    """The length of a log in bytes, and the SHA-256 of them."""

    length: Annotated[int, Meta(ge=0)]
    sha256: str


class _Row(Struct):
    """The field of a row that anything is decided by; the others are numbers and texts for people."""

    epoch: Annotated[int, Meta(ge=1)]


def mark_log(folder: Path) -> dict[str, Any] | None:
    """Return the mark of a run's log for a checkpoint, where there is a log."""
    path = folder / LOG
    if not path.exists():
        return None
    said = _bytes(path)
    return {"length": len(said), "sha256": hashlib.sha256(said).hexdigest()}


def require_log(folder: Path, mark: LogMark) -> None:
    """Raise InputError if the log does not begin with what it said when it was marked. It may be gone altogether."""
    path = folder / LOG
    if path.exists() and hashlib.sha256(_bytes(path)[: mark.length]).hexdigest() != mark.sha256:
        raise _damaged_log(path, "its checksum is wrong")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log. Raise InputError if a line is not one."""
    rows: list[dict[str, Any]] = []
    try:
        for line in _bytes(path).decode("utf-8").splitlines():
            row = json.loads(line)
            convert(row, _Row)
            if any(isinstance(value, dict | list) for value in row.values()):
                raise ValueError("a value is neither a number nor a text")
            rows.append(row)
    except (ValueError, RecursionError, ValidationError) as error:
        raise _damaged_log(path, f"line {len(rows) + 1}: {error}") from None
    return rows


def _bytes(path: Path) -> bytes:
    require_regular(path, "a log")
    return path.read_bytes()


def _damaged_log(path: Path, why: object) -> InputError:
    return InputError(f"{path} is damaged ({why}); restore it from a copy, or remove it to go on with a new log.")


class RunLog:
    """Rows of ``log.jsonl`` and ``log.csv`` in a folder; a resumed run drops the rows that it will write again."""

    def __init__(self, folder: Path, resume_epoch: int = 0, tensorboard: bool = False) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        path = folder / LOG
        if resume_epoch and path.exists():
            self.rows = [row for row in read_log(path) if row["epoch"] <= resume_epoch]
        self._board = _board(folder) if tensorboard else None

    def write(self, row: dict[str, Any]) -> None:
        """Add the row of an epoch and write all of them."""
        self.rows.append(row)
        lines = "".join(json.dumps(r) + "\n" for r in self.rows)
        write_atomically(self.folder / LOG, lambda part: part.write_text(lines, encoding="utf-8"))
        table = io.StringIO()
        columns = list(dict.fromkeys(key for r in self.rows for key in r))
        writer = csv.DictWriter(table, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / "log.csv", lambda part: part.write_text(table.getvalue(), encoding="utf-8"))
        if self._board is not None:
            for key, value in row.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(key, value, row["epoch"])
            self._board.flush()


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "tensorboard", "The TensorBoard log") from None
    return SummaryWriter(str(folder / "tensorboard"))
