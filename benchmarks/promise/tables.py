"""Print the rows of a promise as a table in Markdown: mean and standard deviation over seeds, by method and dataset.

    python benchmarks/promise/tables.py results/promise_unknown.csv auroc
    python benchmarks/promise/tables.py results/promise_incremental.csv harmonic --where protocol=sessions --by session
    python benchmarks/promise/tables.py --page docs/promise.md

The last column is the mean over what the other columns show. Below the table stands how ours compares with each other
method: by how much it is ahead in the mean, and where it is behind by more than the other's standard deviation. With
--page every table of a page is written anew; a comment above it, <!-- rows.csv value --where … -->, says which it is.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from nngk.experiments.record import read_rows

OURS = ("kernels", "ours")  # what our method is called in rows
MARKED = re.compile(r"(<!-- (results/\S+\.csv .*?) -->\n).*?(<!-- end -->)", re.DOTALL)
Cells = dict[tuple[str, str], list[float]]  # by method and column, a value per seed, in per cent


def cells_of(rows: list[dict[str, str]], value: str, by: str) -> Cells:
    """Return the values of each method and column; rows without one do not count."""
    cells: Cells = {}
    for row in rows:
        if row[value] != "":
            cells.setdefault((row["method"], row[by]), []).append(100 * float(row[value]))
    return cells


def table(rows: list[dict[str, str]], value: str, by: str) -> str:
    """Return the table of one value."""
    cells = cells_of(rows, value, by)
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    lines = [f"| {' | '.join(['method', *columns, 'mean'])} |", "|---" * (len(columns) + 2) + "|"]
    for method in methods:
        here = [cells.get((method, column), []) for column in columns]
        told = [_told(values) for values in here]
        overall = mean(mean(values) for values in here if values)
        lines.append(f"| {' | '.join([method, *told, f'{overall:.1f}'])} |")
    return "\n".join(lines)


def _told(values: list[float]) -> str:
    """Return the mean, with the deviation where there are several seeds."""
    return f"{mean(values):.1f}" + (f" ± {_deviation(values):.1f}" if len(values) > 1 else "") if values else ""


def _deviation(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def comparison(rows: list[dict[str, str]], value: str, by: str) -> str:
    """Return how ours compares with each other method, over the columns that both have."""
    cells = cells_of(rows, value, by)
    ours = next((method for method, _ in cells if method in OURS), None)
    lines = []
    for other in dict.fromkeys(method for method, _ in cells if method != ours):
        both = [column for method, column in cells if method == other and (ours, column) in cells]
        if ours is None or not both:
            continue
        gaps = {c: mean(cells[ours, c]) - mean(cells[other, c]) for c in both}
        behind = [f"{c} by {-gap:.1f}" for c, gap in gaps.items() if -gap > _deviation(cells[other, c])]
        lead = mean(gaps.values())
        said = f"{'ahead of' if lead > 0 else 'behind'} {other} by {abs(lead):.1f} in the mean"
        lines.append(f"- {said}{'; behind on ' + ', '.join(behind) if behind else ''}")
    return "\n".join(lines)


def described(words: Sequence[str]) -> str:
    """Return the table and the comparison that the words of a command line ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("value", help="The column to show.")
    parser.add_argument("--by", default="dataset", help="The column whose values are the table's columns.")
    parser.add_argument("--where", nargs="*", default=[], metavar="COLUMN=VALUE", help="Show these rows alone.")
    given = parser.parse_args(words)
    wanted = dict(condition.split("=", 1) for condition in given.where)
    kept = [row for row in read_rows(given.rows) if all(row[name] == text for name, text in wanted.items())]
    return f"{table(kept, given.value, given.by)}\n\n{comparison(kept, given.value, given.by)}"


def renewed(page: str) -> str:
    """Return a page with every marked table written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{described(shlex.split(found[2]))}\n\n{found[3]}", page)


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--page"]:
        for page in map(Path, words[1:]):
            page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(described(words))


if __name__ == "__main__":
    main(sys.argv[1:])
