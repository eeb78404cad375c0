"""Command-line options made from the settings: one for each field, its help the comment beside its default."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from nngk.training.settings import Settings

json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON on standard output.")
device_option = click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every field of :class:`Settings`; what is not given stays None."""
    hints, reasons = get_type_hints(Settings), _reasons()
    for field in reversed(dataclasses.fields(Settings)):
        command = _option(field.name, hints[field.name], field.default, reasons.get(field.name, ""))(command)
    return command


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, with 0 for 'none' where a setting can be empty."""
    hints = get_type_hints(Settings)
    out: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        value = values.get(field.name)
        if value is None:
            continue
        out[field.name] = None if field.name in ("dim", "n_neighbours") and value == 0 else value
        if float in get_args(hints[field.name]) and isinstance(value, str):
            out[field.name] = _number(value)
    return out


def _option(name: str, hint: Any, default: Any, reason: str) -> Callable[..., Any]:
    flag = f"--{name.replace('_', '-')}"
    shown = "auto" if default is None else ("yes" if default else "no") if isinstance(default, bool) else default
    text = f"{reason}  [default: {shown}]"
    kinds = get_args(hint) or (hint,)
    if bool in kinds:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if get_origin(hint) is Literal:
        return click.option(flag, name, type=click.Choice([str(k) for k in kinds]), default=None, help=text)
    kind: Any = (
        str if (str in kinds or any(get_origin(k) is Literal for k in kinds)) else int if int in kinds else float
    )
    return click.option(flag, name, type=kind, default=None, help=text)


def _reasons() -> dict[str, str]:
    """The comments beside the defaults."""
    try:
        source = inspect.getsource(Settings)
    except OSError:  # installed without its source
        return {}
    return {m[1]: m[2] for m in re.finditer(r"^    (\w+): [^\n]*?  # ([^\n]*)$", source, re.MULTILINE)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
