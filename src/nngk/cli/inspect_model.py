"""Commands that look into a model and carry it elsewhere: ``audit``, ``explain`` and ``export``."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nngk.cli.given_images import given_images
from nngk.cli.options import Finite, device_option, folder_or_file, json_option, page_option
from nngk.cli.printed import cell
from nngk.cli.use_model import model_argument
from nngk.errors import InputError, printable
from nngk.progress import say

if TYPE_CHECKING:
    from torch import Tensor

    from nngk.model.audit import Audit
    from nngk.model.model import Model
    from nngk.model.pruning import Kept


@click.command("audit")
@model_argument
@click.option(
    "--photos/--no-photos",
    default=None,
    help="Read the photos again, so that labels are judged by what the network sees and not by what it learnt from "
    "them: slower, and finds more.  [default: if all are there]",
)
@click.option(
    "--top", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="Show the N worst of each kind."
)
@click.option(
    "--prune",
    metavar="N",
    type=Finite(),
    help="Find N centres (or this share of them, below 1) that answer as well as all, and show the curve.",
)
@click.option("--out", metavar="FOLDER", type=folder_or_file, help="Write the pruned model into this new folder.")
@click.option("--csv", "as_csv", is_flag=True, help="Write one row per finding, all of them, as CSV.")
@device_option
@json_option
def audit_command(
    model: Path,
    photos: bool | None,
    top: int,
    prune: float | None,
    out: Path | None,
    as_csv: bool,
    device: str,
    as_json: bool,
) -> None:
    """Show what is doubtful about the images of a model, each judged by the others: labels that are probably wrong,
    near duplicates, classes that are confused, centres that serve nothing."""
    from nngk.model.audit import audit_model
    from nngk.model.model import Model

    if as_csv and as_json:
        raise InputError("Findings are written as CSV or as JSON: give --csv or --json, not both.")
    _require_new(out, prune)
    m = Model.load(model, device)
    if prune is not None:
        _prune(m, _count(prune, len(m.centres)), out, as_csv, as_json)
        return
    found = audit_model(m, _features(m, photos))
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    elif as_csv:
        _write_csv(("kind", "image", "label", "other_image", "other_label", "figure"), found.rows())
    else:
        _tell(found, top)


def _require_new(out: Path | None, prune: float | None) -> None:
    if out is not None and prune is None:
        raise InputError("--out is for the pruned model: say with --prune how many centres to keep.")
    if out is not None and (out / "model.json").exists():
        raise InputError(f"{out} holds a model already. Choose another folder for the pruned one.")


def _count(prune: float, centres: int) -> int:
    """Return how many centres are kept; a number below one is a share."""
    if 0 < prune < 1:
        return max(1, round(prune * centres))
    if prune != int(prune) or prune < 1:
        raise InputError(f"--prune takes a number of centres or a share between 0 and 1; got {prune:g}.")
    return int(prune)


def _features(m: "Model", photos: bool | None) -> "Tensor | None":
    """Return the network's features of the model's photos; None where they are not to be read, or not all there."""
    if photos is False:
        return None
    missing = [source for source in m.sources if "\0" in source or not Path(source).is_file()]
    if missing and photos:
        raise InputError(f"{len(missing)} of {len(m.sources)} photos are gone, such as {missing[0]}: use --no-photos.")
    if missing:
        say(f"{len(missing)} of {len(m.sources)} photos are gone: labels are judged by the model's embeddings.")
        return None
    say(f"Reading {len(m.sources)} photos again (--no-photos is quicker, and finds fewer wrong labels)")
    return m.describe(list(m.sources)).features


def _tell(found: "Audit", top: int) -> None:
    click.echo(f"{found.images} images; the others name {found.accuracy:.2%} of them rightly.")
    for title, rows in found.sections():
        click.echo(f"{title}: {len(rows) or 'none'}")
        for row in rows[:top]:
            click.echo(printable(f"  {row}"))
        if len(rows) > top:
            click.echo(f"  … and {len(rows) - top} more (--top {len(rows)} shows them)")


def _prune(m: "Model", count: int, out: Path | None, as_csv: bool, as_json: bool) -> None:
    from nngk.model.pruning import pruned

    before = len(m.centres)
    m.classes, curve = pruned(m.classes, m.sigma, m.n_neighbours, count)
    m.info["pruned_from"] = m.info.get("pruned_from", before)  # what was measured before was measured with these
    if out is not None:
        m.save(out)
    if as_json:
        click.echo(json.dumps({"curve": [kept.to_dict() for kept in curve], "out": None if out is None else str(out)}))
    elif as_csv:
        _write_csv(("centres", "accuracy", "loss"), (tuple(kept.to_dict().values()) for kept in curve))
    else:
        _tell_curve(curve, out)


def _tell_curve(curve: "list[Kept]", out: Path | None) -> None:
    click.echo("centres  accuracy    loss   (of all images, each judged without its own centre)")
    for kept in curve:
        click.echo(f"{kept.centres:7d}   {kept.accuracy:7.2%}  {kept.loss:6.4f}")
    click.echo(
        "Nothing was changed: --out FOLDER writes the pruned model." if out is None else printable(f"Saved in {out}")
    )


def _write_csv(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) for value in row] for row in rows)


@click.command("explain")
@model_argument
@click.argument("image", type=folder_or_file)
@page_option("Write the page here.  [default: the name of the image with .explained.html, in this folder]")
@click.option("--class", "label", metavar="NAME", help="Explain this class.  [default: the likeliest]")
@click.option(
    "--evidence",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    help="Show the N training images that count most.",
)
@device_option
@json_option
def explain_command(
    model: Path, image: Path, out: Path | None, label: str | None, evidence: int, device: str, as_json: bool
) -> None:
    """Write a page that says why a model answers as it does about IMAGE: the training images that decided, with their
    kernels, weights and shares, and where on the picture the network looked."""
    if image.is_dir():
        raise InputError(f"{image} is a folder: name one image.")
    given_images((image,))
    from nngk.files import write_atomically
    from nngk.model.explain import explain
    from nngk.model.explain_page import explanation_page
    from nngk.model.model import Model

    told = explain(Model.load(model, device), image, label, evidence)
    out = Path(f"{image.stem}.explained.html") if out is None else out
    page = explanation_page(told, image.name)
    write_atomically(out, lambda part: part.write_text(page, encoding="utf-8"))
    if as_json:
        centres = [vars(centre) for centre in told.centres]
        facts = {"label": told.label, "probability": told.probability, "sigma": told.sigma, "page": str(out)}
        click.echo(json.dumps(facts | {"centres": centres}))
    else:
        click.echo(printable(f"{image}: {told.answer}. The page is {out}"))


@click.command("export")
@model_argument
@click.option(
    "--format",
    "kind",
    type=click.Choice(["onnx", "faiss", "npz"]),
    required=True,
    help="Write the network (onnx), the centres as an index (faiss), or the centres, labels, weights and σ (npz).",
)
@click.option(
    "--out",
    metavar="FILE",
    type=folder_or_file,
    help="Write the file here.  [default: the model's name, in this folder]",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@json_option
def export_command(model: Path, kind: str, out: Path | None, force: bool, as_json: bool) -> None:
    """Write a model for other programs. The ONNX graph takes pictures (batch, 3, size, size), uint8, RGB, which were
    resized and cropped as its metadata say, and gives embeddings; it is compared with PyTorch before it is written.
    The faiss index holds the centres; the JSON file beside it says what each row is."""
    from nngk.model.export import FORMATS
    from nngk.model.model import Model

    out = Path(f"{model.resolve().name}.{kind}") if out is None else out
    for path in (out, out.with_suffix(".json")) if kind == "faiss" else (out,):
        if path.exists() and not force:
            raise InputError(f"{path} is there already. Choose another file with --out, or replace it with --force.")
    difference = FORMATS[kind](Model.load(model, "cpu"), out)
    if as_json:
        click.echo(json.dumps({"file": str(out), "format": kind, "largest_difference": difference}))
    else:
        near = "" if difference is None else f"; embeddings differ from PyTorch's by {difference:.1g} at most"
        click.echo(printable(f"Wrote {out}{near}"))
