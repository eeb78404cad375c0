"""Print the rows of a promise as a table in Markdown: mean and standard deviation over seeds, by method and dataset.

    python benchmarks/promise/tables.py results/promise_unknown.csv auroc
    python benchmarks/promise/tables.py results/promise_incremental.csv harmonic --where protocol=sessions --by session

The last column is the mean over what the other columns show.
"""

import argparse
from pathlib import Path
from statistics import mean, pstdev

from nngk.experiments.record import read_rows


def table(rows: list[dict[str, str]], value: str, by: str) -> str:
    """Return the table of one value, in per cent; rows without it do not count."""
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row[value] != "":
            cells.setdefault((row["method"], row[by]), []).append(100 * float(row[value]))
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    lines = [f"| {' | '.join(['method', *columns, 'mean'])} |", "|---" * (len(columns) + 2) + "|"]
    for method in methods:
        here = [cells.get((method, column), []) for column in columns]
        told = [f"{mean(values):.1f} ± {pstdev(values):.1f}" if values else "" for values in here]
        overall = mean(mean(values) for values in here if values)
        lines.append(f"| {' | '.join([method, *told, f'{overall:.1f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("value", help="The column to show.")
    parser.add_argument("--by", default="dataset", help="The column whose values are the table's columns.")
    parser.add_argument("--where", nargs="*", default=[], metavar="COLUMN=VALUE", help="Show these rows alone.")
    given = parser.parse_args()
    wanted = dict(condition.split("=", 1) for condition in given.where)
    kept = [row for row in read_rows(given.rows) if all(row[name] == text for name, text in wanted.items())]
    print(table(kept, given.value, given.by))


if __name__ == "__main__":
    main()
