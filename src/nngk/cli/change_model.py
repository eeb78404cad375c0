"""Commands that change a model: ``add`` and ``remove``."""

import json
from pathlib import Path

import click

from nngk.cli.options import device_option, json_option
from nngk.cli.use_model import image_files, images_argument, model_argument


@click.command("add")
@model_argument
@click.argument("name")
@images_argument
@device_option
@json_option
def add_command(model: Path, name: str, images: tuple[Path, ...], device: str, as_json: bool) -> None:
    """Teach a model the class NAME by showing it IMAGES (files or folders), without training. A class that the model
    knows gets more images."""
    paths = image_files(images)
    from nngk.model.model import Model

    with Model.changing(model, device) as m:
        total = m.add(name, paths)
    if as_json:
        click.echo(json.dumps({"class": name, "added": len(paths), "images": total}))
    else:
        click.echo(f"'{name}' has {total} images now, {len(paths)} of them new.")


@click.command("remove")
@model_argument
@click.argument("name")
@json_option
def remove_command(model: Path, name: str, as_json: bool) -> None:
    """Make a model forget the class NAME."""
    from nngk.model.model import Model

    with Model.changing(model, "cpu") as m:  # nothing is computed
        removed = m.remove(name)
    if as_json:
        click.echo(json.dumps({"class": name, "removed": removed}))
    else:
        click.echo(f"'{name}' and its {removed} images are forgotten; {len(m.class_names)} classes remain.")
