"""``nngk data``: check, download and pack datasets."""

import json
from pathlib import Path

import click

from nngk.cli.options import ALLOW_MISSING, boxes_option, folder_or_file, json_option
from nngk.errors import InputError, printable


@click.group("data")
def data_command() -> None:
    """Check, download and pack datasets, or any folder of images.

    The datasets by name are cub200, cars196, flowers102, leafsnap, inshop, sop and inat2018.
    """


@data_command.command("check", short_help="Say what is complete and what is broken in a folder.")
@click.argument("directory", type=folder_or_file)
@click.option("--decode/--no-decode", default=True, show_default=True, help="Open every image to find broken ones.")
@json_option
def check_command(directory: Path, decode: bool, as_json: bool) -> None:
    """Say what DIRECTORY holds, what is complete and what is broken. The exit code is 1 if anything is missing or
    broken."""
    from nngk.data.check import check_folder
    from nngk.progress import watch

    with watch("checking") as seen:
        report = check_folder(directory, decode=decode, progress=seen)
    click.echo(json.dumps(report.to_dict()) if as_json else str(report))
    if not report.complete:
        raise click.exceptions.Exit(1)


@data_command.command("download", short_help="Fetch a dataset from its official address.")
@click.argument("name")
@click.argument("directory", type=folder_or_file)
def download_command(name: str, directory: Path) -> None:
    """Fetch the dataset NAME from its official address into DIRECTORY; a download that was interrupted goes on."""
    from nngk.data.datasets.download import download
    from nngk.progress import say, watch

    with watch("downloading") as seen:
        download(name, directory, progress=lambda file, done, total: seen(done, total, note=file), say=say)
    click.echo(printable(f"{name} is in {directory}. Check it with: nngk data check {directory}"))


@data_command.command("pack", short_help="Decode a dataset once into a pack that trains anywhere.")
@click.argument("name")
@click.argument("directory", type=folder_or_file)
@click.argument("out", type=folder_or_file)
@click.option(
    "--size",
    metavar="PIXELS",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Bring the shorter side of the images to this many pixels.",
)
@click.option("--squash", is_flag=True, help="Make the images squares instead of keeping their aspect.")
@click.option(
    "--task",
    type=click.Choice(["classify", "metric"]),
    default="classify",
    show_default=True,
    help="Split the dataset for this task.",
)
@boxes_option()
@click.option("--seed", metavar="N", default=0, show_default=True, help="Draw the validation split from this seed.")
@click.option("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@json_option
def pack_command(
    name: str,
    directory: Path,
    out: Path,
    size: int,
    squash: bool,
    task: str,
    boxes: bool | None,
    seed: int,
    allow_missing: bool,
    as_json: bool,
) -> None:
    """Decode the dataset NAME (or 'folder' for any folder of images) in DIRECTORY once into the pack OUT, which trains
    anywhere without the original images: nngk train OUT."""
    from nngk.data import pack, read_images
    from nngk.progress import watch

    if name == "folder":
        table = read_images(directory, task=task, seed=seed, crop_boxes=boxes)
    else:
        table = read_images(
            name, data_dir=directory, task=task, seed=seed, crop_boxes=boxes, allow_missing=allow_missing
        )
    if not len(table):
        raise InputError(f"{directory} has no images to pack.")
    with watch("packing") as seen:
        pack(table, out, size, squash=squash, progress=seen)
    facts = {"pack": str(out), "images": len(table), "classes": len(table.class_names), "size": size, "squash": squash}
    told = f"{len(table)} images of {len(table.class_names)} classes are in {out}."
    click.echo(json.dumps(facts) if as_json else printable(told))
