"""The faults that need several processes and luck, a few of each: nothing is lost, nothing wrong, nothing hangs."""

import csv
from pathlib import Path

import pytest

import forked

FOLDER = Path(__file__).parents[2] / "benchmarks" / "reliability"


@pytest.mark.thorough
@pytest.mark.parametrize(("script", "injected"), [("faults.py", [2, 3, 60]), ("pack_faults.py", [5, 12])])
def test_a_few_of_each(tmp_path, script, injected):
    out = tmp_path / "faults.csv"
    done = forked.run([FOLDER / script, "--quick", "--out", out], timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["injected"]) for row in rows] == injected and rows[0].get("reads") in (None, "10")
    assert all(int(row.get(name) or 0) == 0 for row in rows for name in ("lost", "wrong", "hangs", "errors"))
    assert all(row["commit"] and row["command"] and row["machine"] for row in rows)
