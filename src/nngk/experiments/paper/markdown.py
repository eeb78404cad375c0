"""The report as Markdown, for a repository's pages."""

from nngk.experiments.paper.sections import Section, map_name
from nngk.experiments.paper.tables import Cell, Table


def to_markdown(sections: list[Section], figures: str) -> str:
    """Return all sections as Markdown, with links to the figures in the folder ``figures``."""
    lines = [
        "# The paper's experiments",
        "",
        "Figures in per cent, mean ± standard deviation over seeds, with the difference from the published figure in "
        "brackets. Every figure is read from `results/`; the recipes are explained in `docs/recipe.md`. Photos are "
        "squashed into squares, as in the paper. A commit with `+changes` had changes that were not committed.",
        "",
        "| experiment | paper | runs | hours | best |",
        "|---|---|---|---|---|",
    ]
    for s in sections:
        state = s.headline if s.groups else f"not run: `{s.command}`"
        runs, hours = (str(len(s.rows)), f"{s.seconds / 3600:.2f}") if s.groups else ("–", "–")
        lines.append(f"| {s.experiment.title} | {s.experiment.source} | {runs} | {hours} | {state} |")
    for s in sections:
        lines += ["", f"## {s.experiment.title} ({s.experiment.source})", "", s.experiment.about, ""]
        lines += _section(s, figures)
    return "\n".join(lines) + "\n"


def _section(section: Section, figures: str) -> list[str]:
    if not section.groups:
        return [f"Not run. Run it with `{section.command}`."]
    lines = ["**A trial on generated pictures (`--quick`), not a result.**", ""] if section.quick else []
    for name in section.figures:
        lines += [f"![{section.experiment.title}: {name}]({figures}/{name}.svg)", ""]
    for view in section.maps:
        lines += [f"{view.title}: {view.scores}.", ""]
        if view.dots:
            lines += [f"![{view.title}]({figures}/{map_name(view)}.png)", ""]
    for table in section.tables:
        lines += [f"**{table.caption}**", "", *table_lines(table), ""]
    lines += [f"Failed: {failure}" for failure in section.failures]
    commits = ", ".join(f"`{commit}`" for commit in sorted(section.commits))
    count = f"{len(section.rows)} run{'s' if len(section.rows) > 1 else ''}"
    lines.append(f"{count}, {section.seconds / 60:.1f} minutes, commit {commits}.")
    return lines


def table_lines(table: Table) -> list[str]:
    """Return the lines of a Markdown table.

    >>> table_lines(Table("", ["a", "b"], [[Cell("x", number=False), Cell("1", "+2")]], ["best"]))
    ['| a | b |', '|---|--:|', '| x | 1 (+2) |']
    """
    first = table.rows[0] if table.rows else []
    rule = "|" + "|".join("--:" if cell.number else "---" for cell in first) + "|"
    return [
        "| " + " | ".join(table.head) + " |",
        rule,
        *("| " + " | ".join(map(_cell, row)) + " |" for row in table.rows),
    ]


def _cell(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text
