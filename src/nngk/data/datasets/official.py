"""What the published datasets have in common: lists of images, official sizes, splits by task, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nngk.data.folder import is_image, subfolders
from nngk.data.splits import stratified
from nngk.data.table import SPLITS, ImageTable, quoted
from nngk.errors import InputError


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The images that a dataset's own files name, whether they are there or not."""

    names: list[str]  # relative to the dataset's folder
    labels: np.ndarray  # (n,) from 0
    class_names: list[str]
    splits: list[str] | None = None  # the official ones
    boxes: np.ndarray | None = None  # (n, 4) x1, y1, x2, y2
    unseen: list[str] | None = None  # the official splits by class, for the task 'metric'


@dataclass(frozen=True)
class Dataset:
    """A published dataset: how to know it, how to read it, and how large it is."""

    name: str
    title: str
    folders: tuple[str, ...]  # the names it unpacks to
    is_here: Callable[[Path], bool]
    read: Callable[[Path], ListedImages]
    images: int
    classes: int
    official: Mapping[str, int] | None  # images in each official split
    metric: tuple[int, int] | None  # images in the first and in the second half of the classes
    shares: tuple[float, float, float] | None = None  # train, val, test where there is no official split
    validation: float = 0.0  # the paper's share of the official training part
    crop: bool = False  # the paper classifies what is inside the boxes
    unseen: Mapping[str, int] | None = None  # images in each part of the official split by class, where there is one
    lists: str = ""  # where that split comes from, if not with the images
    ks: tuple[int, ...] = (1, 2, 4, 8)  # the K of Recall@K that the field reports


def locate(dataset: Dataset, folder: Path) -> Path | None:
    """Return the dataset's own folder, `folder` itself or one inside it; None if neither is."""
    inside = [folder / name for name in dataset.folders]
    if folder.is_dir():
        inside += subfolders(folder)
    for place in (folder, *inside):
        if dataset.is_here(place):
            return place
    return None


def read_official(
    dataset: Dataset, root: Path, *, task: str, seed: int, allow_missing: bool, crop_boxes: bool | None
) -> ImageTable:
    """Return the table of a published dataset, split for the task as in the paper."""
    listed = dataset.read(root)
    paths = resolve(root, listed.names)
    there = np.array([path is not None for path in paths], dtype=bool)
    faults = shortfalls(dataset, listed, there)
    if faults and not allow_missing:
        raise InputError(
            f"The {dataset.title} in {root} is incomplete: {'; '.join(faults)}. Unpack or download it again, or go on "
            "with what is there with allow_missing (--allow-missing)."
        )
    if not there.any():
        raise InputError(f"The {dataset.title} in {root} has none of its images: unpack or download it again.")
    crop = (dataset.crop and task == "classify") if crop_boxes is None else crop_boxes
    if crop and listed.boxes is None:
        raise InputError(f"{dataset.title} has no bounding boxes: leave crop_boxes off (--no-boxes).")
    table = ImageTable(
        paths=[path or root / name for path, name in zip(paths, listed.names)],
        labels=listed.labels,
        class_names=listed.class_names,
        splits=task_splits(dataset, listed, task, seed),
        boxes=listed.boxes if crop else None,
        name=dataset.name,
        task=task,
    )
    # Split before anything is left out: a missing image must not move the others to another part.
    return table.select(there)


def task_splits(dataset: Dataset, listed: ListedImages, task: str, seed: int) -> list[str]:
    """Return each image's split: by classes for 'metric', official with validation for 'classify'."""
    if task == "metric" and dataset.unseen is not None:
        if listed.unseen is None:
            raise InputError(f"{dataset.title} needs its split by class for the task 'metric': put {dataset.lists}.")
        return listed.unseen
    if task == "metric":
        half = len(listed.class_names) // 2
        return ["train" if label < half else "test" for label in listed.labels]
    if listed.splits is None:
        assert dataset.shares is not None
        splits = np.empty(len(listed.names), dtype=object)
        for name, part in zip(("train", "val", "test"), stratified(listed.labels, dataset.shares, seed)):
            splits[part] = name
        return [str(split) for split in splits]
    official = np.array(listed.splits, dtype=object)
    if dataset.validation:
        train = np.flatnonzero(official == "train")
        _, val = stratified(listed.labels[train], (1 - dataset.validation, dataset.validation), seed)
        official[train[val]] = "val"
    return [str(split) for split in official]


def resolve(root: Path, names: Sequence[str]) -> list[Path | None]:
    """Return the file of each listed image, whatever image ending it has; None where there is no such file."""
    folders: dict[Path, dict[str, str]] = {}
    found: list[Path | None] = []
    for name in names:
        path = root / name
        if path.parent not in folders:
            folders[path.parent] = _files(path.parent)
        files = folders[path.parent]
        actual = files.get(path.name) or files.get(path.stem)
        found.append(path.parent / actual if actual else None)
    return found


def _files(folder: Path) -> dict[str, str]:
    """Return a folder's file names, by themselves and by their stems."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    stems = {Path(name).stem: name for name in names if is_image(Path(name))}
    return {**stems, **{name: name for name in names}}


def shortfalls(dataset: Dataset, listed: ListedImages, there: np.ndarray) -> list[str]:
    """Return what a copy lacks of the published dataset, in words; an empty list when it is complete."""
    faults = []
    if len(listed.names) != dataset.images or len(listed.class_names) != dataset.classes:
        faults.append(
            f"its lists name {len(listed.names):,} images of {len(listed.class_names)} classes, the published dataset "
            f"has {dataset.images:,} of {dataset.classes}"
        )
    gone = np.flatnonzero(~there).tolist()
    if gone:
        classes = len({int(listed.labels[i]) for i in gone})
        faults.append(
            f"{len(gone):,} of {len(there):,} listed images are missing, from {classes} class(es)"
            f"{_by_split(listed, gone)}: {quoted([listed.names[i] for i in gone], 3)}"
        )
    return faults + (_odd_sizes(dataset, listed) if not faults else [])


def _by_split(listed: ListedImages, rows: Sequence[int]) -> str:
    splits = listed.splits or listed.unseen
    if splits is None:
        return ""
    counts = {name: sum(splits[i] == name for i in rows) for name in SPLITS}
    return f" ({', '.join(f'{count:,} {name}' for name, count in counts.items() if count)})"


def _odd_sizes(dataset: Dataset, listed: ListedImages) -> list[str]:
    """Return how lists of the right length are divided differently from the published ones."""
    faults = []
    for official, splits in ((dataset.official, listed.splits), (dataset.unseen, listed.unseen)):
        for name, expected in (official or {}).items():
            count = expected if splits is None else splits.count(name)
            if count != expected:
                faults.append(f"the official {name} part has {count:,} images instead of {expected:,}")
    if dataset.metric is not None:
        first = int((listed.labels < len(listed.class_names) // 2).sum())
        if (first, len(listed.labels) - first) != dataset.metric:
            faults.append(
                f"the halves of the classes have {first:,} and {len(listed.labels) - first:,} images instead of "
                f"{dataset.metric[0]:,} and {dataset.metric[1]:,}"
            )
    return faults
