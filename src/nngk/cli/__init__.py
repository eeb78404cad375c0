"""The command line: thin skins over the library, each loaded when it is called, so that help is instant."""

import difflib
import logging
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from nngk import __version__
from nngk.cli.streams import prepare_streams
from nngk.errors import InputError, printable

# Name, module and purpose of each command. The purpose is here so that the list of commands imports nothing.
COMMANDS = {
    "demo": ("nngk.cli.demo", "See it work on handwritten digits, in three minutes and without a download."),
    "train": ("nngk.cli.train", "Train a model on a folder of images, a CSV file or a known dataset."),
    "classify": ("nngk.cli.use_model", "Say what images show, how surely, and which training images decided it."),
    "search": ("nngk.cli.use_model", "Find the training images that are most similar to an image."),
    "evaluate": ("nngk.cli.use_model", "Measure a model on labelled images."),
    "info": ("nngk.cli.use_model", "Show what a model folder holds."),
    "add": ("nngk.cli.change_model", "Teach a model a class by showing it images, without training."),
    "rename": ("nngk.cli.change_model", "Give a class of a model another name."),
    "merge": ("nngk.cli.change_model", "Make two classes of a model one."),
    "remove": ("nngk.cli.change_model", "Make a model forget a class."),
    "calibrate": ("nngk.cli.change_model", "Set where a model's answer becomes 'unknown', from your own photos."),
    "report": (
        "nngk.cli.write_report",
        "Write one page about a model: curves, confusions, mistakes and their evidence.",
    ),
    "embed": ("nngk.cli.fill_gallery", "Fill a gallery with the embeddings of labelled images."),
    "audit": (
        "nngk.cli.inspect_model",
        "Find wrong labels, duplicates, confused classes and useless centres of a model.",
    ),
    "explain": ("nngk.cli.inspect_model", "Write a page that says why a model answers as it does about an image."),
    "export": ("nngk.cli.inspect_model", "Write a model for other programs: ONNX, faiss or NumPy."),
    "serve": ("nngk.cli.serve", "Serve a model over HTTP: a page for people and an API for programs."),
    "data": ("nngk.cli.data", "Check, download and pack datasets."),
    "cache": ("nngk.cli.kept_images", "Show or clear the decoded images that are kept for the next run."),
    "networks": ("nngk.cli.list_choices", "List the networks and where their weights come from."),
    "losses": ("nngk.cli.list_choices", "List the losses to train with."),
    "compare": ("nngk.cli.compare", "Compare several losses under one protocol."),
    "paper": ("nngk.cli.paper", "Run the paper's tables and figures, and report them beside the published ones."),
    "bench": ("nngk.cli.bench", "Measure neighbour search on this machine."),
}


class Commands(click.Group):
    """A group whose commands are imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[name][0]), f"{name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Nearest-neighbour Gaussian kernels for images: one model that classifies, retrieves, says when it does not
    know, and learns a class by being shown it. 'nngk COMMAND --help' says more about each command."""


def main() -> None:
    """Run the command line: a user's mistake ends in a sentence, never in a traceback."""
    prepare_streams()
    _silence_pillow()
    with suppress(ValueError):  # outside the main thread nothing hears signals
        signal.signal(signal.SIGTERM, _stop)
    try:
        code = cli(standalone_mode=False)
        if isinstance(code, int) and code:  # a command that ends with an exit code returns it here
            sys.exit(code)
    except click.ClickException as error:
        for field in ("message", "option_name"):  # what was typed may be a file's name
            if isinstance(getattr(error, field, None), str):
                setattr(error, field, printable(getattr(error, field)))
        error.show()
        sys.exit(error.exit_code)
    except InputError as error:
        click.echo(f"Error: {printable(error)}", err=True)
        sys.exit(130 if type(error).__name__ == "Interrupted" else 1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:  # a full disk, or a folder that cannot be written to
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        click.echo(f"Error: {printable(what)}. Check the path, its permissions and the space on the disk.", err=True)
        sys.exit(1)


def _stop(number: int, frame: Any) -> None:
    """End as after Ctrl-C: what was begun is undone, and what a person waits for is told."""
    raise KeyboardInterrupt


def _silence_pillow() -> None:
    """Let no raw warning of Pillow about a damaged picture through: whether it can be read is said in our own words."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
