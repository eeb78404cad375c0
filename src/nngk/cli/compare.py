"""``nngk compare``."""

import json
from pathlib import Path
from typing import Any

import click

from nngk.cli.options import given_settings, json_option, settings_options
from nngk.errors import InputError
from nngk.training.settings import Settings, read_config


@click.command("compare", short_help="Train several losses under one protocol and compare them.")
@click.argument("data")
@click.option("--losses", required=True, help="Names from 'nngk losses', with commas between, or 'all'.")
@click.option("--seeds", default=3, show_default=True, help="Runs of each loss, with as many seeds.")
@click.option("--rates", help="Learning rates, with commas between: each loss gets the one that validates best.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the runs and the report.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings in a TOML file; options on the command line win."
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of a dataset that DATA names.")
@click.option("--boxes/--no-boxes", default=None, help="Crop to the bounding boxes.  [default: as the paper does]")
@click.option("--allow-missing", is_flag=True, help="Go on with an incomplete copy of a dataset.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
@settings_options
def compare_command(
    data: str,
    losses: str,
    seeds: int,
    rates: str | None,
    out: Path,
    config: Path | None,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train LOSSES on DATA with the same split, network, augmentation and budget, choose each epoch by validation, look
    at the test part once a run, and write runs.csv, comparison.md and comparison.png. Called again with the same --out,
    a comparison that was cut goes on where it was.

    \b
    nngk compare photos/ --losses nngk,softmax,proxy-anchor --seeds 3 --dim 64 --out comparison
    """
    values = {"task": "metric"} | (read_config(config) if config else {}) | given_settings(options)
    settings = Settings.from_dict(values, str(config or "the command line"))

    from nngk import progress
    from nngk.data import read_images
    from nngk.experiments.compare.comparison import compare
    from nngk.losses import LOSSES

    progress.quiet = quiet
    table = read_images(
        data, data_dir=data_dir, task=settings.task, seed=settings.seed, allow_missing=allow_missing, crop_boxes=boxes
    )
    names = list(LOSSES) if losses == "all" else [name.strip() for name in losses.split(",") if name.strip()]
    rows = compare(table, names, settings, out=out, seeds=seeds, rates=_rates(rates))
    if as_json:
        click.echo(json.dumps({"report": str(out / "comparison.md"), "runs": rows}))
    else:
        click.echo((out / "comparison.md").read_text(encoding="utf-8"))
    failed = [row for row in rows if "error" in row]
    if failed and len(failed) == len(rows):
        raise InputError(f"Every run failed: {failed[0]['error']}")


def _rates(text: str | None) -> list[float]:
    try:
        values = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--rates expects numbers with commas between, such as 1e-5,1e-4; got '{text}'.") from None
    if any(value <= 0 for value in values):
        raise InputError(f"Learning rates are above 0; got '{text}'.")
    return values
