"""``nngk train``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nngk.cli.given_images import SKIP_BROKEN, STRICT, sure, tolerance_of
from nngk.cli.grouped_help import GroupedCommand, GroupedOption
from nngk.cli.launch import shared_out
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
from nngk.progress import say


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
    help="Go on from this model, its classes and its photos.",
)
@click.option("--resume", is_flag=True, help="Go on with the run that was stopped in --out.")
@click.option("--force", is_flag=True, help="Replace the model that is in --out.")
@seldom(
    "--devices",
    type=click.IntRange(1),
    metavar="N",
    help="Train in N processes of this machine, one for each GPU, or sharing its CPUs. "
    "For several machines, start the same command with torchrun.",
)
@data_dir_option
@boxes_option()
@seldom("--yes", is_flag=True, help="Take a folder as it is, even where its classes seem to lie deeper.")
@click.option("--skip-broken", cls=GroupedOption, is_flag=True, help=SKIP_BROKEN)
@seldom("--strict", is_flag=True, help=STRICT)
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
    devices: int | None,
    data_dir: Path | None,
    boxes: bool | None,
    yes: bool,
    skip_broken: bool,
    strict: bool,
    allow_missing: bool,
    skip_small_classes: bool,
    tensorboard: bool,
    profile: bool,
    as_json: bool,
    preset: str | None,
    config: Path | None,
    **options: Any,
) -> None:
    """Train a model on DATA: a folder with one sub-folder per class, a CSV file (path,label[,split]), a pack, tar or
    Parquet shards, or a dataset (cub200, cars196, flowers102, leafsnap, inshop, sop, inat2018) in --data-dir.

    \b
    nngk train photos/ --out my-model
    nngk train cub200 --data-dir ~/data --task metric --preset best --network resnet50
    """
    chosen = Chosen(preset, config, options)
    settings = chosen.settings()
    if shared_out(devices):
        return

    from nngk.data import read_images
    from nngk.data.table import require_classes
    from nngk.device import pick_device
    from nngk.ranks import speaks
    from nngk.training.loop import train

    tolerance = tolerance_of(strict, skip_broken)
    if data_dir is None and Path(data).is_dir():
        _look_at(Path(data), yes)
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
        tolerance=tolerance,
    )
    if not speaks():
        return
    if as_json:
        click.echo(json.dumps({"model": str(out), **model.info}))
        return
    click.echo(printable(f"{model} is in {out}."))
    for line in _summary(model.info):
        click.echo(line)
    click.echo(printable(f"Try: nngk classify {out} IMAGE"))


def _look_at(folder: Path, yes: bool) -> None:
    """Say what is not read of a folder, and question one that is given by mistake."""
    from nngk.data.datasets.by_name import recognise
    from nngk.data.folder import doubt, overlooked
    from nngk.data.packs.layout import was_pack
    from nngk.data.shards.shard_files import shards_in
    from nngk.files import readable

    with readable():
        if was_pack(folder) or shards_in(folder) or recognise(folder) is not None:
            return
        question = "" if yes else doubt(folder)
        if question:
            sure(question)
        said = overlooked(folder)
    if said:
        say(said)


def _summary(info: dict[str, Any]) -> Iterator[str]:
    """Give what was measured on photos held out, and how many photos the saved model holds."""
    from nngk.model.evaluate import intervals

    parts, last = info["measured"], info.get("last_training")
    if info.get("test"):
        before = ", before the last training" if last else ""
        yield f"Measured{before} on {parts['test']} photos held out, with {parts['training']} trained on:"
    spans = intervals(info.get("test", {}), parts["test"])
    for name, value in info.get("test", {}).items():
        between = f"  (95% interval {spans[name][0]:.1%} to {spans[name][1]:.1%})" if name in spans else ""
        yield f"  test {name.replace('_', ' '):<18} {value:7.2%}{between}"
    if last:
        yield f"The saved model holds all {last['images']} photos, and was trained on them after measuring."
    else:
        yield f"The saved model holds the {parts['training']} training photos."
