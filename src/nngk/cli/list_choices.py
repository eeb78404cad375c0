"""Commands that list what ``--network`` and ``--loss`` can be: ``networks`` and ``losses``."""

import dataclasses
import json

import click

from nngk.cli.options import json_option


@click.command("networks")
@json_option
def networks_command(as_json: bool) -> None:
    """List the networks for ``--network``: dimensions, parameters, input size, and where their weights come from."""
    from nngk.networks import list_networks

    rows = list_networks()
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row.pop('name')}")
        for key, value in row.items():
            click.echo(f"    {key.replace('_', ' '):<12} {value}")


@click.command("losses")
@json_option
def losses_command(as_json: bool) -> None:
    """List the losses for ``--loss``: what each does, its paper, and the batches that it needs."""
    from nngk.losses.registry import LOSSES

    if as_json:
        click.echo(json.dumps([dataclasses.asdict(info) for info in LOSSES.values()]))
        return
    for info in LOSSES.values():
        click.echo(f"{info.name}\n    {info.summary}\n    {info.paper}\n    batches: {info.batch}")
        if info.needs:
            click.echo(f"    needs:   pip install '{info.needs}'")
