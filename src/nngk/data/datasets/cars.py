"""Stanford Cars: 16,185 pictures of 196 car models (Krause, Stark, Deng and Fei-Fei, 2013), in both its layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nngk.data.datasets.matfile import field, read_mat
from nngk.data.datasets.official import Dataset, ListedImages
from nngk.errors import InputError

_BOX = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def _is_here(folder: Path) -> bool:
    return _find(folder, "cars_train_annos.mat") is not None or (folder / "cars_annos.mat").is_file()


def _find(root: Path, file: str) -> Path | None:
    """Return the path of a list, which lies in devkit/ in some copies and beside the pictures in others."""
    return next((place / file for place in (root / "devkit", root) if (place / file).is_file()), None)


def _read(root: Path) -> ListedImages:
    combined = (root / "cars_annos.mat").is_file()
    # With both lists at hand, the pictures that are there decide.
    if combined and ((root / "car_ims").is_dir() or _find(root, "cars_train_annos.mat") is None):
        return _combined(root)
    return _two_parts(root)


def _combined(root: Path) -> ListedImages:
    file = root / "cars_annos.mat"
    records = read_mat(file, "annotations")
    return ListedImages(
        names=[str(name) for name in field(records, "relative_im_path", file)],
        labels=_labels(records, file),
        class_names=[str(name) for name in read_mat(file, "class_names")],
        splits=["test" if test else "train" for test in field(records, "test", file)],
        boxes=_boxes(records, file),
    )


def _two_parts(root: Path) -> ListedImages:
    names: list[str] = []
    splits: list[str] = []
    labels, boxes = [], []
    for split, list_name in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        file = _find(root, list_name)
        if file is None:
            raise InputError(
                f"There is no {list_name} in {root} or its devkit: it holds the {split} labels (cars_test_annos.mat "
                "has none); put it there."
            )
        records = read_mat(file, "annotations")
        # Some copies were unpacked into a folder of the same name.
        folder = f"cars_{split}/cars_{split}" if (root / f"cars_{split}/cars_{split}").is_dir() else f"cars_{split}"
        names += [f"{folder}/{name}" for name in field(records, "fname", file)]
        splits += [split] * len(records)
        labels.append(_labels(records, file))
        boxes.append(_boxes(records, file))
    meta = _find(root, "cars_meta.mat")
    if meta is None:
        raise InputError(f"There is no cars_meta.mat in {root / 'devkit'}: it holds the class names; put it there.")
    class_names = [str(name) for name in read_mat(meta, "class_names")]
    return ListedImages(names, np.concatenate(labels), class_names, splits, np.concatenate(boxes))


def _labels(records: np.ndarray, file: Path) -> np.ndarray:
    return np.array(field(records, "class", file), dtype=np.int64) - 1  # MATLAB counts from 1


def _boxes(records: np.ndarray, file: Path) -> np.ndarray:
    corners = np.array([field(records, side, file) for side in _BOX], dtype=np.float32).T
    # The first pixel is 1 and the last one belongs to the box.
    return corners - np.array([1, 1, 0, 0], dtype=np.float32)


DATASET = Dataset(
    name="cars196",
    title="Stanford Cars196",
    folders=("stanford_cars", "cars196", "cars", "StanfordCars"),
    is_here=_is_here,
    read=_read,
    images=16_185,
    classes=196,
    official={"train": 8_144, "test": 8_041},
    metric=(8_054, 8_131),
    validation=0.3,
    crop=True,
)
