"""``nngk paper``."""

import json
import shlex
from pathlib import Path

import click

from nngk.cli.options import json_option
from nngk.errors import InputError


@click.group("paper", short_help="Run the paper's tables and figures, and write the report.")
def paper_command() -> None:
    """Every table and figure of the paper from one command, ours beside the published ones."""


@paper_command.command("list", short_help="The experiments, and what has been run of them.")
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def list_command(results: Path, as_json: bool) -> None:
    """The experiments by name."""
    from nngk.experiments.paper.contents import EXPERIMENTS
    from nngk.experiments.record import read_rows

    found = [
        {
            "name": e.name,
            "source": e.source,
            "title": e.title,
            "runs": len(read_rows(results / f"{e.name}.csv")),
            "datasets": list(dict.fromkeys(t.dataset for t in e.trials("best"))),
            "networks": list(dict.fromkeys(t.network for t in e.trials("best"))),
        }
        for e in EXPERIMENTS
    ]
    if as_json:
        click.echo(json.dumps(found))
        return
    for row in found:
        done = f"{row['runs']} runs" if row["runs"] else "not run"
        needs = f"{', '.join(row['datasets'])}; {', '.join(row['networks'])}"  # type: ignore[arg-type]
        click.echo(f"{row['name']:<20} {row['source']:<29} {done:<9} {row['title']} ({needs})")


@paper_command.command("run", short_help="Run experiments by name.")
@click.argument("names", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of the datasets or packs.  [default: NNGK_DATA]")
@click.option("--weights", help="Folder of weights files, or 'imagenet' to download.  [default: NNGK_WEIGHTS]")
@click.option(
    "--preset",
    type=click.Choice(["paper", "best", "both", "frozen"]),
    default="both",
    show_default=True,
    help="The paper's settings, our recipe, or our recipe on a network that is not trained: for a CPU.",
)
@click.option("--seeds", default=3, show_default=True, help="Runs of each trial.")
@click.option("--quick", is_flag=True, help="Generated pictures and a tiny network: the path, not the figures.")
@click.option("--network", help="Take this network where an experiment has a single one.")
@click.option("--only", multiple=True, metavar="COLUMN=VALUES", help="Such as dim=64,1024 or dataset=flowers102.")
@click.option("--results", type=click.Path(path_type=Path), help="Folder of the rows.  [default: results]")
@click.option(
    "--work", type=click.Path(path_type=Path), help="Folder of runs and decoded images.  [default: runs/paper]"
)
@click.option("--device", default="auto", show_default=True, help="cpu or cuda; auto: a GPU if there is one.")
@click.option("--commit", help="The source's commit to record, where git is not there to ask.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
def run_command(
    names: tuple[str, ...],
    data: Path | None,
    weights: str | None,
    preset: str,
    seeds: int,
    quick: bool,
    network: str | None,
    only: tuple[str, ...],
    results: Path | None,
    work: Path | None,
    device: str,
    commit: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the experiments NAMES ('all' for all) and write a row for every run to results/NAME.csv.

    What is finished is not run again, what was cut goes on, what has no data or weights is left out with a sentence.

    \b
    nngk paper run birds-metric --data datasets --weights weights --preset best --only dim=64
    """
    from nngk import progress
    from nngk.experiments.paper.runner import results_folder, run_experiments

    progress.quiet = quiet
    rows = run_experiments(
        "all" if names == ("all",) else names,
        data=data,
        weights=weights,
        preset=preset,
        seeds=seeds,
        quick=quick,
        network=network,
        only=parse_only(only),
        results=results,
        work=work,
        device=device,
        commit=commit,
    )
    failed = [row for row in rows if row.get("error")]
    if as_json:
        click.echo(json.dumps(rows))
    else:
        where = shlex.quote(str(results_folder(results, quick)))
        click.echo(
            f"{len(rows)} runs, {len(failed)} of them failed. See them with: nngk paper report --results {where}"
        )
    if failed and len(failed) == len(rows):
        raise InputError(f"Every run failed: {failed[0]['error']}")


@paper_command.command("report", short_help="Write the report from the results.")
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.option("--quiet", is_flag=True, help="No progress.")
def report_command(results: Path, out: Path, quiet: bool) -> None:
    """One HTML page with all in it, and the same in Markdown with its figures in a folder beside it."""
    from nngk import progress
    from nngk.experiments.paper.report import write_report

    progress.quiet = quiet
    for path in write_report(results, out):
        click.echo(path)


def parse_only(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Columns and values of ``--only``.

    >>> parse_only(("dim=64,128", "loss=nngk"))
    {'dim': ['64', '128'], 'loss': ['nngk']}
    """
    out: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise InputError(f"--only expects COLUMN=VALUES such as dim=64,1024; got '{text}'.")
        # A variant may have a comma in its name, so it is not taken apart.
        apart = values.split(",") if name != "variant" else [values]
        out.setdefault(name, []).extend(apart)
    return out
