"""Rows are added to files of any age, also by several processes at once, and none is lost."""

import shutil
from pathlib import Path

import pytest

import forked
from nngk.errors import InputError
from nngk.experiments.record import append_rows, provenance, read_rows
from nngk.experiments.record.csv_rows import put_row

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from nngk.experiments.record.csv_rows import append_rows
for number in range(20):
    append_rows(Path(sys.argv[1]), [{"who": sys.argv[2], "number": number}])
"""


@pytest.mark.parametrize("name", ["networks.csv", "gpu_loss.csv", "search.csv", "recipes.csv", "birds-metric.csv"])
def test_a_published_file_is_appended_to_without_a_loss(tmp_path, name):
    path = tmp_path / name
    shutil.copy(ROOT / "results" / name, path)
    before = read_rows(path)
    append_rows(path, [provenance(commit="abc+changes") | {"a new column": 1}])
    *old, new = read_rows(path)
    assert [{column: row[column] for column in before[0]} for row in old] == before
    assert new["a new column"] == "1" and new["commit"] == "abc+changes"
    assert {row["a new column"] for row in old} == {""}


def test_long_columns_come_last(tmp_path):
    append_rows(tmp_path / "x.csv", [{"error": "", **provenance(), "score": 1}])
    header = (tmp_path / "x.csv").read_text().splitlines()[0].split(",")
    assert header[0] == "score" and header[-1] == "error"


@pytest.mark.thorough
def test_processes_side_by_side_lose_no_row(tmp_path):
    path = tmp_path / "x.csv"
    both = [forked.Started(["-c", PROGRAM, path, who]) for who in ("a", "b")]
    assert [process.wait().returncode for process in both] == [0, 0]
    assert sorted((row["who"], int(row["number"])) for row in read_rows(path)) == [
        (w, n) for w in "ab" for n in range(20)
    ]


def test_a_run_that_is_repeated_takes_the_place_of_its_row(tmp_path):
    path = tmp_path / "x.csv"
    append_rows(path, [{"run": "a", "score": 1}, {"run": "b", "score": 2}, {"run": "a", "score": 3}])
    put_row(path, {"run": "a", "score": None}, lambda old, new: old["run"] == new["run"])
    assert read_rows(path) == [{"run": "a", "score": ""}, {"run": "b", "score": "2"}]


def test_a_file_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="cannot be read as a results file"):
        append_rows(tmp_path / "x.csv", [{"a": 1}])
    assert (tmp_path / "x.csv").read_bytes() == b"a,b\n\xff\xfe,1\n"
