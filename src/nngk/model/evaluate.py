"""Measure a model on labelled images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.data import Images, ImageTable, read_images
from nngk.data.table import quoted
from nngk.errors import InputError
from nngk.metrics import classification_scores, evaluate, has_pairs, open_set_scores
from nngk.model.features import Described
from nngk.model.model import Model
from nngk.progress import task as progress_task


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
) -> dict[str, float | int]:
    """Return scores of a model on labelled images: retrieval, and accuracy where the task is 'classify'.

    A dataset's splits and its boxes are those that the model was trained with, unless ``crop_boxes`` says otherwise.
    ``unknown`` are images of classes that the model does not know, such as paths: then the scores say how well it
    tells them apart too (:func:`unknown_scores`).
    """
    task = task or model.info.get("task", "classify")
    if len(unknown) and task != "classify":
        raise InputError("Images of unknown classes are told from known ones: measure them with --task classify.")
    table = (
        data if isinstance(data, ImageTable) else read_for_model(model, data, data_dir, task, crop_boxes, allow_missing)
    )
    if split != "all":
        table = table.where(split)
        if not len(table):
            raise InputError(f"The data have no images in the split '{split}'.")
    labels = torch.as_tensor(table.labels)
    if task == "classify":
        labels = _as_model_labels(model, table)
    with progress_task("embedding", len(table)) as advance:
        images = Images(table, model.network.input.resize, squash=model.network.input.squash)
        seen = model.describe_source(images, advance=advance)
    x = seen.embeddings
    scores: dict[str, float | int] = {"images": len(table)}
    if task == "classify":
        probabilities = model.probabilities(x)
        scores |= classification_scores(probabilities, labels)
        if len(unknown):
            scores |= unknown_scores(model, seen, probabilities.argmax(1) == labels, model.describe(unknown))
        if not has_pairs(labels):  # one image per class: nothing to retrieve
            return scores
    return scores | evaluate(x, labels.to(x.device))


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
