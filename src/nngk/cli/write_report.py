"""``nngk report``."""

import json
from pathlib import Path

import click

from nngk.cli.given_images import broken_options, tolerance_of
from nngk.cli.options import data_dir_option, device_option, json_option, page_option
from nngk.cli.use_model import model_argument
from nngk.errors import printable


@click.command("report")
@model_argument
@click.argument("photos", required=False)
@page_option("Write the page to this file.  [default: report.html in the model's folder]")
@data_dir_option
@broken_options
@device_option
@json_option
def report_command(
    model: Path,
    photos: str | None,
    out: Path | None,
    data_dir: Path | None,
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
) -> None:
    """Write one page about MODEL: the curves of its training, which classes it confuses, its accuracy on each, its
    worst mistakes with the images behind them, and how unknown photos look to it. PHOTOS are labelled images to ask
    it about (a folder, a CSV file or a dataset's name); without them each image of the model is asked, as if it were
    not there."""
    from nngk.model.model import Model
    from nngk.model.storage import require_model
    from nngk.report.document import write_report
    from nngk.report.findings import ask_about_itself, ask_about_photos

    require_model(model)
    m, tolerance = Model.load(model, device), tolerance_of(strict, skip_broken)
    findings = ask_about_itself(m) if photos is None else ask_about_photos(m, photos, data_dir, tolerance)
    page = out or model / "report.html"
    write_report(m, findings, model / "run", page)
    if as_json:
        facts = {"report": str(page), "photos": len(findings.truth), "accuracy": findings.accuracy}
        click.echo(json.dumps(facts))
        return
    click.echo(printable(f"The report is {page}: {findings.accuracy:.1%} of {len(findings.truth)} answers are right."))
