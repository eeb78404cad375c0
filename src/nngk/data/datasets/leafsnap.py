"""Leafsnap's field pictures: 7,719 of 184 tree species (Kumar and others, 2012)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from nngk.data.datasets.official import Dataset, ListedImages
from nngk.data.folder import is_image
from nngk.errors import InputError

_FIELD = "dataset/images/field"
_LIST = "leafsnap-dataset-images.txt"


def _is_here(folder: Path) -> bool:
    return (folder / _FIELD).is_dir() or (folder / _LIST).is_file()


def _read(root: Path) -> ListedImages:
    names = _listed(root / _LIST) if (root / _LIST).is_file() else _found(root)
    if not names:
        raise InputError(f"{root / _FIELD} has no images: Leafsnap keeps each species' pictures in a folder there.")
    species = [name.split("/")[-2] for name in names]
    class_names = sorted(set(species))
    number = {name: label for label, name in enumerate(class_names)}
    return ListedImages(names, np.array([number[name] for name in species], dtype=np.int64), class_names)


def _listed(file: Path) -> list[str]:
    """Return the field pictures that the dataset's own list names: it tells what a copy lacks."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream, delimiter="\t")
        if not {"image_path", "source"} <= set(rows.fieldnames or ()):
            raise InputError(
                f"{file} has no columns image_path and source: it is not Leafsnap's list; unpack it again."
            )
        return sorted(row["image_path"] for row in rows if row["source"].strip() == "field")


def _found(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in (root / _FIELD).glob("*/*") if is_image(path))


DATASET = Dataset(
    name="leafsnap",
    title="Leafsnap (field images)",
    folders=("leafsnap-dataset", "leafsnap"),
    is_here=_is_here,
    read=_read,
    images=7_719,
    classes=184,
    official=None,
    metric=None,
    shares=(0.5, 0.2, 0.3),
)
