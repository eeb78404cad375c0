"""What the page on reliability promises has tests, and they exist."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def promises():
    sys.path.insert(0, str(ROOT / "benchmarks" / "reliability"))
    try:
        import promises

        yield promises
    finally:
        sys.path.remove(str(ROOT / "benchmarks" / "reliability"))


def test_every_promise_has_a_test_that_exists(promises):
    listed = promises.promises(promises.PAGE.read_text(encoding="utf-8"))
    assert len(listed) > 50
    for each in listed:
        assert each.tests or each.scripts, each.promise
        for file in [*(file for file, _ in each.tests), *each.scripts]:
            assert file and (ROOT / file).is_file(), f"{each.promise}: {each.tests}"
        for file, name in each.tests:
            assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_a_test_that_does_not_exist_is_noticed(promises):
    row = "## A\n| Promise | Fault | Test |\n|---|---|---|\n| a | b | `test_nowhere_at_all`, `tests/test_errors.py` |\n"
    (found,) = promises.promises(row)
    assert found.tests == (("", "test_nowhere_at_all"), ("tests/test_errors.py", "")) and found.section == "A"
