"""One page with everything: the paper's tables and figures, with ours beside them."""

from importlib.resources import files
from pathlib import Path

from nngk.errors import InputError, MissingExtra
from nngk.experiments.paper.contents import EXPERIMENTS
from nngk.experiments.paper.markdown import to_markdown
from nngk.experiments.paper.sections import Section, build_section, latest_commits, map_name, total_seconds
from nngk.experiments.paper.tables import PRESET_NAMES
from nngk.experiments.paper.unseen_map import LARGE_TILE
from nngk.experiments.record.provenance import short_commit
from nngk.files import write_atomically


def write_report(results: Path, out: Path) -> list[Path]:
    """Write the page ``out``, the same in Markdown beside it, and its figures; return the paths that were written."""
    if out.suffix != ".html":
        raise InputError(f"The report is an HTML file: give --out a name that ends in .html, not '{out.name}'.")
    if not results.is_dir():
        raise InputError(f"There is no folder {results} with results: run 'nngk paper run NAME' first.")
    sections = [build_section(experiment, results) for experiment in EXPERIMENTS]
    figures = out.with_name(f"{out.stem}-figures")
    written = [out, out.with_suffix(".md")]
    page = _page(sections)
    write_atomically(out, lambda part: part.write_text(page, encoding="utf-8"))
    text = to_markdown(sections, figures.name)
    write_atomically(written[1], lambda part: part.write_text(text, encoding="utf-8"))
    for section in sections:
        content = {f"{name}.svg": svg.encode() for name, svg in section.figures.items()}
        content |= {f"{map_name(m)}.png": m.dots for m in section.maps if m.dots}
        for name, data in content.items():
            write_atomically(figures / name, lambda part, data=data: part.write_bytes(data))  # type: ignore[misc]
            written.append(figures / name)
    return written


def _page(sections: list[Section]) -> str:
    try:
        from jinja2 import Environment
    except ImportError:
        raise MissingExtra("jinja2", "demo", "The report") from None
    template = files("nngk.experiments.paper").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # A run that two experiments share is one run.
    rows = list({(row["key"], row["seed"]): row for section in sections for row in section.rows}.values())
    return environment.from_string(template).render(
        sections=sections,
        rows=rows,
        commits=latest_commits(rows),
        short_commit=short_commit,
        devices=sorted({row["device"] for row in rows if row.get("device")}),
        hours=total_seconds(rows) / 3600,
        quick=any(section.quick for section in sections),
        preset_names=PRESET_NAMES,
        tile=LARGE_TILE,
    )
