"""``nngk compare``."""

import json
from pathlib import Path
from typing import Any

import click

from nngk.cli.grouped_help import GroupedCommand
from nngk.cli.options import (
    ALLOW_MISSING,
    boxes_option,
    data_dir_option,
    folder_or_file,
    json_option,
    quiet_option,
    seldom,
)
from nngk.cli.settings_options import Chosen, settings_options
from nngk.errors import InputError, printable


@click.command("compare", cls=GroupedCommand)
@click.argument("data")
@click.option(
    "--losses",
    metavar="NAME,NAME,…",
    required=True,
    help="Compare these of 'nngk losses', or all.",
)
@click.option("--seeds", metavar="N", default=3, show_default=True, help="Train each loss with this many seeds.")
@click.option("--rates", metavar="NUMBER,…", help="Choose each loss's rate from these by validation.")
@click.option(
    "--folds",
    metavar="N",
    type=int,
    help="Choose on folds of classes; widen the list of rates.",
)
@seldom(
    "--starts",
    metavar="NAME,…",
    help="With --folds, compare these starts of the embedding layer.  [default: discriminant,random]",
)
@seldom(
    "--own",
    metavar="FILE",
    type=folder_or_file,
    help="With --folds, also train losses with the settings of their papers: a TOML file, one table per loss.",
)
@click.option(
    "--out", metavar="FOLDER", type=folder_or_file, required=True, help="Write the runs and the report to this folder."
)
@data_dir_option
@boxes_option()
@seldom("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@quiet_option
@json_option
@settings_options(without=["hold_out", "tune"], task="metric")
def compare_command(
    data: str,
    losses: str,
    seeds: int,
    rates: str | None,
    folds: int | None,
    starts: str | None,
    own: Path | None,
    out: Path,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    as_json: bool,
    preset: str | None,
    config: Path | None,
    **options: Any,
) -> None:
    """Train several losses on DATA with the same split, network, augmentation and budget. The epoch is chosen by
    validation, and the test part is scored at the end of each run. A stopped comparison goes on. With --folds all
    are searched for alike.

    \b
    nngk compare photos/ --losses nngk,softmax,proxy-anchor --seeds 3 --dim 64 --out comparison
    """
    chosen = Chosen(preset, config, options, task="metric")
    settings = chosen.settings()

    from nngk.data import read_images
    from nngk.device import pick_device
    from nngk.experiments.compare.comparison import compare
    from nngk.experiments.compare.fair import fair_comparison, own_settings
    from nngk.losses import LOSSES

    table = read_images(
        data, data_dir=data_dir, task=settings.task, seed=settings.seed, allow_missing=allow_missing, crop_boxes=boxes
    )
    names = list(LOSSES) if losses == "all" else [name.strip() for name in losses.split(",") if name.strip()]
    shared = chosen.settings(len(table.class_names), pick_device(settings.device).type == "cuda")
    if folds is None:
        if starts or own:
            raise InputError("--starts and --own belong to a comparison on folds of validation classes: give --folds.")
        rows = compare(table, names, shared, out=out, seeds=seeds, rates=_rates(rates))
    else:
        how: dict[str, Any] = {"rates": _rates(rates)} if rates else {}
        how |= {"starts": [name.strip() for name in starts.split(",")]} if starts else {}
        how |= {"own": own_settings(own)} if own else {}
        rows = fair_comparison(table, names, shared, out=out, seeds=seeds, folds=folds, **how)
    if as_json:
        click.echo(json.dumps({"report": str(out / "comparison.md"), "runs": rows}))
    else:
        for line in (out / "comparison.md").read_text(encoding="utf-8").split("\n"):
            click.echo(printable(line))
    failed = [row for row in rows if "error" in row]
    if failed and len(failed) == len(rows):
        raise InputError(f"Every run failed: {failed[0]['error']}")


def _rates(text: str | None) -> list[float]:
    try:
        values = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--rates expects numbers separated by commas, such as 1e-5,1e-4; got '{text}'.") from None
    if any(value <= 0 for value in values):
        raise InputError(f"--rates expects numbers above 0; got '{text}'.")
    return values
