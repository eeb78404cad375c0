"""Measure a model on labelled images."""

from pathlib import Path
from typing import Any

import torch

from nngk.data import Images, ImageTable, read_images
from nngk.data.table import quoted
from nngk.errors import InputError
from nngk.metrics import classification_scores, evaluate, has_pairs
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
) -> dict[str, float | int]:
    """Return scores of a model on labelled images: retrieval, and accuracy where the task is 'classify'.

    A dataset's splits and its boxes are those that the model was trained with, unless ``crop_boxes`` says otherwise.
    """
    task = task or model.info.get("task", "classify")
    table = data if isinstance(data, ImageTable) else _read(model, data, data_dir, task, crop_boxes, allow_missing)
    if split != "all":
        table = table.where(split)
        if not len(table):
            raise InputError(f"The data have no images in the split '{split}'.")
    labels = torch.as_tensor(table.labels)
    if task == "classify":
        labels = _as_model_labels(model, table)
    with progress_task("embedding", len(table)) as advance:
        images = Images(table, model.network.input.resize, squash=model.network.input.squash)
        x = model.embed_source(images, advance=advance)
    scores: dict[str, float | int] = {"images": len(table)}
    if task == "classify":
        scores |= classification_scores(model.probabilities(x), labels)
        if not has_pairs(labels):  # one image per class: nothing to retrieve
            return scores
    return scores | evaluate(x, labels.to(x.device))


def _read(
    model: Model, data: Any, data_dir: Path | None, task: str, crop_boxes: bool | None, allow_missing: bool
) -> ImageTable:
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
