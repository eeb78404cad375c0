"""Stanford Online Products: 120,053 pictures of 22,634 products (Song, Xiang, Jegelka and Savarese, 2016).

Its classes are split officially: 11,318 products train, and 11,316 others are searched among themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError

COLUMNS = ["image_id", "class_id", "super_class_id", "path"]


def _is_here(folder: Path) -> bool:
    return any(_list(folder, part) is not None for part in ("train", "test"))


def _list(root: Path, part: str) -> Path | None:
    name = f"Ebay_{part}.txt"
    return next((file for file in (root / name, root / "Info_Files" / name) if file.is_file()), None)


def _read(root: Path) -> ListedImages:
    names: list[str] = []
    products: list[int] = []
    kinds: dict[int, str] = {}
    splits: list[str] = []
    # Some copies have moved the folders of the pictures into one.
    below = "images/" if (root / "images").is_dir() else ""
    for part in ("train", "test"):
        for product, name in _rows(root, part):
            names.append(below + name)
            products.append(product)
            splits.append(part)
            kinds.setdefault(product, name.partition("/")[0].removesuffix("_final"))
    ordered = sorted(kinds)
    return ListedImages(
        names=names,
        labels=np.searchsorted(ordered, products).astype(np.int64),
        class_names=[f"{kinds[product]} {product}" for product in ordered],
        unseen=splits,
    )


def _rows(root: Path, part: str) -> list[tuple[int, str]]:
    """Return the product and the picture of every line of a list."""
    file = _list(root, part)
    if file is None:
        raise InputError(f"There is no Ebay_{part}.txt in {root}: Stanford Online Products comes with it.")
    head, *lines = file.read_text(encoding="utf-8").splitlines() or [""]
    if head.split() != COLUMNS:
        raise InputError(f"The first line of {file} is not {' '.join(COLUMNS)!r} but {head!r}.")
    rows = []
    for number, line in enumerate(lines, start=2):
        words = line.split()
        if len(words) == 4 and words[1].isdigit():
            rows.append((int(words[1]), words[3]))
        elif words:
            raise InputError(f"Line {number} of {file} is not {' '.join(COLUMNS)!r} but {line!r}.")
    return rows


DATASET = Dataset(
    name="sop",
    title="Stanford Online Products",
    folders=("Stanford_Online_Products", "sop", "online_products"),
    is_here=_is_here,
    read=_read,
    images=120_053,
    classes=22_634,
    official=None,
    metric=None,
    shares=(0.6, 0.2, 0.2),
    unseen={"train": 59_551, "test": 60_502},
    ks=(1, 10, 100, 1000),
)
