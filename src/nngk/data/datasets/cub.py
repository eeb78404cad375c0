"""CUB-200-2011: 11,788 pictures of 200 bird species (Wah, Branson, Welinder, Perona and Belongie, 2011)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError


def _is_here(folder: Path) -> bool:
    return (folder / "images.txt").is_file() and (folder / "image_class_labels.txt").is_file()


def _read(root: Path) -> ListedImages:
    images = _pairs(root / "images.txt")
    labels = _pairs(root / "image_class_labels.txt")
    training = _pairs(root / "train_test_split.txt")
    boxes = _pairs(root / "bounding_boxes.txt")
    classes = _pairs(root / "classes.txt")
    for file, rows in (("image_class_labels", labels), ("train_test_split", training), ("bounding_boxes", boxes)):
        if rows.keys() != images.keys():
            raise InputError(f"{root / file}.txt does not list the same images as images.txt: unpack CUB again.")
    # Ids and labels count from 1 in the files.
    number = {identity: position for position, identity in enumerate(sorted(classes, key=int))}
    ids = sorted(images, key=int)
    try:
        left_top_size = np.array([[float(value) for value in boxes[i].split()] for i in ids]).reshape(-1, 4)
        label_array = np.array([number[labels[i].strip()] for i in ids], dtype=np.int64)
    except (ValueError, KeyError) as error:
        raise InputError(f"The lists in {root} are damaged ({error}): unpack CUB again.") from error
    corners = np.concatenate([left_top_size[:, :2], left_top_size[:, :2] + left_top_size[:, 2:]], axis=1)
    return ListedImages(
        names=[f"images/{images[i]}" for i in ids],
        labels=label_array,
        class_names=[classes[c] for c in sorted(classes, key=int)],
        splits=["train" if training[i].strip() == "1" else "test" for i in ids],
        boxes=corners.astype(np.float32),
    )


def _pairs(file: Path) -> dict[str, str]:
    """Return the lines of a file, each an id and its value, as a dictionary."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"There is no {file}: CUB-200-2011 comes with it; unpack the dataset again.") from None
    rows = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            identity, _, rest = line.strip().partition(" ")
            if not identity.isdigit() or not rest:
                raise InputError(f"Line {number} of {file} is not 'id value' but {line!r}: unpack CUB again.")
            rows[identity] = rest
    return rows


DATASET = Dataset(
    name="cub200",
    title="CUB-200-2011",
    folders=("CUB_200_2011",),
    is_here=_is_here,
    read=_read,
    images=11_788,
    classes=200,
    official={"train": 5_994, "test": 5_794},
    metric=(5_864, 5_924),
    validation=0.2,
    crop=True,
)
