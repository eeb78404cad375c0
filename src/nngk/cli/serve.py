"""The command that puts a model behind HTTP: ``serve``."""

import os
import secrets
from pathlib import Path
from urllib.parse import quote

import click

from nngk.cli.options import FiniteRange, device_option, folder_or_file, gallery_option
from nngk.cli.use_model import model_argument
from nngk.errors import InputError, MissingExtra, printable

SHORTEST_TOKEN = 16


@click.command("serve")
@model_argument
@click.option("--host", metavar="NAME", default="127.0.0.1", show_default=True, help="Listen at this address.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Listen at this port; 0 takes any that is free.",
)
@click.option("--teach", is_flag=True, help="Make a token and print the address of a page that may change the model.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=folder_or_file,
    help="Read the token for changes from this file.  [default: the environment variable NNGK_TOKEN]",
)
@click.option(
    "--max-body",
    metavar="MB",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Read so much per request.",
)
@click.option(
    "--max-pixels",
    metavar="N",
    type=click.IntRange(1),
    default=50_000_000,
    show_default=True,
    help="Decode pictures of at most N pixels.",
)
@click.option(
    "--queue", metavar="N", type=click.IntRange(1), default=512, show_default=True, help="Let N requests wait at most."
)
@click.option(
    "--rate",
    metavar="N",
    type=FiniteRange(0),
    default=200.0,
    show_default=True,
    help="Take N uploads per second from one client; 0 sets no limit.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=FiniteRange(0.1),
    default=30.0,
    show_default=True,
    help="Give up on a request after this time.",
)
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Answer up to N waiting requests in one pass of the network.",
)
@gallery_option()
@device_option
def serve_command(
    model: Path,
    host: str,
    port: int,
    teach: bool,
    token_file: Path | None,
    max_body: int,
    max_pixels: int,
    queue: int,
    rate: float,
    timeout: float,
    batch: int,
    gallery: str | None,
    device: str,
) -> None:
    """Serve MODEL over HTTP: a page for people at /, and an API for programs, described at /openapi.json.

    Whatever changes the model needs a token, which is read from --token-file or NNGK_TOKEN, or made by --teach; without
    one the model is read-only. SIGTERM ends the server when it has answered."""
    token = read_token(token_file)
    if teach and token is None:
        token = secrets.token_urlsafe(24)
    try:
        from nngk.web.limits import Limits
        from nngk.web.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "fastapi", "serve", "The server") from None

    def started(address: str) -> None:
        # Behind the '#' the token stays in the browser: it is in no request's address and in no log.
        click.echo(printable(f"Serving {model} at {address}{f'#token={quote(token)}' if teach and token else ''}"))

    limits = Limits(max_body * 2**20, max_pixels, queue, rate, timeout, batch)
    serve(
        model,
        host=host,
        port=port,
        device=device,
        token=token,
        limits=limits,
        gallery=gallery,
        started=started,
    )


def read_token(file: Path | None) -> str | None:
    """Return the token of a file or of the environment, if there is one. Raise InputError if it is too weak."""
    if file is None:
        token, where = os.environ.get("NNGK_TOKEN"), "The environment variable NNGK_TOKEN"
    else:
        try:
            token, where = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError):
            raise InputError(f"The token cannot be read from {file}: check the path and its permissions.") from None
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{where} must hold a token of at least {SHORTEST_TOKEN} ASCII characters without spaces, such as the "
            "output of: openssl rand -hex 24"
        )
    return token
