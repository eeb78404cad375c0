"""Commands that use a model as it is: ``classify``, ``search``, ``evaluate`` and ``info``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nngk.cli.options import (
    ALLOW_MISSING,
    boxes_option,
    data_dir_option,
    device_option,
    folder_or_file,
    gallery_option,
    json_option,
)
from nngk.errors import InputError, printable

if TYPE_CHECKING:
    from nngk.gallery import GalleryModel
    from nngk.model import Answer, Model

model_argument = click.argument("model", type=folder_or_file)
images_argument = click.argument("images", nargs=-1, required=True, type=folder_or_file)


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
    type=float,
    help="Answer 'unknown' above this unknown score, from 0 to 1.  [default: 0.5, the model's own threshold]",
)
@gallery_option()
@device_option
@json_option
def classify_command(
    model: Path,
    images: tuple[Path, ...],
    top: int,
    evidence: int,
    reject: float | None,
    gallery: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Say what IMAGES (files or folders) show: the likeliest classes, the training images behind the answer with their
    share in it, and how many photos of known classes look at least as strange. Where almost none does, the answer is
    'unknown' with the nearest class; 'nngk calibrate' sets where that begins."""
    paths = image_files(images)
    m = load_with_gallery(model, gallery, device)
    answers = m.classify(paths, evidence=evidence)
    if reject is not None:
        answers = [replace(a, is_unknown=a.unknown > reject) for a in answers]
    if as_json:
        click.echo(json.dumps([_row(path, answer) for path, answer in zip(paths, answers)]))
        return
    for path, answer in zip(paths, answers):
        click.echo(printable(f"{path}: {answer}  ({answer.familiarity()})"))
        for name, probability in list(answer.probabilities.items())[:top]:
            click.echo(printable(f"  {probability:7.2%}  {name}"))
        for e in answer.evidence:
            # A softmax layer says its answer without them; they are what the kernels would have gone by.
            why = "because of" if m.classifier == "kernels" else "near"
            click.echo(printable(f"    {why} {e.image} ({e.label}), {e.share:.1%}"))


def _row(path: Path, answer: "Answer") -> dict[str, Any]:
    """Return an answer for JSON: 'label' is 'unknown' where that is the answer, 'nearest' always a known class."""
    label = "unknown" if answer.is_unknown else answer.label
    return {"image": str(path), **answer.to_dict(), "label": label, "nearest": answer.label}


@click.command("search")
@model_argument
@images_argument
@click.option("-k", metavar="N", type=int, help="Show the N most similar images.  [default: 10, or all if fewer]")
@gallery_option()
@device_option
@json_option
def search_command(
    model: Path, images: tuple[Path, ...], k: int | None, gallery: str | None, device: str, as_json: bool
) -> None:
    """Find the training images that are most similar to IMAGES (files or folders), nearest first."""
    paths = image_files(images)
    m = load_with_gallery(model, gallery, device)
    found = m.search(paths, max(1, min(10, m.images)) if k is None else k)
    if as_json:
        rows = [{"image": str(p), "found": [vars(e) for e in hits]} for p, hits in zip(paths, found)]
        click.echo(json.dumps(rows))
        return
    for path, hits in zip(paths, found):
        click.echo(printable(f"{path}:"))
        for e in hits:
            click.echo(printable(f"  {e.distance:8.4f}  {e.label}  {e.image}"))


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
@device_option
@json_option
def evaluate_command(
    model: Path,
    data: str,
    split: str,
    task: str | None,
    data_dir: Path | None,
    boxes: bool | None,
    allow_missing: bool,
    unknown: tuple[Path, ...],
    device: str,
    as_json: bool,
) -> None:
    """Measure a model on labelled images in DATA (a folder, a CSV file, or the name of a dataset): accuracy and
    calibration if the classes are the model's, and retrieval (Recall@K, MAP@R, NMI) among the images. With --unknown
    also how well unknown classes are told from known ones (AUROC, false alarms where 95% are detected, OSCR)."""
    strangers = image_files(unknown)
    from nngk.model.evaluate import evaluate_model
    from nngk.model.model import Model

    scores = evaluate_model(
        Model.load(model, device),
        data,
        split=split,
        task=task,
        data_dir=data_dir,
        crop_boxes=boxes,
        allow_missing=allow_missing,
        unknown=strangers,
    )
    if as_json:
        click.echo(json.dumps(scores))
        return
    for name, value in scores.items():
        said = f"{value:7.2%}" if isinstance(value, float) else str(value)
        click.echo(printable(f"{name.replace('_', ' '):<18} {said}"))


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


def image_files(given: tuple[Path, ...]) -> list[Path]:
    """Return files as they are, and in place of a folder the images in it."""
    from nngk.data.folder import images_below

    out: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(images_below(path))
            if not inside:
                raise InputError(f"The folder {path} holds no images.")
            out += inside
        elif path.exists():
            out.append(path)
        else:
            raise InputError(f"There is no image {path}: check the path.")
    return out
