"""The page docs/reference.md, generated from the command line and the settings.

Write it with ``python -m nngk.cli.reference docs/reference.md``.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import click

from nngk.cli import cli
from nngk.cli.grouped_help import GroupedOption
from nngk.cli.settings_options import shown_default
from nngk.training.fields import about, shape
from nngk.training.presets import PRESETS
from nngk.training.settings import GROUPS, Settings

INTRODUCTION = """\
# Reference

Every preset, every setting, and every command with its options. This page is generated: change the help in the source
and run `python -m nngk.cli.reference docs/reference.md`.

A setting is an option of `nngk train` and `nngk compare` (`--batch-size 64`), a line in the TOML file of `--config`
(`batch-size = 64`) and a field of `nngk.Settings` (`batch_size=64`). Options win over the file, and the file wins over
a preset. Without a preset, `nngk train` takes the one that suits network and machine; the defaults below are those of
`nngk.Settings`. `auto` and `none` stand for an empty value (`None` in Python); 0 does as well for whole numbers.
Switches are `--flip` and `--no-flip` on the command line, `true` and `false` in a file.
"""


def reference() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, "## Presets\n", *_presets(), "## Settings\n", *_settings(), *_commands()])


def _presets() -> list[str]:
    return [
        "| `--preset` | what it is |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in PRESETS.items()),
        "",
    ]


def _settings() -> Iterator[str]:
    hints = get_type_hints(Settings)
    for group in GROUPS:
        yield f"### {group}\n"
        yield "| setting | accepts | default | what it does |"
        yield "|---|---|---|---|"
        for field in dataclasses.fields(Settings):
            told = about(field)
            if told.group == group:
                accepted = _code(shape(hints[field.name], told))
                accepts = ", ".join(filter(None, [accepted, told.limits()]))
                yield f"| `{field.name}` | {accepts} | `{shown_default(field)}` | {_cell(told.help)} |"
        yield ""


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    with click.Context(cli, info_name="nngk") as ctx:
        for path, command in _walk(cli, ctx, "nngk"):
            yield f"### {path}\n"
            yield " ".join(line.strip() for line in _prose(command)) + "\n"
            usage = " ".join([path, *command.collect_usage_pieces(ctx)])
            yield f"```\n{usage}\n```\n"
            records = [r for r in (_record(option, ctx) for option in command.params) if r]
            if records:
                yield "| option | what it does |"
                yield "|---|---|"
                yield from (f"| {_code(names)} | {_cell(text)} |" for names, text in records)
                yield ""


def _walk(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _walk(command, ctx, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _prose(command: click.Command) -> list[str]:
    """Return the lines of a command's help without its examples."""
    return (command.help or "").split("\b")[0].strip().splitlines()


def _record(option: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """Return the names and help of a command's own option; settings have their own tables."""
    if not isinstance(option, click.Option) or (isinstance(option, GroupedOption) and option.group != "Options"):
        return None
    return option.get_help_record(ctx)


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
    else:
        print(reference(), end="")
