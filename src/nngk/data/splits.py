"""Seeded splits: stratified for classification, by class for metric learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nngk.data.table import ImageTable
from nngk.defaults import TEST_FRACTION, VAL_FRACTION
from nngk.errors import InputError

TASKS = ("classify", "metric")


class Split(NamedTuple):
    """Three tables; a part that was not asked for is empty."""

    train: ImageTable
    val: ImageTable
    test: ImageTable


def require_task(task: str) -> None:
    """Raise InputError if a task is not known."""
    if task not in TASKS:
        raise InputError(f"The task is 'classify' or 'metric', not {task!r}.")


def stratified(labels: Sequence[int] | np.ndarray, fractions: Sequence[float], seed: int) -> list[np.ndarray]:
    """Return index arrays, one per fraction, each with its share of every class.

    A class's share is exact up to one image, and so are the totals as far as that allows. A class too small for
    all parts serves the first one, the training part, with two images before any other part gets one.

    >>> train, test = stratified([0] * 8 + [1] * 4, (0.75, 0.25), seed=0)
    >>> len(train), len(test), [int((part < 8).sum()) for part in (train, test)]
    (9, 3, [6, 2])
    """
    labels = np.asarray(labels, dtype=np.int64)
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.ndim != 1 or not len(shares) or not (shares >= 0).all() or not abs(shares.sum() - 1) <= 1e-6:
        raise InputError(f"The fractions of a split are not negative and add up to one, unlike {list(fractions)}.")
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in shares]
    owed = np.zeros(len(shares))  # what each part should have had by now, less what it got
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        owed += shares * len(members)
        sizes = _sizes(len(members), shares, owed)
        owed -= sizes
        for part, chosen in zip(parts, np.split(members, np.cumsum(sizes)[:-1])):
            part.append(chosen)
    return [np.sort(np.concatenate([np.empty(0, dtype=np.int64), *part])) for part in parts]


def _sizes(count: int, shares: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Return how many of a class's images each part gets."""
    quota = shares * count
    sizes = np.floor(quota + 1e-9).astype(np.int64)
    while sizes.sum() < count:
        # A part may be rounded up once; among those that may, the one that is owed most.
        open_to = (sizes < quota - 1e-9) & (shares > 0)
        sizes[np.argmax(np.where(open_to, owed - sizes, -np.inf))] += 1
    for part in np.flatnonzero(shares > 0):
        need = min(2 if part == 0 else 1, count)
        while sizes[part] < need:
            # Others keep one, and the training part two: taking more would only move the gap.
            spare = sizes - np.where(np.arange(len(shares)) == 0, 2, 1)
            spare[part] = -1
            if part == 0:
                spare = np.where(np.arange(len(shares)) == 0, -1, sizes)
            giver = int(np.argmax(spare))
            if spare[giver] <= 0:
                break
            sizes[giver] -= 1
            sizes[part] += 1
    return sizes


def class_disjoint(labels: Sequence[int] | np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return index arrays (kept, held out) with no class in common; `fraction` is the share of classes held out.

    >>> kept, held_out = class_disjoint([0, 0, 1, 1, 2, 2, 3, 3], 0.5, seed=0)
    >>> len(kept), len(held_out), set(kept // 2) & set(held_out // 2)
    (4, 4, set())
    """
    labels = np.asarray(labels, dtype=np.int64)
    if not 0 <= fraction < 1:
        raise InputError(f"The share of classes to hold out is from 0 up to, not including, 1; not {fraction}.")
    classes = np.unique(labels)
    count = 0 if fraction == 0 else max(1, round(fraction * len(classes)))
    if count and len(classes) - count < 1:
        raise InputError(
            f"Of {len(classes)} class(es) none is left when {count} are held out: add classes or hold out fewer."
        )
    held = np.random.default_rng(seed).permutation(classes)[:count]
    out = np.isin(labels, held)
    return np.flatnonzero(~out), np.flatnonzero(out)


def split(
    table: ImageTable,
    task: str = "classify",
    val_fraction: float = VAL_FRACTION,
    test_fraction: float = TEST_FRACTION,
    seed: int = 0,
) -> Split:
    """Return training, validation and test tables.

    A table with splits keeps them; only a missing validation part is taken from its training part. Without splits
    the fractions are shares of the whole: of every class's images to 'classify', of the classes for 'metric'.
    To 'classify', the parts share their class names; for 'metric', each part has its own classes.

    >>> from pathlib import Path
    >>> table = ImageTable([Path(f"{i}.png") for i in range(20)], np.arange(20) % 2, ["cat", "dog"])
    >>> [len(part) for part in split(table, "classify", 0.1, 0.2)]
    [14, 2, 4]
    """
    require_task(task)
    if not (val_fraction >= 0 and test_fraction >= 0 and val_fraction + test_fraction < 1):
        raise InputError(
            f"The validation and test fractions are not negative and leave something for training; "
            f"{val_fraction} and {test_fraction} do not."
        )
    if table.task not in (None, task) and table.splits is not None:
        raise InputError(
            f"The splits of {table.name} were made for the task '{table.task}', not for '{task}': read it again "
            f"(or pack it again) with the task '{task}'."
        )
    if table.splits is None:
        train, val, test = _fresh(table, task, val_fraction, test_fraction, seed)
    else:
        train, val, test = table.where("train"), table.where("val"), table.where("test", "gallery")
        if not len(train):
            raise InputError(f"The splits of {table.name} have no training images: mark some as 'train'.")
        if not len(val) and val_fraction:
            train, val, _ = _fresh(train, task, val_fraction, 0.0, seed)
    if task == "metric":
        return Split(train.compact(), val.compact(), test.compact())
    return Split(train, val, test)


def _fresh(table: ImageTable, task: str, val_fraction: float, test_fraction: float, seed: int) -> Split:
    if task == "classify":
        shares = (1 - val_fraction - test_fraction, val_fraction, test_fraction)
        train, val, test = (table.select(part) for part in stratified(table.labels, shares, seed))
        return Split(train, val, test)
    classes = len(np.unique(table.labels))
    rest, test_rows = class_disjoint(table.labels, test_fraction, seed)
    # The validation share is of the whole, and is drawn from what the test part left.
    left = len(np.unique(table.labels[rest]))
    kept, held = class_disjoint(table.labels[rest], min(val_fraction * classes / left, 1 - 1e-9), seed + 1)
    train_rows, val_rows = rest[kept], rest[held]
    if len(np.unique(table.labels[train_rows])) < 2:
        raise InputError(
            f"The {classes} classes of {table.name} are too few to hold some out for validation and testing and to "
            "train on two others: add classes, set the fractions to 0, or use the task 'classify'."
        )
    return Split(table.select(train_rows), table.select(val_rows), table.select(test_rows))
