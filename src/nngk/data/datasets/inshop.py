"""In-Shop Clothes Retrieval: 52,712 pictures of 7,982 items (Liu, Luo, Qiu, Wang and Tang, DeepFashion, 2016).

Its classes are split officially: 3,997 items train; of the other 3,985 some pictures ask (query) and the others answer
(gallery). The copies that people have differ in where the list and the pictures lie.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError

LIST = "list_eval_partition.txt"
COLUMNS = ["image_name", "item_id", "evaluation_status"]
SPLITS = {"train": "train", "query": "test", "gallery": "gallery"}


def _is_here(folder: Path) -> bool:
    return _list(folder) is not None


def _list(root: Path) -> Path | None:
    """Return the list of In-Shop; other benchmarks have one of the same name with other columns."""
    for file in (root / "Eval" / LIST, root / LIST, root / "Anno" / LIST):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as lines:
                if [next(lines, ""), next(lines, "")][1].split() == COLUMNS:
                    return file
    return None


def _read(root: Path) -> ListedImages:
    file = _list(root)
    if file is None:
        raise InputError(f"There is no {LIST} of In-Shop in {root}: unpack the dataset again.")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()[2:], start=3):
        words = line.split()
        if len(words) == 3 and words[2] in SPLITS:
            rows.append(words)
        elif words:
            raise InputError(f"Line {number} of {file} is not 'image item train|query|gallery' but {line!r}.")
    items = sorted({item for _, item, _ in rows})
    number_of = {item: label for label, item in enumerate(items)}
    # The list says img/…; img.zip is unpacked into the folder Img in some copies.
    below = "Img/" if (root / "Img" / "img").is_dir() else ""
    return ListedImages(
        names=[below + name for name, _, _ in rows],
        labels=np.array([number_of[item] for _, item, _ in rows], dtype=np.int64),
        class_names=items,
        unseen=[SPLITS[status] for _, _, status in rows],
    )


DATASET = Dataset(
    name="inshop",
    title="In-Shop Clothes Retrieval",
    folders=("In-shop Clothes Retrieval Benchmark", "inshop", "Inshop_Clothes", "in-shop"),
    is_here=_is_here,
    read=_read,
    images=52_712,
    classes=7_982,
    official=None,
    metric=None,
    shares=(0.6, 0.2, 0.2),
    unseen={"train": 25_882, "test": 14_218, "gallery": 12_612},
    ks=(1, 10, 20, 30),
)
