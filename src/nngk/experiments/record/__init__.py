"""One way to run, choose, resume and write a row with its provenance; every experiment and benchmark uses it."""

from nngk.experiments.record.csv_rows import Row, append_rows, read_rows, write_rows
from nngk.experiments.record.provenance import provenance, source_commit
from nngk.experiments.record.runs import attempt, choose_rate, epochs, finished_run, read_log, without_test

__all__ = [
    "Row",
    "append_rows",
    "attempt",
    "choose_rate",
    "epochs",
    "finished_run",
    "provenance",
    "read_log",
    "read_rows",
    "source_commit",
    "without_test",
    "write_rows",
]
