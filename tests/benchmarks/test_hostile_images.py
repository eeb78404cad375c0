"""A few kinds of hostile files through two commands: read or refused, quickly, in little memory."""

import csv
from pathlib import Path

import pytest

import forked

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "reliability" / "hostile_images.py"


@pytest.mark.slow
def test_a_few_kinds(tmp_path):
    out = tmp_path / "hostile_images.csv"
    done = forked.run([SCRIPT, "--quick", "--out", out], timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    with out.open(newline="", encoding="utf-8") as file:
        rows = {row["kind"]: row for row in csv.DictReader(file)}
    assert len(rows) == 6 and rows["CMYK JPEG"]["check"] == "read" and rows["named pipe"]["classify"] == "refused"
    assert all(row["classify"] == row["expected"] for row in rows.values())
    assert all(float(row["seconds"]) < 1 and 50 < float(row["peak_mib"]) < 1024 for row in rows.values())
    assert all(row["commit"] and row["command"] and row["machine"] for row in rows.values())


def test_every_kind_has_a_name_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from hostile_files import GROUPS, PHONES, QUICK

    names = [kind.what for group in (GROUPS | {"phones": PHONES}).values() for kind in group]
    assert len(names) == len(set(names)) >= 60 and set(QUICK) <= set(names)
    for page in ("docs/reliability.md", "results/README.md"):
        assert f"{len(names)} kinds" in (SCRIPT.parents[2] / page).read_text(encoding="utf-8")
    assert {kind.outcome for group in GROUPS.values() for kind in group} == {"read", "refused"}
