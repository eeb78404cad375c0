"""What the page on reliability promises has tests, and they exist."""

import re
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
    page = promises.PAGE.read_text(encoding="utf-8")
    listed = promises.promises(page)
    assert len(listed) > 70
    for each in listed:
        assert each.tests or each.scripts, each.promise
        for file in [*(file for file, _ in each.tests), *each.scripts]:
            assert file and (ROOT / file).is_file(), f"{each.promise}: {each.tests}"
        for file, name in each.tests:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name or 'test_.*'}\(", text, re.MULTILINE), f"{file}::{name}"
    said = [each.promise for each in listed]
    assert len(said) == len(set(said))  # each has a row of its own
    named = sum(len(re.findall("`[^`]+`", line.rsplit(" | ", 1)[-1])) for line in page.splitlines() if line[:2] == "| ")
    assert named == sum(len(each.tests) + len(each.scripts) for each in listed)  # none is passed over


def test_a_test_that_does_not_exist_is_noticed(promises):
    row = "## A\n| Promise | Fault | Test |\n|---|---|---|\n| a | b | `test_nowhere_at_all`, `tests/test_errors.py` |\n"
    (found,) = promises.promises(row)
    assert found.tests == (("", "test_nowhere_at_all"), ("tests/test_errors.py", "")) and found.section == "A"
