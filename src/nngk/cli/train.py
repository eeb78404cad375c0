"""``nngk train``."""

import json
from pathlib import Path
from typing import Any

import click

from nngk.cli.options import given_settings, json_option, settings_options
from nngk.training.settings import Settings, read_config


@click.command("train", short_help="Train a model.")
@click.argument("data")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("nngk-model"), show_default=True, help="Folder of the model."
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings in a TOML file; options on the command line win."
)
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped in --out.")
@click.option("--force", is_flag=True, help="Replace the model that is in --out.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder of a dataset that DATA names, or of a CSV's paths."
)
@click.option("--boxes/--no-boxes", default=None, help="Crop to the bounding boxes.  [default: as the paper does]")
@click.option("--allow-missing", is_flag=True, help="Go on with an incomplete copy of a dataset.")
@click.option("--skip-small-classes", is_flag=True, help="Leave out classes with a single image.")
@click.option("--tensorboard", is_flag=True, help="Log to TensorBoard as well.")
@click.option(
    "--profile", is_flag=True, help="Write where a step's time goes: a table and a trace, in OUT/run/profile."
)
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
@settings_options
def train_command(
    data: str,
    out: Path,
    config: Path | None,
    resume: bool,
    force: bool,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    skip_small_classes: bool,
    tensorboard: bool,
    profile: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a model on DATA: a folder with a sub-folder a class, a CSV file (path,label[,split]), a pack, or the name
    of a dataset (cub200, cars196, flowers102, leafsnap) with --data-dir.

    \b
    nngk train photos/ --out my-model
    nngk train cub200 --data-dir ~/data --task metric --network googlenet-bvlc --weights FILE
    """
    values = (read_config(config) if config else {}) | given_settings(options)
    settings = Settings.from_dict(values, str(config or "the command line"))

    from nngk import progress
    from nngk.data import read_images
    from nngk.data.table import require_classes
    from nngk.training.loop import train

    progress.quiet = quiet
    table = read_images(
        data, data_dir=data_dir, task=settings.task, seed=settings.seed, allow_missing=allow_missing, crop_boxes=boxes
    )
    if skip_small_classes:
        table = require_classes(table.without_small_classes(2), f"{data} without its small classes")
    model = train(
        table,
        settings,
        out=out,
        resume=resume,
        tensorboard=tensorboard,
        profile=profile,
        force=force,
        named=values,
    )
    if as_json:
        click.echo(json.dumps({"model": str(out), **model.info}))
        return
    click.echo(f"{model} is in {out}.")
    for name, value in model.info.get("test", {}).items():
        click.echo(f"  test {name.replace('_', ' '):<18} {value:7.2%}")
    click.echo(f"Try: nngk classify {out} IMAGE")
