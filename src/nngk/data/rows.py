"""Read tables of paths and labels: a CSV file or a data frame."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data.folder import split_name
from nngk.data.table import ImageTable, quoted
from nngk.errors import InputError

_BOX = ("x_1", "y_1", "x_2", "y_2")


def read_csv(file: Path, *, data_dir: Path | None = None, allow_missing: bool = False) -> ImageTable:
    """Return the table of a file with the columns path, label and, if wanted, split; paths are relative to the file."""
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            # A row's number is its line in the file, as an editor shows it.
            numbered = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is not a CSV file in UTF-8 ({error}): save it as one.") from error
    ragged = [number for number, row in numbered if len(row) != len(header)]
    if ragged:
        raise InputError(
            f"{file} has {len(header)} columns, but not in row(s) {_numbers(ragged)}: quote values that contain "
            f"{delimiter!r}."
        )
    _require_once(header, str(file))
    columns = {name: [row[i].strip() for _, row in numbered] for i, name in enumerate(header)}
    return _table(columns, [n for n, _ in numbered], data_dir or file.parent, str(file), file.stem, allow_missing)


def read_frame(frame: Any, *, data_dir: Path | None = None, allow_missing: bool = False) -> ImageTable:
    """Return the table of a data frame with the columns path, label and, if wanted, split and x_1, x_2, y_1, y_2."""
    _require_once([str(name) for name in frame.columns], "The data frame")
    columns = {str(name): list(frame[name]) for name in frame.columns}
    rows = list(range(len(frame)))
    return _table(columns, rows, data_dir or Path(), "The data frame", "data frame", allow_missing)


def _table(
    columns: Mapping[str, Sequence[Any]],
    numbers: Sequence[int],
    base: Path,
    source: str,
    name: str,
    allow_missing: bool,
) -> ImageTable:
    absent = [column for column in ("path", "label") if column not in columns]
    if absent:
        raise InputError(
            f"{source} has no column named {' and none named '.join(absent)}: expected the columns path, label and, if "
            f"wanted, split; it has {quoted(list(columns), 10) if columns else 'none'}."
        )
    for column in ("path", "label", *(["split"] if "split" in columns else [])):
        empty = [number for number, value in zip(numbers, columns[column]) if _is_empty(value)]
        if empty:
            raise InputError(f"{source} has no {column} in row(s) {_numbers(empty)}: fill it in or remove the rows.")
    paths = [base / str(value) for value in columns["path"]]
    names, labels = classes_of(columns["label"])
    table = ImageTable(paths, labels, names, _splits(columns, numbers, source), _boxes(columns, numbers, source), name)
    return _present(table, numbers, source, allow_missing)


def _require_once(header: Sequence[str], source: str) -> None:
    """Raise InputError if a column that is read is there twice; other columns may be called anything."""
    twice = [name for name in ("path", "label", "split", *_BOX) if header.count(name) > 1]
    if twice:
        raise InputError(f"{source} has {header.count(twice[0])} columns named {twice[0]}: keep one of them.")


def _present(table: ImageTable, numbers: Sequence[int], source: str, allow_missing: bool) -> ImageTable:
    there = np.array([_is_there(path) for path in table.paths], dtype=bool)
    if there.all():
        return table
    if allow_missing:
        return table.select(there)
    gone = np.flatnonzero(~there).tolist()
    raise InputError(
        f"{source} names {len(gone)} image(s) that do not exist, in row(s) {_numbers([numbers[i] for i in gone])}: "
        f"{quoted([table.paths[i] for i in gone], 3)}. Paths are relative to the file's folder; correct them, "
        "remove the rows, or go on without these images with allow_missing (--allow-missing)."
    )


def _is_there(path: Path) -> bool:
    """Return whether there is something of this name; raise PermissionError if that may not be known."""
    try:
        path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return not path.is_dir()


def classes_of(values: Sequence[Any]) -> tuple[list[str], np.ndarray]:
    """Return the class names in order (numbers by value) and each row's label."""
    texts = [_text(value) for value in values]
    names = sorted(set(texts), key=lambda text: (0, int(text), text) if _is_whole(text) else (1, 0, text))
    number = {name: label for label, name in enumerate(names)}
    return names, np.array([number[text] for text in texts], dtype=np.int64)


def _text(value: Any) -> str:
    # A label column of whole numbers with a gap somewhere is floats in a data frame: 3.0 still means class 3.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_whole(text: str) -> bool:
    return re.fullmatch("-?[0-9]+", text) is not None


# A list may say which of its test images ask and which answer; in a folder such names may be those of classes.
_OF_RETRIEVAL = {"query": "test", "gallery": "gallery"}


def _splits(columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], source: str) -> list[str] | None:
    if "split" not in columns:
        return None
    known = [split_name(str(value)) or _OF_RETRIEVAL.get(str(value).strip().lower()) for value in columns["split"]]
    wrong = [i for i, value in enumerate(known) if value is None]
    if wrong:
        raise InputError(
            f"{source} has splits that are not known: {quoted(sorted({str(columns['split'][i]) for i in wrong}))} in "
            f"row(s) {_numbers([numbers[i] for i in wrong])}. A split is train, val (or validation), test (or "
            "query), or gallery."
        )
    return [str(value) for value in known]


def _boxes(columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], source: str) -> np.ndarray | None:
    present = [name for name in _BOX if name in columns]
    if not present:
        return None
    if len(present) < 4:
        raise InputError(f"{source} has some columns of a box ({', '.join(present)}), not all of {', '.join(_BOX)}.")
    boxes = np.full((len(numbers), 4), math.nan, dtype=np.float32)
    for column, name in enumerate(_BOX):
        for row, value in enumerate(columns[name]):
            if _is_empty(value):
                continue
            try:
                boxes[row, column] = _finite(value)
            except (TypeError, ValueError):
                raise InputError(
                    f"{source} has {value!r} for {name} in row {numbers[row]}: a box is four numbers of pixels."
                ) from None
    wrong = (
        np.isnan(boxes).any(1) & ~np.isnan(boxes).all(1) | (boxes[:, 0] >= boxes[:, 2]) | (boxes[:, 1] >= boxes[:, 3])
    )
    if wrong.any():
        raise InputError(
            f"{source} has boxes with a side missing, or with x_1 >= x_2 or y_1 >= y_2, in row(s) "
            f"{_numbers([numbers[i] for i in np.flatnonzero(wrong).tolist()])}: correct them or leave all four empty."
        )
    return None if np.isnan(boxes).all() else boxes


def _finite(value: Any) -> float:
    """Return a value as a number; raise ValueError if it is none, or infinite."""
    number = float(value)
    if not abs(number) < 1e9:
        raise ValueError(number)
    return number


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or value == ""
        or (isinstance(value, float) and math.isnan(value))
        or str(value) in ("<NA>", "NaT")
    )


def _numbers(values: Sequence[int], limit: int = 5) -> str:
    shown = ", ".join(str(value) for value in values[:limit])
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
