"""A folder with a sub-folder a class, or train/, val/ and test/ folders of those."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nngk.data.table import ImageTable
from nngk.errors import InputError

EXTENSIONS = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "avif", "jp2", "tga"),
    )
)
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_name(text: str) -> str | None:
    """'train', 'val' or 'test' for any usual spelling of them.

    >>> split_name("Validation")
    'val'
    """
    return _SPLIT_NAMES.get(text.strip().lower())


def is_image(path: Path) -> bool:
    """Whether a name looks like a picture's; hidden files never do."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


def read_folder(folder: Path) -> ImageTable:
    """The table of an image folder, in sorted order."""
    classes = _subfolders(folder)
    roles = [split_name(sub.name) for sub in classes]
    if classes and all(roles) and "train" in roles:
        found = [(role, *item) for role, sub in zip(roles, classes) for item in _classes(sub)]
        splits: list[str] | None = [str(role) for role, _, _ in found]
        rows = [(name, path) for _, name, path in found]
    else:
        rows, splits = list(_classes(folder)), None
    if not rows:
        raise InputError(_nothing(folder))
    names = sorted({name for name, _ in rows})
    number = {name: label for label, name in enumerate(names)}
    return ImageTable(
        paths=[path for _, path in rows],
        labels=np.array([number[name] for name, _ in rows], dtype=np.int64),
        class_names=names,
        splits=splits,
        name=folder.resolve().name,
    )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))


def _classes(folder: Path) -> Iterator[tuple[str, Path]]:
    """(class name, path) of every picture at any depth below each class's folder."""
    for sub in _subfolders(folder):
        files = []
        for place, inner, names in os.walk(sub):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            files += [path for path in map(Path(place).joinpath, names) if is_image(path)]
        yield from ((sub.name, path) for path in sorted(files))


def _nothing(folder: Path) -> str:
    loose = sum(is_image(path) for path in folder.iterdir())
    if loose:
        return (
            f"{folder} has {loose} images but no sub-folders with images: put the images of each class into a "
            "sub-folder that bears its name, or list them in a CSV file with the columns path,label."
        )
    return f"{folder} has no images: expected a sub-folder for each class with its images inside."
