"""Options that several commands share."""

import math
from pathlib import Path
from typing import Any

import click

from nngk import progress
from nngk.cli.grouped_help import GroupedOption
from nngk.defaults import DEVICE
from nngk.errors import InputError

folder_or_file = click.Path(path_type=Path)


class Finite(click.types.FloatParamType):
    """A number, which NaN and infinity are not: they are on both sides of every limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of a text; complain if it is none."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


class FiniteRange(Finite, click.FloatRange):
    """A finite number in a range."""


def _set_quiet(ctx: click.Context, option: click.Parameter, quiet: bool) -> None:
    progress.quiet = quiet


def seldom(*names: str, **rest: Any) -> Any:
    """Return an option that only ``--help-all`` shows."""
    return click.option(*names, cls=GroupedOption, everyday=False, **rest)


json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON on standard output.")
quiet_option = click.option("--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Show no progress.")
device_option = click.option(
    "--device",
    metavar="auto|cpu|cuda",
    default=DEVICE,
    show_default=True,
    help="Compute on the CPU or on a CUDA GPU; auto takes a GPU if there is one.",
)
data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    type=folder_or_file,
    help="Find a dataset that is given by name, or a CSV file's images, in this folder.",
)


def boxes_option(default: str = "as in the paper") -> Any:
    """Return the option for bounding boxes, with the default in words."""
    return click.option(
        "--boxes/--no-boxes",
        cls=GroupedOption,
        default=None,
        help=f"Crop images to the bounding boxes of a dataset.  [default: {default}]",
    )


def gallery_option(**rest: Any) -> Any:
    """Return the option that names a gallery."""
    text = "Use the references of this gallery, a folder or milvus://host:port/name, in place of the model's own."
    return click.option("--gallery", metavar="PLACE", help=rest.pop("help", text), **rest)


def page_option(text: str) -> Any:
    """Return the option for where a page is written; another kind of file is never replaced by one."""
    return click.option("--out", metavar="FILE", type=folder_or_file, callback=_require_page, help=text)


def _require_page(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path} is there already and is no page: name a file that ends in .html.")
    return path


ALLOW_MISSING = "Go on with a dataset of which some images are missing."
