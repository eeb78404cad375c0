"""iNaturalist 2018: 461,939 pictures of 8,142 species (Van Horn and others, CVPR 2018).

The competition's lists (train2018.json and val2018.json) split the pictures of every species. Metric learning uses the
split by species of Brown, Xie, Kalogeiton and Zisserman (Smooth-AP, ECCV 2020) over the pictures of both: 5,690 species
train, and 2,452 others are searched among themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError

LISTS = {"train": "train2018.json", "test": "val2018.json"}
BY_CLASS = {"train": "Inaturalist_train_set1.txt", "test": "Inaturalist_test_set1.txt"}


def _is_here(folder: Path) -> bool:
    return all((folder / name).is_file() for name in LISTS.values())


def _read(root: Path) -> ListedImages:
    names: list[str] = []
    species: list[int] = []
    splits: list[str] = []
    for part, file in LISTS.items():
        pictures, of = _annotated(root / file)
        names += pictures
        species += of
        splits += [part] * len(pictures)
    folders = {label: Path(name).parent.parts[-2:] for name, label in zip(names, species)}
    ordered = sorted(folders)
    return ListedImages(
        names=names,
        labels=np.searchsorted(ordered, species).astype(np.int64),
        class_names=["/".join(folders[label]) for label in ordered],
        splits=splits,
        unseen=_by_class(root, names),
    )


def _annotated(file: Path) -> tuple[list[str], list[int]]:
    """Return the pictures of a list and the numbers of their species."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        species = {row["image_id"]: int(row["category_id"]) for row in content["annotations"]}
        pictures = [str(row["file_name"]) for row in content["images"]]
        return pictures, [species[row["id"]] for row in content["images"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not a list of iNaturalist 2018 ({error!r}): unpack it again.") from None


def _by_class(root: Path, names: list[str]) -> list[str] | None:
    """Return each picture's part of the split by species; None where its lists are not there."""
    part_of: dict[str, str] = {}
    for part, file in BY_CLASS.items():
        found = next((p for p in (root / "Inat_dataset_splits" / file, root / file) if p.is_file()), None)
        if found is None:
            return None
        part_of |= {line.strip(): part for line in found.read_text(encoding="utf-8").splitlines() if line.strip()}
    absent = [name for name in names if name not in part_of]
    if absent:
        raise InputError(f"The lists {' and '.join(BY_CLASS.values())} leave out {len(absent):,} images: {absent[0]}.")
    return [part_of[name] for name in names]


DATASET = Dataset(
    name="inat2018",
    title="iNaturalist 2018",
    folders=("iNaturalist2018", "inat2018", "inaturalist", "inat_2018"),
    is_here=_is_here,
    read=_read,
    images=461_939,
    classes=8_142,
    official={"train": 437_513, "test": 24_426},
    metric=None,
    validation=0.1,
    unseen={"train": 325_846, "test": 136_093},
    lists=f"{BY_CLASS['train']} and {BY_CLASS['test']} (of github.com/Andrew-Brown1/Smooth_AP) beside train2018.json",
    ks=(1, 4, 16, 32),
)
