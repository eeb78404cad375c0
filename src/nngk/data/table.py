"""The list of images that every reader returns and everything else walks over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nngk.errors import InputError

# Images of the gallery answer those of the test part; without any, test images answer each other.
SPLITS = ("train", "val", "test", "gallery")


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Paths, labels from 0, class names and, where known, splits and boxes; one row per image.

    >>> table = ImageTable([Path("a.png"), Path("b.png")], np.array([0, 1]), ["cat", "dog"])
    >>> len(table), len(table.select([1])), table.counts().tolist()
    (2, 1, [1, 1])
    """

    paths: list[Path]
    labels: np.ndarray  # (n,) int64
    class_names: list[str]
    splits: list[str] | None = None  # each one of SPLITS
    boxes: np.ndarray | None = None  # (n, 4) x1, y1, x2, y2 in pixels; a row of NaN is the whole image
    name: str = "images"
    task: str | None = None  # the task the splits were made for, where a dataset has one split for each

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        n = len(self.paths)
        if self.labels.shape != (n,):
            raise InputError(f"There are {n} paths but labels of shape {self.labels.shape}: give one label per path.")
        if n and not (self.labels.min() >= 0 and self.labels.max() < len(self.class_names)):
            raise InputError(
                f"Labels run from {self.labels.min()} to {self.labels.max()} but there are {len(self.class_names)} "
                "class names: labels count from 0 and index the names."
            )
        if self.splits is not None:
            if len(self.splits) != n:
                raise InputError(f"There are {n} paths but {len(self.splits)} splits: give one split per path.")
            unknown = sorted(set(self.splits) - set(SPLITS))
            if unknown:
                raise InputError(
                    f"Splits are 'train', 'val', 'test' or 'gallery', not {', '.join(map(repr, unknown))}."
                )
        if self.boxes is not None:
            object.__setattr__(self, "boxes", np.asarray(self.boxes, dtype=np.float32).reshape(-1, 4))
            if len(self.boxes) != n:
                raise InputError(f"There are {n} paths but {len(self.boxes)} boxes: give one box per path.")

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, indices: Sequence[int] | np.ndarray) -> ImageTable:
        """Return the rows at `indices` (or where a boolean mask is true), with all class names kept."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise InputError(f"A mask for {len(self)} images has shape ({len(self)},), not {chosen.shape}.")
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64).reshape(-1)
        return replace(
            self,
            paths=[self.paths[i] for i in chosen],
            labels=self.labels[chosen],
            splits=None if self.splits is None else [self.splits[i] for i in chosen],
            boxes=None if self.boxes is None else self.boxes[chosen],
        )

    def compact(self) -> ImageTable:
        """Return the same images without the classes that have none; the others are renumbered in order."""
        present = np.unique(self.labels)
        return replace(
            self,
            labels=np.searchsorted(present, self.labels),
            class_names=[self.class_names[c] for c in present],
        )

    def counts(self) -> np.ndarray:
        """Return the number of images of each class, (number of classes,)."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    def where(self, *splits: str) -> ImageTable:
        """Return the images of some splits; none of them when the table has no splits."""
        if self.splits is None:
            return self.select([])
        return self.select(np.array([s in splits for s in self.splits], dtype=bool))

    def asking(self) -> dict[str, np.ndarray]:
        """Return the rows of the queries and of the gallery, as metrics take them; nothing without a gallery.

        >>> splits = ["test", "gallery", "gallery"]
        >>> table = ImageTable([Path("a"), Path("b"), Path("c")], np.array([0, 0, 1]), ["cat", "dog"], splits)
        >>> {name: rows.tolist() for name, rows in table.asking().items()}
        {'queries': [0], 'gallery': [1, 2]}
        """
        answers = np.array([s == "gallery" for s in self.splits or ()], dtype=bool)
        return {"queries": np.flatnonzero(~answers), "gallery": np.flatnonzero(answers)} if answers.any() else {}

    def without_small_classes(self, minimum: int = 2) -> ImageTable:
        """Return only the classes with at least `minimum` images, renumbered."""
        return self.select(self.counts()[self.labels] >= minimum).compact()


def require_classes(table: ImageTable, source: str) -> ImageTable:
    """Return the table itself; raise InputError if it has images of fewer than two classes."""
    present = np.flatnonzero(table.counts())
    if not len(table):
        raise InputError(f"{source} has no images: expected images of at least two classes.")
    if len(present) < 2:
        raise InputError(
            f"{source} has images of one class only ('{table.class_names[present[0]]}'): to tell classes apart "
            "there must be at least two; add images of another class."
        )
    return table


def require_pairs(table: ImageTable, purpose: str) -> None:
    """Raise InputError if a class of the table has a single image.

    An example learns from other examples of its class, so a class of one has nothing to learn from.

    >>> table = ImageTable([Path("a"), Path("b"), Path("c")], np.array([0, 0, 1]), ["cat", "dog"])
    >>> require_pairs(table, "training")
    Traceback (most recent call last):
    nngk.errors.InputError: For training every class needs at least two images, but 1 class has only one: 'dog'. Add images to it, remove it, or go on without it with --skip-small-classes (table.without_small_classes() in Python).
    """  # noqa: E501
    single = [table.class_names[c] for c in np.flatnonzero(table.counts() == 1)]
    if len(single) == len(table) > 1:
        raise InputError(
            f"Each of the {len(single)} classes has a single image, so that there is nothing to tell it by: "
            f"{quoted(single, 3)}. A class needs a folder with several images; is this the folder that you meant?"
        )
    if single:
        have, them = ("classes have", "them") if len(single) > 1 else ("class has", "it")
        raise InputError(
            f"For {purpose} every class needs at least two images, but {len(single)} {have} only one: "
            f"{quoted(single)}. Add images to {them}, remove {them}, or go on without {them} with "
            "--skip-small-classes (table.without_small_classes() in Python)."
        )


def require_training_images(table: ImageTable) -> None:
    """Raise InputError if a class has no training image: it could never be answered.

    >>> table = ImageTable([Path("a"), Path("b")], np.array([0, 0]), ["cat", "dgo"])
    >>> require_training_images(table)
    Traceback (most recent call last):
    nngk.errors.InputError: 1 class(es) have no training image, only others: 'dgo'. Add some, remove the class, or check how its name is spelt.
    """  # noqa: E501
    absent = [table.class_names[c] for c in np.flatnonzero(table.counts() == 0)]
    if absent:
        raise InputError(
            f"{len(absent)} class(es) have no training image, only others: {quoted(absent)}. "
            "Add some, remove the class, or check how its name is spelt."
        )


def quoted(items: Sequence[object], limit: int = 5) -> str:
    """Return the first few items in quotes, and how many more there are: for messages."""
    shown = ", ".join(f"'{item}'" for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
