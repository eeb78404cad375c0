"""Commands that change a model: ``add``, ``rename``, ``merge``, ``remove`` and ``calibrate``."""

import json
from pathlib import Path

import click

from nngk.cli.given_images import broken_options, readable_images, tolerance_of
from nngk.cli.options import FiniteRange, device_option, folder_or_file, json_option
from nngk.cli.use_model import images_argument, model_argument
from nngk.defaults import FALSE_ALARMS
from nngk.errors import printable


@click.command("add")
@model_argument
@click.argument("name")
@images_argument
@click.option("--yes", is_flag=True, help="Add a class whose name is nearly that of another.")
@broken_options
@device_option
@json_option
def add_command(
    model: Path,
    name: str,
    images: tuple[str, ...],
    yes: bool,
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
) -> None:
    """Teach a model the class NAME by showing it IMAGES (files, folders, web addresses, or - for standard input),
    without training. A class that the model knows gets more images. Says how many known images would be called NAME
    from now on."""
    from nngk.model.adding import taken_over
    from nngk.model.model import Model
    from nngk.model.storage import require_model

    require_model(model)
    paths, _ = readable_images(images, tolerance_of(strict, skip_broken))
    with Model.changing(model, device) as m:
        before = m.classes
        total = m.add(name, paths, sure=yes)
        added = len(m.classes.centres) - len(before.centres)
        lost = taken_over(before, m.classes, name, m.sigma, m.n_neighbours)
        if not as_json:
            for other, (count, size) in lost.items():
                click.echo(printable(f"{count} of {size} photos of {other} would now be called {name}."))
    if as_json:
        taken = {other: count for other, (count, _) in lost.items()}
        click.echo(json.dumps({"class": name, "added": added, "images": total, "taken": taken}))
        return
    twice = f" {len(paths) - added} were there already." if added < len(paths) else ""
    click.echo(printable(f"'{name}' has {total} images now, {added} of them new.{twice}"))


@click.command("rename")
@model_argument
@click.argument("name")
@click.argument("new_name")
@json_option
def rename_command(model: Path, name: str, new_name: str, as_json: bool) -> None:
    """Give the class NAME of a model the name NEW_NAME."""
    from nngk.model.model import Model

    with Model.changing(model, "cpu") as m:  # nothing is computed
        m.rename(name, new_name)
    words = f"'{name}' is called '{new_name}' now."
    click.echo(json.dumps({"class": new_name, "was": name}) if as_json else printable(words))


@click.command("merge")
@model_argument
@click.argument("name")
@click.argument("into")
@json_option
def merge_command(model: Path, name: str, into: str, as_json: bool) -> None:
    """Make the images of the class NAME images of the class INTO; NAME is no class any more."""
    from nngk.model.model import Model

    with Model.changing(model, "cpu") as m:  # nothing is computed
        total = m.merge(name, into)
    if as_json:
        click.echo(json.dumps({"class": into, "merged": name, "images": total}))
    else:
        click.echo(printable(f"'{into}' has {total} images now; {len(m.class_names)} classes remain."))


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
        click.echo(printable(f"'{name}' and its {removed} images are forgotten; {len(m.class_names)} classes remain."))


@click.command("calibrate")
@model_argument
@click.argument("photos", nargs=-1, required=True, type=folder_or_file)
@click.option(
    "--false-alarms",
    metavar="SHARE",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=FALSE_ALARMS,
    show_default=True,
    help="Call this share of the photos of known classes unknown.",
)
@broken_options
@device_option
@json_option
def calibrate_command(
    model: Path,
    photos: tuple[Path, ...],
    false_alarms: float,
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
) -> None:
    """Set where a model's answer becomes 'unknown', from PHOTOS (files or folders) of classes that it knows. They
    should be like those that it will be asked about, and none that it was trained on."""
    from nngk.model.model import Model
    from nngk.model.storage import require_model

    require_model(model)
    paths, _ = readable_images(photos, tolerance_of(strict, skip_broken))
    with Model.changing(model, device) as m:
        used = m.calibrate(paths, false_alarms)
    if as_json:
        click.echo(json.dumps({"photos": used, "left_out": len(paths) - used, "false_alarms": false_alarms}))
        return
    held = f" {len(paths) - used} are in the model already and did not count." if used < len(paths) else ""
    click.echo(printable(f"Of photos like these {used}, {false_alarms:.1%} will be called unknown.{held}"))
