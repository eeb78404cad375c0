"""The command that fills a gallery: ``embed``."""

import json
from contextlib import nullcontext
from pathlib import Path

import click

from nngk.cli.launch import shared_out
from nngk.cli.options import (
    ALLOW_MISSING,
    boxes_option,
    data_dir_option,
    device_option,
    gallery_option,
    json_option,
    quiet_option,
)
from nngk.cli.use_model import model_argument
from nngk.errors import InputError, printable


@click.command("embed")
@model_argument
@click.argument("data", required=False)
@gallery_option(required=True, help="Write into this gallery: a folder, or milvus://host:port/name.")
@data_dir_option
@boxes_option("as in training")
@click.option("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@device_option
@click.option("--devices", type=click.IntRange(min=1), help="Share the images out over this many processes.")
@quiet_option
@json_option
def embed_command(
    model: Path,
    data: str | None,
    gallery: str,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    device: str,
    devices: int | None,
    as_json: bool,
) -> None:
    """Fill a gallery with the embeddings of labelled images in DATA (a folder, a CSV file, or the name of a dataset),
    or without DATA with the images that MODEL holds. Each image is written once: a command that was stopped is given
    again, and goes on."""
    if shared_out(devices):
        return

    from nngk.gallery import open_gallery
    from nngk.gallery.filling import fill_with_centres, fill_with_images
    from nngk.model.evaluate import read_for_model
    from nngk.model.model import Model
    from nngk.training.distributed import joined_ranks

    with joined_ranks(device) as ranks:
        m = Model.load(model, device)
        task = m.info.get("task", "classify")
        table = None if data is None else read_for_model(m, data, data_dir, task, boxes, allow_missing)
        if table is None and not m.images:
            raise InputError("The model holds no images: name the images to embed.")
        with open_gallery(gallery, m, write=True) if ranks.first else nullcontext() as g:
            if table is not None:
                new, held = fill_with_images(g, m, table, ranks)
            elif g is not None:
                new, held = fill_with_centres(g, m)
            total = 0 if g is None else g.count()
    if not ranks.first:
        return
    if as_json:
        click.echo(json.dumps({"gallery": gallery, "added": new, "already": held, "images": total}))
        return
    there = f" {held} were there already." if held else ""
    click.echo(printable(f"{gallery} has {total} images now, {new} of them new.{there}"))
