"""The run's log: one row per epoch, as JSON lines and CSV, and to TensorBoard if asked."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from nngk.errors import MissingExtra
from nngk.files import write_atomically


class RunLog:
    """Rows of ``log.jsonl`` and ``log.csv`` in a folder; a resumed run drops the rows it will write again."""

    def __init__(self, folder: Path, resume_epoch: int = 0, tensorboard: bool = False) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        path = folder / "log.jsonl"
        if resume_epoch and path.exists():
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.rows = [row for row in rows if row["epoch"] <= resume_epoch]
        self._board = _board(folder) if tensorboard else None

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        lines = "".join(json.dumps(r) + "\n" for r in self.rows)
        write_atomically(self.folder / "log.jsonl", lambda part: part.write_text(lines, encoding="utf-8"))
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
