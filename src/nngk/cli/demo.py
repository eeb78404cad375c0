"""``nngk demo``."""

import json
import shutil
import time
from pathlib import Path

import click

from nngk.cli.options import folder_or_file, json_option
from nngk.errors import InputError, printable


@click.command("demo")
@click.option(
    "--out",
    metavar="FOLDER",
    type=folder_or_file,
    default=Path("nngk-demo"),
    show_default=True,
    help="Write everything to this folder.",
)
@click.option("--force", is_flag=True, help="Replace what an earlier demonstration left in --out.")
@json_option
def demo_command(out: Path, force: bool, as_json: bool) -> None:
    """See it work, offline: write scikit-learn's digits as a folder of images, train on eight of the ten, measure
    retrieval on the two unseen ones, add them as new classes from five pictures each, classify, and write a page."""
    if (out / "model").exists() and not force:
        raise InputError(
            f"{out} holds an earlier demonstration. Look at {out / 'index.html'}, or replace it with --force."
        )
    if force:
        shutil.rmtree(out / "model", ignore_errors=True)
    started = time.perf_counter()
    from nngk.experiments.demo.digits import demonstrate
    from nngk.experiments.demo.page import require_page, write_page
    from nngk.training.loop import Interrupted

    require_page()  # before anything is trained
    try:
        demo = demonstrate(out)
    except Interrupted:
        raise Interrupted(f"Stopped. Start the demonstration anew with: nngk demo --out {out} --force") from None
    scores = demo.scores()
    write_page(demo, out / "index.html", time.perf_counter() - started)
    if as_json:
        click.echo(json.dumps({"page": str(out / "index.html"), "model": str(out / "model"), "scores": scores}))
        return
    for (name, value), said in zip(scores.items(), demo.sentences(), strict=True):
        click.echo(f"  {value:7.2%}  {name}\n           {said}")
    click.echo(printable(f"The page is {out / 'index.html'}; the model is {out / 'model'}."))
