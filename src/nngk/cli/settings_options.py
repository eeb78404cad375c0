"""The options of ``nngk train`` and ``nngk compare`` that are settings, made from the settings' own metadata."""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from nngk.cli.grouped_help import GroupedOption
from nngk.cli.options import folder_or_file
from nngk.training.fields import about, shape
from nngk.training.presets import PRESETS, preset_settings
from nngk.training.settings import Settings, read_config


class NumberOrWord(click.ParamType):
    """A number, or a word that the settings accept or refuse."""

    name = "value"

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number where the text is one, and the text itself otherwise."""
        try:
            return self.number(value)
        except ValueError:
            return value


def settings_options(without: Collection[str] = (), **shown: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--preset``, ``--config`` and one option for each field of :class:`Settings`.

    An option that is not given is None. ``without`` are settings that the command decides itself, and ``shown``
    defaults of it that differ from those of the settings.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed([field for field in dataclasses.fields(Settings) if field.name not in without]):
            command = _option(field, shown.get(field.name))(command)
        config = click.option(
            "--config",
            metavar="FILE",
            type=folder_or_file,
            help="Read settings from a TOML file, which win over a preset; options win over both.",
        )
        preset = click.option(
            "--preset",
            metavar="NAME",
            type=click.Choice(list(PRESETS)),
            help="Begin with our recipe for a GPU (best) or a CPU (frozen), the paper's settings (paper), or "
            "a quick trial (quick).",
        )
        return preset(config(command))

    return add


class Chosen:
    """What a person chose on the command line: options win over the file, and the file wins over the preset."""

    def __init__(self, preset: str | None, config: Path | None, options: dict[str, Any], **otherwise: Any) -> None:
        self.preset = preset
        self.source = str(config or "the command line")
        given = {name: value for name, value in options.items() if value is not None}
        self.values = otherwise | (read_config(config) if config else {}) | given

    @property
    def named(self) -> list[str]:
        """The settings that a run to be resumed must share: those that were given, or all of a preset."""
        return list(self.values) if self.preset is None else [field.name for field in dataclasses.fields(Settings)]

    def settings(self, classes: int = 2, gpu: bool = False) -> Settings:
        """Return the settings for data of so many classes; before the data are read, any number shows mistakes."""
        return preset_settings(self.preset, self.values, classes=classes, gpu=gpu, source=self.source)


def _option(field: dataclasses.Field[Any], default: str | None) -> Callable[..., Any]:
    told, hint = about(field), get_type_hints(Settings)[field.name]
    name, kinds = field.name.replace("_", "-"), {hint, *get_args(hint)}
    kind: Any = str
    if get_origin(hint) is Literal:
        kind = click.Choice(get_args(hint))
    elif {int, float} & kinds:
        number = int if int in kinds else float
        kind = number if hint is number else NumberOrWord(number)
    default = default or shown_default(field)
    limits = f"; {told.limits()}" if told.limits() else ""
    flags = [f"--{name}/--no-{name}"] if bool in kinds else [f"--{name}"]
    return click.option(
        *flags,
        field.name,
        cls=GroupedOption,
        type=bool if bool in kinds else kind,
        default=None,
        metavar=None if bool in kinds else shape(hint, told),
        brief=f"{told.brief}  [default: {default}]",
        help=f"{told.help}  [default: {default}{limits}]",
        group=told.group,
        everyday=told.everyday,
    )


def shown_default(field: dataclasses.Field[Any]) -> str:
    """Return a setting's default as a person writes it."""
    if field.default is None:
        return about(field).empty
    return {True: "yes", False: "no"}[field.default] if isinstance(field.default, bool) else str(field.default)
