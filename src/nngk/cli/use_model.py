"""Commands that use a model as it is: ``classify``, ``search``, ``evaluate`` and ``info``."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nngk.cli.given_images import broken_options, given_images, readable_images, tolerance_of
from nngk.cli.options import (
    ALLOW_MISSING,
    Finite,
    boxes_option,
    data_dir_option,
    device_option,
    folder_or_file,
    gallery_option,
    json_option,
)
from nngk.cli.printed import CLASSIFIED, EVALUATED, FOUND, Printed, csv_option
from nngk.errors import InputError, printable
from nngk.progress import say, task

if TYPE_CHECKING:
    from nngk.gallery import GalleryModel
    from nngk.model import Answer, Model

model_argument = click.argument("model", type=folder_or_file)
images_argument = click.argument("images", nargs=-1, required=True)


@click.command("classify")
@model_argument
@images_argument
@click.option(
    "--top", metavar="N", type=click.IntRange(1), default=3, show_default=True, help="Show the N likeliest classes."
)
@click.option(
    "--evidence",
    metavar="N",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Show the N training images that count most.",
)
@click.option(
    "--reject",
    metavar="SCORE",
    type=Finite(),
    help="Answer 'unknown' above this unknown score, from 0 to 1.  [default: 0.5, the model's own threshold]",
)
@broken_options
@gallery_option()
@device_option
@json_option
@csv_option
def classify_command(
    model: Path,
    images: tuple[str, ...],
    top: int,
    evidence: int,
    reject: float | None,
    gallery: str | None,
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Say what IMAGES (files, folders, web addresses, or - for standard input) show: the likeliest classes, the
    training images behind the answer with their share in it, and how many photos of known classes look at least as
    strange. Where almost none does, the answer is 'unknown' with the nearest class; 'nngk calibrate' sets where that
    begins. Answers are printed as they come."""
    from nngk.model.stream import classify_each

    m, names, pictures = _opened(model, images, gallery, device)
    with Printed(as_json, as_csv, CLASSIFIED) as written:
        for name, answer in _each(names, classify_each(m, pictures, evidence), "classifying", strict, skip_broken):
            if isinstance(answer, InputError):
                written.broken(name, answer)
                continue
            if reject is not None:
                answer = replace(answer, is_unknown=answer.unknown > reject)
            # A softmax layer says its answer without them; they are what the kernels would have gone by.
            why = "because of" if m.classifier == "kernels" else "near"
            lines = [f"{name}: {answer}  ({answer.familiarity()})"]
            lines += [
                f"  {probability:7.2%}  {label}" for label, probability in list(answer.probabilities.items())[:top]
            ]
            lines += [f"    {why} {e.image} ({e.label}), {e.share:.1%}" for e in answer.evidence]
            row = _row(name, answer)
            written.put(row, [row], lines)


def _opened(
    model: Path, images: tuple[str, ...], gallery: str | None, device: str
) -> "tuple[Model | GalleryModel, list[str], list[Any]]":
    """Return the model and the images; a model that is missing is named before an image that is."""
    from nngk.model.storage import require_model

    require_model(model)
    names, pictures = given_images(images)
    return load_with_gallery(model, gallery, device), names, pictures


def _each(
    names: list[str], answers: Iterable[Any], doing: str, strict: bool, skip_broken: bool
) -> Iterator[tuple[str, Any]]:
    """Yield each image's name with its answer, and settle at the end what the broken ones mean."""
    tolerance, broken = tolerance_of(strict, skip_broken), dict[object, str]()
    # Where answers are read on the terminal, they are the progress.
    bar = nullcontext(lambda n: None) if sys.stdout.isatty() else task(doing, len(names))
    with bar as advance:
        for place, (name, answer) in enumerate(zip(names, answers)):
            if isinstance(answer, InputError):
                broken[place] = str(answer) if name in str(answer) else f"{name}: {answer}"
                if strict or len(names) == 1:
                    raise InputError(broken[place])
            yield name, answer
            advance(1)
    if len(names) > 1:
        replace(tolerance, ask=None).accept(broken, len(names))


def _row(name: str, answer: "Answer") -> dict[str, Any]:
    """Return an answer for JSON: 'label' is 'unknown' where that is the answer, 'nearest' always a known class."""
    label = "unknown" if answer.is_unknown else answer.label
    return {"image": name, **answer.to_dict(), "label": label, "nearest": answer.label}


@click.command("search")
@model_argument
@images_argument
@click.option("-k", metavar="N", type=int, help="Show the N most similar images.  [default: 10, or all if fewer]")
@broken_options
@gallery_option()
@device_option
@json_option
@csv_option
def search_command(
    model: Path,
    images: tuple[str, ...],
    k: int | None,
    gallery: str | None,
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Find the training images that are most similar to IMAGES (files, folders, web addresses, or - for standard
    input), nearest first."""
    from nngk.model.stream import search_each

    m, names, pictures = _opened(model, images, gallery, device)
    found = search_each(m, pictures, max(1, min(10, m.images)) if k is None else k)
    with Printed(as_json, as_csv, FOUND) as written:
        for name, hits in _each(names, found, "searching", strict, skip_broken):
            if isinstance(hits, InputError):
                written.broken(name, hits)
                continue
            rows = [{**vars(e), "image": name, "rank": i + 1, "found": e.image} for i, e in enumerate(hits)]
            lines = [f"{name}:", *(f"  {e.distance:8.4f}  {e.label}  {e.image}" for e in hits)]
            written.put({"image": name, "found": [vars(e) for e in hits]}, rows, lines)


@click.command("evaluate")
@model_argument
@click.argument("data")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test", "all"]),
    default="all",
    show_default=True,
    help="Measure on this part of data that have a split.",
)
@click.option(
    "--task",
    type=click.Choice(["classify", "metric"]),
    help="Measure the answers and the retrieval, or the retrieval alone (metric).  [default: the model's task]",
)
@data_dir_option
@boxes_option("as in training")
@click.option("--allow-missing", is_flag=True, help=ALLOW_MISSING)
@click.option(
    "--unknown",
    metavar="FOLDER",
    multiple=True,
    type=folder_or_file,
    help="Measure how well images in this folder, of classes that the model does not know, are told apart; may be "
    "given several times.",
)
@broken_options
@device_option
@json_option
@csv_option
def evaluate_command(
    model: Path,
    data: str,
    split: str,
    task: str | None,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    unknown: tuple[Path, ...],
    strict: bool,
    skip_broken: bool,
    device: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure a model on labelled images in DATA (a folder, a CSV file, or the name of a dataset): accuracy and
    calibration if the classes are the model's, and retrieval (Recall@K, MAP@R, NMI) among the images. With --unknown
    also how well unknown classes are told from known ones (AUROC, false alarms where 95% are detected, OSCR). With
    --csv the answer for each image is printed as it comes, and the figures on standard error."""
    from nngk.data.folder import overlooked
    from nngk.model.evaluate import evaluate_model, intervals
    from nngk.model.model import Model
    from nngk.model.storage import require_model

    require_model(model)
    tolerance = tolerance_of(strict, skip_broken)
    strangers = readable_images(unknown, tolerance)[0] if unknown else []
    if Path(data).is_dir() and (said := overlooked(Path(data))):
        say(said)
    rows = Printed(as_json, as_csv, EVALUATED)
    scores = evaluate_model(
        Model.load(model, device),
        data,
        split=split,
        task=task,
        data_dir=data_dir,
        crop_boxes=boxes,
        allow_missing=allow_missing,
        unknown=strangers,
        tolerance=tolerance,
        each=(lambda row: rows.put(row, [row], [])) if as_csv else None,
    )
    spans = intervals(scores)
    if as_json:
        click.echo(json.dumps(scores | {"intervals": spans}))
        return
    for name, value in scores.items():
        said = f"{value:7.2%}" if isinstance(value, float) else str(value)
        between = f"  (95% interval {spans[name][0]:.1%} to {spans[name][1]:.1%})" if name in spans else ""
        click.echo(printable(f"{name.replace('_', ' '):<18} {said}{between}"), err=as_csv)


@click.command("info")
@model_argument
@json_option
def info_command(model: Path, as_json: bool) -> None:
    """Show what a model folder holds: its network, classes, centres and σ, and the run behind it."""
    from nngk.model.model import Model

    m = Model.load(model, "cpu")  # nothing is computed
    counts = {name: int((m.labels == i).sum()) for i, name in enumerate(m.class_names)}
    facts = {
        "network": m.network.config,
        "dim": m.network.dim,
        "centres": len(m.centres),
        "sigma": m.sigma,
        "n_neighbours": m.n_neighbours,
        "classifier": m.classifier,
        "unknown": m.familiar.settings(),
        "classes": counts,
        **m.info,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(printable(f"{m}"))
    click.echo(printable(f"  network     {m.network.config['name']}, {m.network.dim} dimensions"))
    click.echo(
        printable(f"  classifier  {facts['classifier']}, {m.n_neighbours or 'all'} neighbours, sigma {m.sigma:.4g}")
    )
    click.echo(
        printable(f"  unknown     by {' and '.join(m.familiar.parts)}, {m.familiar.false_alarms:.1%} false alarms")
    )
    click.echo(printable(f"  trained on  {m.info.get('data', '?')} for the task {m.info.get('task', '?')}"))
    for name, value in m.info.get("test", {}).items():
        click.echo(printable(f"  test {name.replace('_', ' '):<18} {value:7.2%}"))
    if m.info.get("test") and "pruned_from" in m.info:
        click.echo(f"  measured before its {m.info['pruned_from']} centres were pruned to {len(m.centres)}")
    click.echo(printable(f"  {len(counts)} classes:"))
    for name, count in counts.items():
        click.echo(printable(f"    {count:6d}  {name}"))


def load_with_gallery(folder: Path, gallery: str | None, device: str) -> "Model | GalleryModel":
    """Return the model of a folder, over the references of a gallery where one is named."""
    from nngk.model.model import Model

    model = Model.load(folder, device)
    if gallery is None:
        return model
    from nngk.gallery import GalleryModel, open_gallery

    return GalleryModel(model, open_gallery(gallery, model))
