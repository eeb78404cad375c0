"""The published datasets in their official layouts, written by the tests."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

import published
from nngk.data import DATASETS, Images, ImageTable, check_folder, fitted, read_images, split
from nngk.errors import InputError, MissingExtra


def sizes(table: ImageTable) -> dict[str, int]:
    return dict(Counter(table.splits or ()))


@pytest.fixture(scope="module")
def whole_cars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published.write_cars(tmp_path_factory.mktemp("cars") / "stanford_cars")


@pytest.fixture(scope="module")
def whole_leaves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published.write_leafsnap(tmp_path_factory.mktemp("leaves") / "leafsnap-dataset", with_list=True)


@pytest.mark.thorough
def test_cars_classify_and_metric(whole_cars: Path) -> None:
    classify = read_images("cars196", data_dir=whole_cars.parent)
    # 30% of the 8,144 training images, class by class, make the validation part.
    assert sizes(classify)["test"] == 8_041
    assert sizes(classify)["train"] + sizes(classify)["val"] == 8_144
    assert sizes(classify)["val"] == pytest.approx(0.3 * 8_144, abs=1)
    train = classify.where("train").counts() + classify.where("val").counts()
    assert np.abs(classify.where("val").counts() - 0.3 * train).max() < 1
    assert classify.labels.min() == 0 and classify.labels.max() == 195 and len(classify.class_names) == 196
    # MATLAB's 1..50 and 3..45, both ends included, are 0 to 50 and 2 to 45 here.
    assert classify.boxes is not None and classify.boxes[0].tolist() == [0, 2, 50, 45]
    for squash in (False, True):
        clipped = fitted(classify.paths[0], 16, (0, 2, 50, 40), squash=squash)
        assert torch.equal(Images(classify, 16, squash=squash)[0], clipped)

    metric = read_images("cars196", data_dir=whole_cars, task="metric")
    assert sizes(metric) == {"train": 8_054, "test": 8_131} and metric.boxes is None
    parts = split(metric, "metric", 0.0)
    assert len(parts.train.class_names) == len(parts.test.class_names) == 98
    assert not set(parts.train.class_names) & set(parts.test.class_names)
    assert read_images("cars196", data_dir=whole_cars, task="metric", crop_boxes=True).boxes is not None
    assert read_images("cars196", data_dir=whole_cars, crop_boxes=False).boxes is None
    assert check_folder(whole_cars).complete


@pytest.mark.thorough
def test_cars_in_the_combined_layout(tmp_path: Path) -> None:
    root = published.write_cars_combined(tmp_path / "cars")
    metric, classify = (read_images("cars196", data_dir=tmp_path, task=task) for task in ("metric", "classify"))
    assert sizes(metric) == {"train": 8_054, "test": 8_131}
    assert sizes(classify)["test"] == 8_041 and len(classify) == 16_185
    assert classify.paths[0] == root / "car_ims" / "000001.jpg" and classify.labels[0] == 0
    assert classify.class_names[195] == "Make Model 195 2012"
    assert classify.boxes is not None and classify.boxes[7].tolist() == [0, 2, 50, 45]


@pytest.mark.thorough
def test_seeds_choose_the_validation_part_and_nothing_else(tmp_path: Path) -> None:
    root = published.write_cars(tmp_path / "cars", small=True)

    def parts(seed: int) -> list[str]:
        return list(read_images("cars196", data_dir=root, seed=seed, allow_missing=True).splits or ())

    assert parts(1) == parts(1) != parts(2)
    assert [s == "test" for s in parts(1)] == [s == "test" for s in parts(2)]


@pytest.mark.thorough
def test_a_copy_with_missing_images_says_which(tmp_path: Path) -> None:
    root = published.write_cars(tmp_path / "cars")
    complete = read_images("cars196", data_dir=root)
    for name in ("cars_train/00001.jpg", "cars_test/00002.jpg", "cars_test/00100.jpg"):
        (root / name).unlink()
    with pytest.raises(InputError) as caught:
        read_images("cars196", data_dir=root)
    for words in (
        "incomplete",
        "3 of 16,185",
        "2 class(es) (1 train, 2 test)",
        "'cars_train/00001.jpg'",
        "--allow-missing",
    ):
        assert words in str(caught.value)
    rest = read_images("cars196", data_dir=root, allow_missing=True)
    assert len(rest) == 16_182
    # Every image that is left is in the part it would have been in.
    before = dict(zip(complete.paths, complete.splits or ()))
    assert all(before[path] == part for path, part in zip(rest.paths, rest.splits or ()))
    report = check_folder(root)
    assert not report.complete and len(report.missing) == 3 and "3 of 16,185" in str(report)


@pytest.mark.thorough
def test_any_image_ending_is_found_by_the_listed_name(tmp_path: Path) -> None:
    root = published.write_cars(tmp_path / "cars", small=True, ending="webp")
    table = read_images("cars196", data_dir=root, allow_missing=True)
    assert len(table) == 8 * 196 and table.paths[0].name == "00001.webp"
    cub = published.write_cub(tmp_path / "CUB_200_2011", ending="png")
    (cub / "images" / "001.Bird_0" / "Bird_0_0000.txt").write_text("not an image of that name")
    assert {path.suffix for path in read_images("cub200", data_dir=cub, allow_missing=True).paths} == {".png"}


def test_cars_unpacked_twice_and_lists_beside_the_pictures(tmp_path: Path) -> None:
    root = published.write_cars(tmp_path / "cars", small=True)
    (root / "cars_train").rename(root / "moving")
    (root / "cars_train").mkdir()
    (root / "moving").rename(root / "cars_train" / "cars_train")
    (root / "devkit" / "cars_train_annos.mat").rename(root / "cars_train_annos.mat")
    assert len(read_images("cars196", data_dir=root, allow_missing=True)) == 8 * 196


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("cars_test_annos_withlabels.mat", "no cars_test_annos_withlabels.mat.*test labels"),
        ("devkit/cars_meta.mat", "no cars_meta.mat.*class names"),
    ],
)
@pytest.mark.thorough
def test_cars_without_a_list(tmp_path: Path, file: str, says: str) -> None:
    root = published.write_cars(tmp_path / "cars", small=True)
    (root / file).unlink()
    with pytest.raises(InputError, match=says):
        read_images("cars196", data_dir=root)
    assert not check_folder(root).complete


@pytest.mark.thorough
def test_damaged_and_wrong_mat_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = published.write_cars(tmp_path / "cars", small=True)
    file = root / "devkit" / "cars_train_annos.mat"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged"):
        read_images("cars196", data_dir=root)
    savemat(file, {"other": [1, 2]})
    with pytest.raises(InputError, match="no variable 'annotations'"):
        read_images("cars196", data_dir=root)
    savemat(file, {"annotations": published.structures(fname=["a.jpg"])})
    with pytest.raises(InputError, match="no field"):
        read_images("cars196", data_dir=root)
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with pytest.raises(MissingExtra, match=r"pip install 'nngk\[datasets\]'"):
        read_images("cars196", data_dir=root)


@pytest.mark.thorough
def test_leafsnap(whole_leaves: Path) -> None:
    table = read_images("leafsnap", data_dir=whole_leaves.parent)
    assert len(table) == 7_719 and len(table.class_names) == 184 and "acer_only_in_lab" not in table.class_names
    # 50%, 20% and 30%, of the whole and of every species.
    got = sizes(table)
    assert [got[part] for part in ("train", "val", "test")] == pytest.approx([3_859.5, 1_543.8, 2_315.7], abs=1)
    for part, share in (("train", 0.5), ("val", 0.2), ("test", 0.3)):
        assert np.abs(table.where(part).counts() - share * table.counts()).max() < 1
    metric = read_images("leafsnap", data_dir=whole_leaves, task="metric")
    assert [len(p.class_names) for p in split(metric, "metric", 0.0)] == [92, 0, 92]
    assert check_folder(whole_leaves).complete
    with pytest.raises(InputError, match="no bounding boxes"):
        read_images("leafsnap", data_dir=whole_leaves, crop_boxes=True)


@pytest.mark.thorough
def test_leafsnap_without_its_list_and_with_images_missing(tmp_path: Path) -> None:
    root = published.write_leafsnap(tmp_path / "leafsnap", with_list=False)
    assert len(read_images("leafsnap", data_dir=root)) == 7_719
    (root / "dataset/images/field/acer_005/5.jpg").unlink()
    with pytest.raises(InputError, match=r"lists name 7,718 images of 184 classes, the published dataset has 7,719"):
        read_images("leafsnap", data_dir=root)
    assert len(read_images("leafsnap", data_dir=root, allow_missing=True)) == 7_718


def test_leafsnap_list_names_what_is_missing(tmp_path: Path) -> None:
    root = published.write_leafsnap(tmp_path / "leafsnap", with_list=True)
    (root / "dataset/images/field/acer_005/5.jpg").unlink()
    with pytest.raises(InputError, match=r"1 of 7,719 .*'dataset/images/field/acer_005/5\.jpg'"):
        read_images("leafsnap", data_dir=root)
    (root / "leafsnap-dataset-images.txt").write_text("a\tb\n")
    with pytest.raises(InputError, match="not Leafsnap's list"):
        read_images("leafsnap", data_dir=root)


def test_cub_layout(tmp_path: Path) -> None:
    root = published.write_cub(tmp_path / "CUB_200_2011")
    with pytest.raises(InputError, match=r"60 images of 6 classes, the published dataset has 11,788 of 200"):
        read_images("cub200", data_dir=tmp_path)
    table = read_images("cub200", data_dir=tmp_path, allow_missing=True)
    assert sizes(table) == {"train": 24, "val": 6, "test": 30}
    assert table.class_names[0] == "001.Bird_0" and table.labels.min() == 0
    assert table.boxes is not None and table.boxes[0].tolist() == [10, 5, 40, 104]  # x, y, width, height in the file
    metric = read_images("cub200", data_dir=root, task="metric", allow_missing=True)
    assert sizes(metric) == {"train": 30, "test": 30} and metric.boxes is None
    assert read_images(root, task="metric", allow_missing=True).splits == metric.splits  # known without its name


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("bounding_boxes.txt", None, "no .*bounding_boxes.txt"),
        ("classes.txt", "one Bird\n", "Line 1 of"),
        ("train_test_split.txt", "1 1\n", "does not list the same images"),
        ("image_class_labels.txt", "".join(f"{i} 99\n" for i in range(1, 61)), "damaged"),
    ],
)
def test_cub_with_damaged_lists(tmp_path: Path, file: str, text: str | None, says: str) -> None:
    root = published.write_cub(tmp_path / "CUB_200_2011")
    (root / file).unlink() if text is None else (root / file).write_text(text)
    with pytest.raises(InputError, match=says):
        read_images("cub200", data_dir=root)


def test_flowers_layout(tmp_path: Path) -> None:
    root = published.write_flowers(tmp_path / "flowers-102")
    table = read_images("flowers102", data_dir=tmp_path, allow_missing=True)
    assert sizes(table) == {"train": 102, "val": 102, "test": 204} and table.boxes is None
    ids = loadmat(root / "setid.mat")["trnid"].reshape(-1)
    assert [path.name for path in table.where("train").paths] == [f"image_{i:05d}.jpg" for i in ids]
    savemat(root / "setid.mat", {"trnid": [1], "valid": [2], "tstid": [3]})
    with pytest.raises(InputError, match="leaves out image 4"):
        read_images("flowers102", data_dir=tmp_path)


def test_names_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNGK_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert list(DATASETS) == ["cub200", "cars196", "flowers102", "leafsnap", "inshop", "sop", "inat2018"]
    with pytest.raises(InputError, match=r"Where is the dataset cub200\?.*--data-dir"):
        read_images("cub200")
    with pytest.raises(InputError, match="There is no folder"):
        read_images("cub200", data_dir=tmp_path / "nowhere")
    with pytest.raises(InputError, match="nngk data download cub200"):
        read_images("cub200", data_dir=tmp_path)
    published.write_cub(tmp_path / "CUB_200_2011")
    monkeypatch.setenv("NNGK_DATA", str(tmp_path))
    assert len(read_images("cub200", allow_missing=True)) == 60


def test_a_copy_without_any_image(tmp_path: Path) -> None:
    root = published.write_cub(tmp_path / "CUB_200_2011")
    for path in (root / "images").rglob("*.jpg"):
        path.unlink()
    with pytest.raises(InputError, match="none of its images"):
        read_images("cub200", data_dir=root, allow_missing=True)
