"""Oxford 102 Flowers: 8,189 pictures of 102 flower kinds (Nilsback and Zisserman, 2008)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nngk.data.datasets.matfile import read_mat
from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError


def _is_here(folder: Path) -> bool:
    return (folder / "imagelabels.mat").is_file() and (folder / "setid.mat").is_file()


def _read(root: Path) -> ListedImages:
    labels = read_mat(root / "imagelabels.mat", "labels").astype(np.int64) - 1  # MATLAB counts from 1
    splits = np.full(len(labels), "", dtype=object)
    for split, variable in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        ids = read_mat(root / "setid.mat", variable).astype(np.int64)
        if len(ids) and not (ids.min() >= 1 and ids.max() <= len(labels)):
            raise InputError(f"{root / 'setid.mat'} names image {ids.max()}, but imagelabels.mat has {len(labels)}.")
        splits[ids - 1] = split
    if (splits == "").any():
        raise InputError(f"{root / 'setid.mat'} leaves out image {int(np.argmax(splits == '')) + 1}: fetch it again.")
    return ListedImages(
        names=[f"jpg/image_{number:05d}.jpg" for number in range(1, len(labels) + 1)],
        labels=labels,
        # The dataset's files give the kinds no names.
        class_names=[f"flower {number:03d}" for number in range(1, int(labels.max()) + 2)],
        splits=[str(split) for split in splits],
    )


DATASET = Dataset(
    name="flowers102",
    title="Oxford 102 Flowers",
    folders=("flowers-102", "flowers102", "flowers"),
    is_here=_is_here,
    read=_read,
    images=8_189,
    classes=102,
    official={"train": 1_020, "val": 1_020, "test": 6_149},
    metric=(3_493, 4_696),
)
