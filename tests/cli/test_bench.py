"""``nngk bench search`` through a real process."""

import json

import pytest

from shapes import nngk


@pytest.mark.thorough
def test_bench_search(tmp_path):
    words = ["bench", "search", "--n", 400, "--dim", 8, "--k", 5, "--threads", 1, "--out", tmp_path, "--json"]
    done = nngk(*words, "--peers", "exact,fanng")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) and (tmp_path / "search.csv").exists()
    wrong = nngk(*words, "--peers", "nothing")
    assert wrong.returncode == 1 and "Error: " in wrong.stderr and "Traceback" not in wrong.stderr
