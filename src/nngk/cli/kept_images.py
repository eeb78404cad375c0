"""``nngk cache``."""

import json

import click

from nngk.cli.options import json_option
from nngk.errors import printable


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove what is kept; it is computed again when it is needed.")
@json_option
def cache_command(clear: bool, as_json: bool) -> None:
    """Show where decoded images are kept for the next run and how much room they take, or remove them. The folder is
    nngk in $XDG_CACHE_HOME, or in ~/.cache; what was not used for longest goes when it holds more than 50 GB."""
    from nngk.data.packs.place import cache_bytes, cache_home, clear_cache

    home = cache_home()
    freed = clear_cache() if clear else 0
    kept = cache_bytes(home)
    if as_json:
        click.echo(json.dumps({"folder": str(home), "bytes": kept, "freed": freed}))
        return
    click.echo(printable(f"{home} holds {kept / 1e6:.1f} MB of decoded images."))
    if clear:
        click.echo(f"{freed / 1e6:.1f} MB were removed.")
