"""Does every promise of docs/reliability.md hold? Injects the faults of each one, as its tests do, and counts them.

    python benchmarks/reliability/promises.py [--slow]

One row per promise: how many faults were injected, and how many tests failed, ran out of time (`hangs`) or ended in an
exception of their own (`errors`). Whether a test failed because something was lost or because something was wrong is
not told apart: it counts as both. A test that does not count its faults injects one.
Rows: results/faults.csv.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nngk.experiments.record import provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.experiments.record.csv_rows import put_row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
COUNTS = ("injected", "lost", "wrong", "hangs", "errors")


@dataclass(frozen=True)
class Promise:
    """A line of the page: what is promised, the fault, and the tests as (file, name); all of a file: no name."""

    section: str
    promise: str
    fault: str
    tests: tuple[tuple[str, str], ...]
    scripts: tuple[str, ...]


def promises(page: str) -> list[Promise]:
    """Return the promises of a page. A name without a file is of a file that its section has named, or of the only one
    that has it; a name that no file has keeps an empty one."""
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    found, section, named = [], "", []
    for line in page.splitlines():
        if line.startswith("## "):
            section, named = line[3:], []
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "Promise":
            continue
        tests = []
        for file, name in re.findall(r"`(tests/(?:\w+/)*test_\w+\.py)?(?:::)?(test_\w+)?`", cells[2]):
            if not file and not name:
                continue
            named += [file] if file else []
            near = [each for each in homes.get(name, []) if each in named]
            only = homes.get(name, []) if len(homes.get(name, [])) == 1 else []
            tests.append((file or (near or only or [""])[-1], name))
        scripts = re.findall(r"`((?:benchmarks|tests)/(?:\w+/)*(?!test_)\w+\.(?:py|sh))`", cells[2])
        found.append(Promise(section, cells[0], cells[1], tuple(tests), tuple(scripts)))
    return found


def ran(tests: list[str], slow: bool = False) -> dict[tuple[str, str], Counter[str]]:
    """Run tests and return what each function of each file counted."""
    with tempfile.TemporaryDirectory() as home:
        report = Path(home, "report.xml")
        line = [sys.executable, "-m", "pytest", "-n", "0", "--timeout", "900", f"--junitxml={report}", *tests]
        line += ["-m", "slow or not slow"] if slow else []
        subprocess.run(line, cwd=ROOT, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        counts: dict[tuple[str, str], Counter[str]] = {}
        for case in ET.parse(report).iter("testcase"):
            file = case.get("classname", "").replace(".", "/") + ".py"
            row = counts.setdefault((file, case.get("name", "").split("[")[0]), Counter())
            if case.find("skipped") is not None:
                continue
            given = [int(each.get("value", 1)) for each in case.iter("property") if each.get("name") == "injected"]
            row["injected"] += sum(given) or 1
            failure = next((each for each in (case.find("failure"), case.find("error")) if each is not None), None)
            if failure is not None:
                said = failure.get("message", "")
                kind = "hangs" if "Timeout" in said else "wrong" if "AssertionError" in said else "errors"
                row[kind] += 1
                row["lost"] += kind == "wrong"
    return counts


def main() -> None:
    parser = benchmark_parser(__doc__, "results/faults.csv")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="Promises whose text has one of these.")
    parser.add_argument("--slow", action="store_true", help="Also those whose tests take minutes.")
    options = benchmark_options(parser)
    listed = promises(PAGE.read_text(encoding="utf-8"))
    listed = [each for each in listed if any(word in f"{each.section}: {each.promise}" for word in options.only)]
    if options.quick:
        listed = [each for each in listed if ("tests/test_errors.py", "") in each.tests]
    source = provenance("cpu", options.commit)  # before the tests: the tree may change while they run
    ids = {file if not name else f"{file}::{name}" for each in listed for file, name in each.tests}
    counts, failed = ran(sorted(ids), options.slow), 0
    for each in listed:
        of_file = [key for key in counts for file, name in each.tests if file == key[0] and name in ("", key[1])]
        total = sum((counts[key] for key in set(of_file)), Counter())
        if not total["injected"]:
            continue  # left to a script of its own, or skipped here
        row = {"fault": f"{each.section}: {each.fault}", **{name: total[name] for name in COUNTS}}
        row["promise"] = each.promise
        print("  ".join(f"{key} {value}" for key, value in row.items()))
        put_row(options.out, row | source, lambda old, new: old.get("promise") == new["promise"])
        failed += total["wrong"] + total["hangs"] + total["errors"]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
