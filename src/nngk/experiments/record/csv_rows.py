"""Rows of results in CSV files that are whole at every moment."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nngk.errors import InputError
from nngk.experiments.record.provenance import COLUMNS
from nngk.files import locked, write_atomically

# The long columns come last, where a person who reads the file does not trip over them.
LAST = (*COLUMNS, "key", "settings", "error")

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a results file; none where there is no file."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a results file ({error}); restore or remove it.") from None


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole results file, atomically; a column that a row does not have stays empty."""
    rows = list(rows)
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    columns.sort(key=lambda column: LAST.index(column) if column in LAST else -1)
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda part: part.write_text(text.getvalue(), encoding="utf-8"))


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a results file, also while other processes add theirs."""
    with locked(path.parent):
        write_rows(path, [*read_rows(path), *rows])


def put_row(path: Path, row: Mapping[str, Any], is_same: Callable[[Row, Row], bool]) -> None:
    """Add a row to a results file, in the place of the older rows that are the same run."""
    fresh = {column: as_text(value) for column, value in row.items()}
    with locked(path.parent):
        rows = read_rows(path)
        same = [place for place, old in enumerate(rows) if is_same(old, fresh)]
        for place in reversed(same[1:]):
            del rows[place]
        if same:
            rows[same[0]] = fresh
        else:
            rows.append(fresh)
        write_rows(path, rows)


def as_text(value: Any) -> str:
    """Return a value as a results file holds it.

    >>> as_text(None), as_text(0.5)
    ('', '0.5')
    """
    return "" if value is None else str(value)
