"""The command line: thin skins over the library, each loaded when it is called, so that help is instant."""

import io
import sys
from importlib import import_module
from typing import Any

import click

from nngk import __version__
from nngk.errors import InputError, printable

# command: (module, what it does). The line is here so that the list of commands imports nothing.
COMMANDS = {
    "demo": ("nngk.cli.demo", "See it work: train on digits, add classes, write a page. No download, under 3 minutes."),
    "train": ("nngk.cli.train", "Train a model on a folder of images, a CSV file or a known dataset."),
    "evaluate": ("nngk.cli.ask", "Measure a model on labelled images."),
    "classify": ("nngk.cli.ask", "Say what images show, how sure, and which training images decided it."),
    "search": ("nngk.cli.ask", "Find the most similar images of the bank."),
    "add": ("nngk.cli.change", "Teach a model a class by showing it images; no training."),
    "remove": ("nngk.cli.change", "Make a model forget a class."),
    "info": ("nngk.cli.ask", "What a model folder holds."),
    "data": ("nngk.cli.data", "Check, download and pack datasets."),
    "networks": ("nngk.cli.listings", "The networks and where their weights come from."),
    "compare": ("nngk.cli.compare", "Train several losses under one protocol and compare them."),
    "paper": ("nngk.cli.paper", "Run the paper's tables and figures, and report them beside the published ones."),
    "bench": ("nngk.cli.bench", "Measure neighbour search on this machine."),
    "losses": ("nngk.cli.listings", "The losses that train can use."),
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
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Nearest-neighbour Gaussian kernels for images: one model that classifies, retrieves, says when it does not
    know, and learns a class by being shown it."""


def main() -> None:
    """The entry point: a user's mistake ends in a sentence, never in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file name that is no text comes out as the bytes that it is
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        code = cli(standalone_mode=False)
        if isinstance(code, int) and code:  # a command that ends with an exit code returns it here
            sys.exit(code)
    except click.ClickException as error:
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
    except OSError as error:  # a full disk, a folder that may not be written: the machine's, not a bug
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        click.echo(f"Error: {printable(what)}. Check the path, its permissions and the space on the disk.", err=True)
        sys.exit(1)
