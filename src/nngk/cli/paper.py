"""``nngk paper``."""

import json
import shlex
from pathlib import Path

import click

from nngk.cli.options import ALLOW_MISSING, device_option, folder_or_file, json_option, quiet_option
from nngk.errors import InputError, printable
from nngk.training.presets import MEASURED

RESULTS = Path("results")

RESULTS_HELP = "Read the results from this folder."


@click.group("paper")
def paper_command() -> None:
    """Run every table and figure of the paper, and report our results beside the published ones."""


@paper_command.command("list", short_help="List the experiments and how often each was run.")
@click.option("--results", metavar="FOLDER", type=folder_or_file, default=RESULTS, show_default=True, help=RESULTS_HELP)
@json_option
def list_command(results: Path, as_json: bool) -> None:
    """List the experiments by name, with the data and networks that they need and how often each was run."""
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
@click.option(
    "--data",
    metavar="FOLDER",
    type=folder_or_file,
    help="Find the datasets, packs or lists in this folder.  [default: the environment's NNGK_DATA]",
)
@click.option("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@click.option(
    "--weights",
    metavar="FOLDER|imagenet",
    help="Find files of weights in this folder, or download them.  [default: the environment's NNGK_WEIGHTS]",
)
@click.option(
    "--preset",
    type=click.Choice([*MEASURED, "both"]),
    default="both",
    show_default=True,
    help="Use the paper's settings, our own recipe, our recipe on a frozen network (for a CPU), or paper and best.",
)
@click.option("--seeds", metavar="N", default=3, show_default=True, help="Run each trial with this many seeds.")
@click.option("--quick", is_flag=True, help="Try the path only, with generated pictures and a tiny network.")
@click.option("--network", metavar="NAME", help="Use this network in experiments that have a single one.")
@click.option(
    "--only",
    multiple=True,
    metavar="COLUMN=VALUES",
    help="Run only the trials with these values, such as dim=64,1024 or dataset=flowers102.",
)
@click.option(
    "--results", metavar="FOLDER", type=folder_or_file, help="Write the rows to this folder.  [default: results]"
)
@click.option(
    "--work",
    metavar="FOLDER",
    type=folder_or_file,
    help="Keep runs and decoded images in this folder.  [default: runs/paper]",
)
@device_option
@click.option("--commit", metavar="HASH", help="Record this commit of the source where git cannot be asked.")
@quiet_option
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
    allow_missing: bool,
    as_json: bool,
) -> None:
    """Run the experiments NAMES ('all' for all) and write one row per run to results/NAME.csv.

    Finished runs are not repeated, interrupted ones go on, and trials without data or weights are left out and named.

    \b
    nngk paper run birds-metric --data datasets --weights weights --preset best --only dim=64
    """
    from nngk.experiments.paper.runner import results_folder, run_experiments

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
        allow_missing=allow_missing,
    )
    failed = [row for row in rows if row.get("error")]
    if as_json:
        click.echo(json.dumps(rows))
    else:
        where = shlex.quote(str(results_folder(results, quick)))
        told = f"{len(rows)} runs, {len(failed)} of them failed. See them with: nngk paper report --results {where}"
        click.echo(printable(told))
    if failed and len(failed) == len(rows):
        raise InputError(f"Every run failed: {failed[0]['error']}")


@paper_command.command("report", short_help="Write the report from the results.")
@click.option("--results", metavar="FOLDER", type=folder_or_file, default=RESULTS, show_default=True, help=RESULTS_HELP)
@click.option(
    "--out",
    metavar="FILE",
    type=folder_or_file,
    default=Path("report.html"),
    show_default=True,
    help="Write the page to this file.",
)
@quiet_option
def report_command(results: Path, out: Path) -> None:
    """Write one HTML page with everything in it, and the same in Markdown with its figures in a folder beside it."""
    from nngk.experiments.paper.report import write_report

    for path in write_report(results, out):
        click.echo(printable(path))


def parse_only(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the columns and values of ``--only``.

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
