"""Published datasets by name."""

from __future__ import annotations

import os
from pathlib import Path

from nngk.data.datasets import cars, cub, flowers, inaturalist, inshop, leafsnap, online_products
from nngk.data.datasets.official import Dataset, locate, read_official
from nngk.data.table import ImageTable
from nngk.errors import InputError

_MODULES = (cub, cars, flowers, leafsnap, inshop, online_products, inaturalist)
DATASETS: dict[str, Dataset] = {module.DATASET.name: module.DATASET for module in _MODULES}


def require_name(name: str) -> Dataset:
    """Return the dataset of a name; raise InputError with the known names if there is none."""
    if name not in DATASETS:
        raise InputError(f"There is no dataset '{name}': the names are {', '.join(DATASETS)}.")
    return DATASETS[name]


def read_named(
    name: str, data_dir: Path | None, *, task: str, seed: int, allow_missing: bool, crop_boxes: bool | None
) -> ImageTable:
    """Return the table of a dataset by name, found in `data_dir` or in the folder that NNGK_DATA names."""
    dataset = require_name(name)
    folder = data_dir or (Path(os.environ["NNGK_DATA"]) if os.environ.get("NNGK_DATA") else None)
    if folder is None:
        raise InputError(
            f"Where is the dataset {name}? Give the folder that holds it as data_dir (--data-dir), or set NNGK_DATA."
        )
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}, where {dataset.title} was to be: check the path.")
    root = locate(dataset, folder)
    if root is None:
        raise InputError(
            f"There is no {dataset.title} in {folder}: expected {' or '.join(dataset.folders)} in its official layout. "
            f"Fetch it with: nngk data download {name} {folder}"
        )
    return read_official(dataset, root, task=task, seed=seed, allow_missing=allow_missing, crop_boxes=crop_boxes)


def reported_ks(name: str) -> tuple[int, ...]:
    """Return the K of Recall@K that are usual for the dataset of a name, or for any images.

    >>> reported_ks("sop"), reported_ks("my photos")
    ((1, 10, 100, 1000), (1, 2, 4, 8))
    """
    return DATASETS[name].ks if name in DATASETS else (1, 2, 4, 8)


def recognise(folder: Path) -> Dataset | None:
    """Return the dataset whose official layout a folder has, or None."""
    return next((dataset for dataset in DATASETS.values() if dataset.is_here(folder)), None)
