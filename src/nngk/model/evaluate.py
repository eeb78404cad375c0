"""Measure a model on labelled images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.data import Images, ImageTable, read_images
from nngk.data.broken import Tolerance
from nngk.data.datasets.by_name import reported_ks
from nngk.data.table import quoted
from nngk.errors import InputError
from nngk.metrics import classification_scores, evaluate, has_pairs, open_set_scores, wilson_interval
from nngk.model.features import Described
from nngk.model.model import Model
from nngk.progress import task as progress_task

FEW_IMAGES = 2000  # for which a share is uncertain by a point or more


def evaluate_model(
    model: Model,
    data: Any,
    *,
    split: str = "all",
    task: str | None = None,
    data_dir: Path | None = None,
    crop_boxes: bool | None = None,
    allow_missing: bool = False,
    unknown: Sequence[Any] = (),
    tolerance: Tolerance | None = None,
    each: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, float | int]:
    """Return scores of a model on labelled images: retrieval, and accuracy where the task is 'classify'.

    A dataset's splits and its boxes are those that the model was trained with, unless ``crop_boxes`` says otherwise.
    ``unknown`` are images of classes that the model does not know, such as paths: then the scores say how well it
    tells them apart too (:func:`unknown_scores`). Images that cannot be read are left out as far as ``tolerance``
    allows. ``each`` gets the answer for each image as it comes.
    """
    task = task or model.info.get("task", "classify")
    if len(unknown) and task != "classify":
        raise InputError("Images of unknown classes are told from known ones: measure them with --task classify.")
    table = (
        data if isinstance(data, ImageTable) else read_for_model(model, data, data_dir, task, crop_boxes, allow_missing)
    )
    if split != "all":
        table = table.where(*(("test", "gallery") if split == "test" else (split,)))
        if not len(table):
            raise InputError(f"The data have no images in the split '{split}'.")
    labels = torch.as_tensor(table.labels)
    if task == "classify":
        labels = _as_model_labels(model, table)
    tolerance = tolerance or Tolerance()
    spec = model.network.input
    images = Images(table, spec.resize, squash=spec.squash, tolerant=not tolerance.strict)
    seen = _described(model, images, labels if task == "classify" else None, each)
    tolerance.accept(dict(sorted(images.broken.items())), len(table))
    kept = torch.ones(len(table), dtype=torch.bool)
    kept[list(images.broken)] = False
    labels, seen = labels[kept], Described(*(rows[kept.to(rows.device)] for rows in seen))
    x = seen.embeddings
    scores: dict[str, float | int] = {"images": len(x)}
    if task == "classify":
        probabilities = model.probabilities(x)
        scores |= classification_scores(probabilities, labels)
        if len(unknown):
            scores |= unknown_scores(model, seen, probabilities.argmax(1) == labels, model.describe(unknown))
        if not has_pairs(labels):  # one image per class: nothing to retrieve
            return scores
    # Among all images everybody may answer; in the test part a gallery does, where there is one.
    asking: dict[str, Any] = table.select(kept.numpy()).asking() if split == "test" else {}
    return scores | evaluate(x, labels.to(x.device), ks=reported_ks(table.name), **asking)


def _described(
    model: Model, images: Images, labels: Tensor | None, each: Callable[[dict[str, Any]], object] | None
) -> Described:
    """Return the images as the network sees them; show on the way how many answers were right so far."""
    parts, right, done = list[Described](), 0, 0
    with progress_task("measuring", len(images)) as advance:
        for seen in model.described_parts(images):
            places = range(done, done + len(seen.embeddings))
            parts.append(seen)
            done, note = done + len(places), None
            if labels is not None:
                answered = model.probabilities(seen.embeddings).argmax(1)
                right += int((answered == labels[list(places)]).sum())
                note = f"accuracy so far {right / done:.1%}"
            advance(len(places), note=note)
            if each is not None:
                _tell(model, images, labels, seen, places, each)
    return Described(*(torch.cat(rows) for rows in zip(*parts)))


def _tell(
    model: Model,
    images: Images,
    labels: Tensor | None,
    seen: Described,
    places: range,
    each: Callable[[dict[str, Any]], object],
) -> None:
    """Give the answers for some images to ``each``; without labels of the model's, what their table calls them."""
    for place, answer in zip(places, model.answers(seen.embeddings, 0, features=seen.features)):
        if place in images.broken:
            continue
        table = images.table
        truth = table.class_names[table.labels[place]] if labels is None else model.class_names[int(labels[place])]
        said = "unknown" if answer.is_unknown else answer.label
        row = {"image": str(table.paths[place]), "label": truth, "answer": said, "nearest": answer.label}
        each(row | {"probability": answer.probability, "unknown": answer.unknown, "right": answer.label == truth})


def intervals(scores: dict[str, Any], images: int | None = None) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of the scores that are shares of images, where these are few enough to matter.

    >>> {name: [round(end, 3) for end in span] for name, span in intervals({"accuracy": 0.9, "nmi": 0.5}, 30).items()}
    {'accuracy': [0.744, 0.965]}
    """
    count = int(scores.get("images", 0)) if images is None else images
    if not 0 < count <= FEW_IMAGES:
        return {}
    return {name: wilson_interval(scores[name], count) for name in ("accuracy", "top5_accuracy") if name in scores}


def unknown_scores(model: Model, known: Described, right: Tensor, unknown: Described) -> dict[str, float | int]:
    """Return how well images of unknown classes are told from known ones, of which ``right`` are classified right.

    'flagged' and 'flagged_known' are the shares of both that the model calls unknown; 'auroc',
    'false_alarms_at_95' (known images flagged where 95% of the unknown ones are) and 'oscr' need no threshold.
    """
    scores = [model.unknown(*described) for described in (known, unknown)]
    measures = open_set_scores(scores[0], right, scores[1])
    return {
        "unknown_images": len(unknown.embeddings),
        "flagged": float((scores[1] > 0.5).double().mean()),
        "flagged_known": float((scores[0] > 0.5).double().mean()),
        "auroc": measures["auroc"],
        "false_alarms_at_95": measures["false_alarms"],
        "oscr": measures["oscr"],
    }


def read_for_model(
    model: Model, data: Any, data_dir: Path | None, task: str, crop_boxes: bool | None, allow_missing: bool
) -> ImageTable:
    """Return the table of labelled images, with the splits and the boxes that the model was trained with."""
    boxes = model.info.get("boxes") if crop_boxes is None else crop_boxes
    seed = model.info.get("settings", {}).get("seed", 0)
    return read_images(data, data_dir=data_dir, task=task, seed=seed, allow_missing=allow_missing, crop_boxes=boxes)


def _as_model_labels(model: Model, table: ImageTable) -> torch.Tensor:
    """Return the table's labels in the model's numbering."""
    present = table.compact()
    foreign = [name for name in present.class_names if name not in model.class_names]
    if foreign:
        raise InputError(
            f"The model does not know {quoted(foreign)}. Add such classes with 'nngk add', leave their images out, or "
            "measure retrieval alone with --task metric."
        )
    order = torch.tensor([model.class_names.index(name) for name in present.class_names])
    return order[torch.as_tensor(present.labels)]
