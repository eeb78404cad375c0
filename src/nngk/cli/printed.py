"""Answers on standard output, each as soon as it is there: for people, as JSON, or as CSV."""

import csv
import json
import sys
from typing import Any

import click

from nngk.errors import InputError, printable

csv_option = click.option("--csv", "as_csv", is_flag=True, help="Answer in CSV on standard output.")

CLASSIFIED = ("image", "label", "nearest", "probability", "unknown", "is_unknown", "alike", "error")
FOUND = ("image", "rank", "found", "label", "distance", "share", "error")
EVALUATED = ("image", "label", "answer", "nearest", "probability", "unknown", "right")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute


class Printed:
    """What is printed of answers, as a context; JSON is one list, whose rows come one by one."""

    def __init__(self, as_json: bool, as_csv: bool, columns: tuple[str, ...]) -> None:
        if as_json and as_csv:
            raise InputError("Answers are printed as JSON or as CSV: give one of --json and --csv.")
        self.as_json, self.as_csv, self.columns, self.rows = as_json, as_csv, columns, 0

    def put(self, value: dict[str, Any], rows: list[dict[str, Any]], lines: list[str]) -> None:
        """Print one answer: ``value`` in JSON, ``rows`` in CSV, else ``lines``."""
        if self.as_json:
            click.echo(f"{',' if self.rows else '['}\n{json.dumps(value)}", nl=False)
        elif self.as_csv:
            out = csv.DictWriter(sys.stdout, self.columns, extrasaction="ignore", restval="", lineterminator="\n")
            if not self.rows:
                out.writeheader()
            for row in rows:
                out.writerow({key: cell(value) for key, value in row.items()})
        else:
            for line in lines:
                click.echo(printable(line))
        sys.stdout.flush()
        self.rows += 1

    def broken(self, name: str, why: InputError) -> None:
        """Print that an image cannot be read, where programs read the answers; people are told at the end."""
        row = {"image": name, "error": str(why)}
        self.put(row, [row], [])

    def __enter__(self) -> "Printed":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.as_json and (self.rows or kind is None):  # what was begun is closed, also before an error
            click.echo("\n]" if self.rows else "[]")


def cell(value: Any) -> Any:
    """Return a value for a cell: a text is one line, and nothing that a spreadsheet would run.

    >>> cell("=1+1"), cell(-0.5)
    ("'=1+1", -0.5)
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
