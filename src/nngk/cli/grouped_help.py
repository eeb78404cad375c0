"""Help in two lengths: ``--help`` shows the everyday options, ``--help-all`` shows all of them in groups."""

from typing import Any

import click

EVERYDAY = "Everyday settings"
_SHOW_ALL = "nngk.show_all"


class GroupedOption(click.Option):
    """An option of a group; ``--help`` shows it only if it is for everyday use, and in brief."""

    def __init__(
        self, *names: Any, group: str = "Options", everyday: bool = True, brief: str = "", **rest: Any
    ) -> None:
        super().__init__(*names, **rest)
        self.group, self.everyday, self.brief = group, everyday, brief

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names, with ``--[no-]name`` for a pair of flags, and the help or what is brief of it."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        names, text = record
        if self.secondary_opts == [f"--no-{self.opts[0][2:]}"]:
            names = f"--[no-]{self.opts[0][2:]}"
        return names, text if ctx.meta.get(_SHOW_ALL) else self.brief or text


class GroupedCommand(click.Command):
    """A command with ``--help-all``."""

    def __init__(self, *names: Any, **rest: Any) -> None:
        super().__init__(*names, **rest)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option, those for research included, and exit.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: all of them by group, or those for everyday use in two sections."""
        everything = bool(ctx.meta.get(_SHOW_ALL))
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            group = getattr(option, "group", "Options")
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record and (everything or getattr(option, "everyday", True)):
                section = group if everything or group == "Options" else EVERYDAY
                sections.setdefault(section, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _show_all(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOW_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
