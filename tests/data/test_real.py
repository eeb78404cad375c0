"""The real CUB-200-2011 and Oxford 102 Flowers, in the folder that NNGK_DATA names."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nngk.data import Images, ImageTable, centre_crop, check_folder, pack, read_images, read_pack, split

HOME = Path(os.environ.get("NNGK_DATA", ""))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not os.environ.get("NNGK_DATA"), reason="NNGK_DATA names no folder with real images"),
]


def sizes(table: ImageTable) -> dict[str, int]:
    return dict(Counter(table.splits or ()))


def test_cub_for_metric_learning() -> None:
    table = read_images("cub200", data_dir=HOME, task="metric")
    assert len(table) == 11_788 and len(table.class_names) == 200 and table.boxes is None
    assert table.labels.min() == 0 and table.labels.max() == 199
    assert sizes(table) == {"train": 5_864, "test": 5_924}
    parts = split(table, "metric", 0.0)
    assert [len(part.class_names) for part in parts] == [100, 0, 100]
    assert parts.train.class_names[0] == "001.Black_footed_Albatross"
    assert parts.test.class_names[0].startswith("101.") and parts.test.labels.min() == 0


def test_cub_for_classification() -> None:
    table = read_images("cub200", data_dir=HOME, task="classify")
    got = sizes(table)
    assert got["test"] == 5_794 and got["train"] + got["val"] == 5_994
    assert got["val"] == pytest.approx(0.2 * 5_994, abs=1)
    both = table.where("train").counts() + table.where("val").counts()
    assert np.abs(table.where("val").counts() - 0.2 * both).max() < 1
    # The folder of every image says the class that the lists say.
    assert all(path.parent.name == table.class_names[label] for path, label in zip(table.paths, table.labels))


def test_cub_boxes_are_inside_once_clipped() -> None:
    table = read_images("cub200", data_dir=HOME)
    assert table.boxes is not None and table.boxes.shape == (11_788, 4)
    assert (table.boxes[:, 2:] > table.boxes[:, :2]).all() and table.boxes.min() >= 0
    sides = np.array([Image.open(path).size for path in table.paths])
    beyond = (table.boxes[:, 2:] - sides).max(axis=1)
    over = np.flatnonzero(beyond > 1)
    assert 8 <= len(over) <= 12  # a few run over the edge, more or less by a pixel depending on the copy's size
    assert centre_crop(64)(Images(table, 64).batch(over)).shape == (len(over), 3, 64, 64)


def test_flowers() -> None:
    table = read_images("flowers102", data_dir=HOME)
    assert sizes(table) == {"train": 1_020, "val": 1_020, "test": 6_149}
    assert len(table.class_names) == 102 and table.labels.min() == 0 and table.labels.max() == 101
    assert (table.where("train").counts() == 10).all() and (table.where("val").counts() == 10).all()
    metric = read_images("flowers102", data_dir=HOME, task="metric")
    assert sizes(metric) == {"train": 3_493, "test": 4_696}


@pytest.mark.parametrize(("name", "images", "grey"), [("CUB_200_2011", 11_788, 8), ("flowers-102", 8_189, 0)])
def test_every_image_opens_and_check_agrees(name: str, images: int, grey: int) -> None:
    report = check_folder(HOME / name, decode=True)
    assert report.complete and report.decoded and report.images == images
    assert not report.missing and not report.broken
    colourless = [int(note.split()[0]) for note in report.notes if "no colour" in note]
    # Eight birds are stored in grey; one more has been stored in colour without having any.
    assert sum(colourless) in (grey, grey + 1)


def test_a_real_pack(tmp_path: Path) -> None:
    table = read_images("cub200", data_dir=HOME)
    some = table.select(np.arange(0, len(table), 97))
    images, again = read_pack(pack(some, tmp_path / "packed", 96))
    assert again.splits == some.splits and again.task == "classify" and again.boxes is None
    assert torch.equal(images.batch(range(len(some))).pixels, Images(some, 96).batch(range(len(some))).pixels)
    assert check_folder(tmp_path / "packed", decode=True).complete
