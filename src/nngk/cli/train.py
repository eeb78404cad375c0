"""``nngk train``."""

import json
from collections.abc import Iterator
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
from nngk.errors import printable


@click.command("train", cls=GroupedCommand)
@click.argument("data")
@click.option(
    "--out",
    metavar="FOLDER",
    type=folder_or_file,
    default=Path("nngk-model"),
    show_default=True,
    help="Write the model to this folder.",
)
@click.option(
    "--from",
    "start",
    metavar="MODEL",
    type=folder_or_file,
    help="Go on from this model, with its network, its classes and its photos.",
)
@click.option("--resume", is_flag=True, help="Go on with the run that was stopped in --out.")
@click.option("--force", is_flag=True, help="Replace the model that is in --out.")
@data_dir_option
@boxes_option()
@seldom("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@seldom("--skip-small-classes", is_flag=True, help="Leave out classes that have a single image.")
@seldom("--tensorboard", is_flag=True, help="Write the log for TensorBoard as well.")
@seldom("--profile", is_flag=True, help="Write a table and a trace of where the time goes to OUT/run/profile.")
@quiet_option
@json_option
@settings_options()
def train_command(
    data: str,
    out: Path,
    start: Path | None,
    resume: bool,
    force: bool,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    skip_small_classes: bool,
    tensorboard: bool,
    profile: bool,
    as_json: bool,
    preset: str | None,
    config: Path | None,
    **options: Any,
) -> None:
    """Train a model on DATA: a folder with one sub-folder per class, a CSV file (path,label[,split]), a pack, or the
    name of a dataset (cub200, cars196, flowers102, leafsnap) with --data-dir.

    \b
    nngk train photos/ --out my-model
    nngk train cub200 --data-dir ~/data --task metric --preset best --network resnet50
    """
    chosen = Chosen(preset, config, options)
    settings = chosen.settings()

    from nngk.data import read_images
    from nngk.data.table import require_classes
    from nngk.device import pick_device
    from nngk.training.loop import train

    table = read_images(
        data, data_dir=data_dir, task=settings.task, seed=settings.seed, allow_missing=allow_missing, crop_boxes=boxes
    )
    if skip_small_classes:
        table = require_classes(table.without_small_classes(2), f"{data} without its small classes")
    gpu = pick_device(settings.device).type == "cuda"
    model = train(
        table,
        chosen.settings(len(table.class_names), gpu),
        out=out,
        resume=resume,
        tensorboard=tensorboard,
        profile=profile,
        force=force,
        named=chosen.named if start is None or preset is None else list(chosen.values),
        start=start,
        allow_missing=allow_missing,
    )
    if as_json:
        click.echo(json.dumps({"model": str(out), **model.info}))
        return
    click.echo(printable(f"{model} is in {out}."))
    for line in _summary(model.info):
        click.echo(line)
    click.echo(printable(f"Try: nngk classify {out} IMAGE"))


def _summary(info: dict[str, Any]) -> Iterator[str]:
    """Give what was measured on photos held out, and how many photos the saved model holds."""
    parts, last = info["measured"], info.get("last_training")
    if info.get("test"):
        before = ", before the last training" if last else ""
        yield f"Measured{before} on {parts['test']} photos held out, with {parts['training']} trained on:"
    for name, value in info.get("test", {}).items():
        yield f"  test {name.replace('_', ' '):<18} {value:7.2%}"
    if last:
        yield f"The saved model holds all {last['images']} photos, and was trained on them after measuring."
    else:
        yield f"The saved model holds the {parts['training']} training photos."
