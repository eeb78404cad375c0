"""Going on from a saved model: its network, its classes and its photos, together with more of them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data import ImageTable, stratified
from nngk.data.table import quoted
from nngk.errors import InputError
from nngk.model.model import Model
from nngk.training.everything import joined
from nngk.training.settings import Settings


def settings_of_model(folder: Path, settings: Settings, named: Collection[str] | None) -> Settings:
    """Return the settings with the model's network in place of theirs. Raise InputError if another one was named."""
    config = Model.load(folder, "cpu").network.config
    kept: dict[str, Any] = {name: config[name] for name in ("dim", "layers", "dropout", "layer_norm", "normalise")}
    if config["pool"] is not None:  # None: the network gives a vector, whatever is set
        kept["pool"] = config["pool"]
    spec = config["input"]
    kept |= {"resize": spec["resize"], "crop_size": spec["size"], "squash": spec.get("squash", True)}
    kept |= {"network": config["name"], "wide": None, "whiten": 0.0}
    other = [name for name in named or () if name in kept and getattr(settings, name) != kept[name]]
    if other:
        told = ", ".join(f"{name} {kept[name]!r}" for name in other)
        raise InputError(f"The model in {folder} has {told}: go on with that, or train a new one without --from.")
    return replace(settings, **kept, weights=str(folder))


def photos_with_those_of_model(
    folder: Path, table: ImageTable, settings: Settings, allow_missing: bool = False
) -> ImageTable:
    """Return the table and the photos of a model, with classes merged by name, all of them split.

    The network knows the model's photos: they train, and only others are held out to choose and to measure.
    """
    model = Model.load(folder, "cpu")
    known = ImageTable(
        [Path(source) for source in model.sources], model.labels.cpu().numpy(), model.class_names, name=table.name
    )
    there = np.array([path.is_file() for path in known.paths], dtype=bool)
    if not there.all() and not allow_missing:
        gone = [path for path, found in zip(known.paths, there) if not found]
        raise InputError(
            f"{len(gone)} of the {len(known)} photos of the model in {folder} are not where they were: {quoted(gone)}. "
            "Put them back, or go on without them with --allow-missing."
        )
    known = known.select(there)
    seen = {path.resolve() for path in known.paths}
    new = table.select(np.array([path.resolve() not in seen for path in table.paths], dtype=bool))
    if table.boxes is not None:  # the boxes of photos that both have
        places = {path.resolve(): box for path, box in zip(table.paths, table.boxes)}
        whole = np.full(4, np.nan, dtype=np.float32)
        known = replace(
            known, boxes=np.array([places.get(path.resolve(), whole) for path in known.paths]).reshape(-1, 4)
        )
    together = joined(known, new)
    parts = ["train"] * len(known) + _parts(new, set(known.class_names), settings)
    return replace(together, splits=parts, task=settings.task)


def _parts(new: ImageTable, known: Collection[str], settings: Settings) -> list[str]:
    """Return a part for each new photo: as the table says, else by shares of the classes' photos, or of the classes."""
    if new.splits is not None:
        return list(new.splits)
    shares = (1 - settings.val_fraction - settings.test_fraction, settings.val_fraction, settings.test_fraction)
    groups = new.labels
    if settings.task == "metric":  # whole classes, which the model must not know
        groups = np.zeros(len(new.class_names), dtype=np.int64)
    parts = np.full(len(groups), "train", dtype=object)
    for name, chosen in zip(("train", "val", "test"), stratified(groups, shares, settings.seed)):
        parts[chosen] = name
    if settings.task == "metric":
        parts = np.where([name in known for name in new.class_names], "train", parts)[new.labels]
    return [str(part) for part in parts]
