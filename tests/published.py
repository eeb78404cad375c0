"""The published datasets' layouts, with their files and sizes and one small picture many times over."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def same_picture(root: Path, names: Sequence[str]) -> None:
    """One picture under many names, as links."""
    root.mkdir(parents=True, exist_ok=True)
    original = root / ".picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(original)
    for folder in {(root / name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        os.link(original, root / name)


def spread(count: int, first: int, last: int) -> list[int]:
    """`count` labels over the classes from `first` up to `last`, as evenly as can be."""
    return [first + i % (last - first) for i in range(count)]


def structures(**columns: Sequence[object]) -> np.ndarray:
    """A MATLAB structure array, 1×n."""
    records = np.empty((1, len(next(iter(columns.values())))), dtype=[(name, "O") for name in columns])
    for name, values in columns.items():
        for i, value in enumerate(values):
            records[0, i][name] = value
    return records


def car_columns(labels: Sequence[int]) -> dict[str, Sequence[object]]:
    n = len(labels)
    return {
        "bbox_x1": [np.uint16(1)] * n,
        "bbox_y1": [np.uint16(3)] * n,
        "bbox_x2": [np.uint16(50)] * n,
        "bbox_y2": [np.uint16(45)] * n,  # five pixels below the picture
        "class": [np.uint8(label + 1) for label in labels],
    }


CAR_NAMES = np.array([[f"Make Model {i:03d} 2012" for i in range(196)]], dtype=object)


def car_labels(small: bool = False) -> tuple[list[int], list[int]]:
    """Labels of the training and the test part with the published sizes (or four images per class and part)."""
    if small:
        return spread(4 * 196, 0, 196), spread(4 * 196, 0, 196)
    return spread(4_054, 0, 98) + spread(4_090, 98, 196), spread(4_000, 0, 98) + spread(4_041, 98, 196)


def write_cars(root: Path, small: bool = False, ending: str = "jpg") -> Path:
    """cars_train, cars_test, devkit and cars_test_annos_withlabels.mat."""
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": CAR_NAMES})
    files = []
    for split, labels, file in zip(
        ("train", "test"), car_labels(small), ("devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat")
    ):
        names = [f"{i:05d}.jpg" for i in range(1, len(labels) + 1)]
        savemat(root / file, {"annotations": structures(**car_columns(labels), fname=names)})
        files += [f"cars_{split}/{Path(name).with_suffix('.' + ending)}" for name in names]
    same_picture(root, files)
    return root


def write_cars_combined(root: Path, small: bool = False) -> Path:
    """car_ims and cars_annos.mat."""
    root.mkdir(parents=True)
    train, test = car_labels(small)
    names = [f"car_ims/{i:06d}.jpg" for i in range(1, len(train) + len(test) + 1)]
    flags = [np.uint8(0)] * len(train) + [np.uint8(1)] * len(test)
    records = structures(relative_im_path=names, **car_columns(train + test), test=flags)
    savemat(root / "cars_annos.mat", {"annotations": records, "class_names": CAR_NAMES})
    same_picture(root, names)
    return root


def write_leafsnap(root: Path, with_list: bool) -> Path:
    """dataset/images/field with 7,719 images of 184 species, a lab folder, and the list if wanted."""
    species = [f"acer_{i:03d}" for i in range(184)]
    names = [f"dataset/images/field/{species[s]}/{i}.jpg" for i, s in enumerate(spread(7_719, 0, 184))]
    lab = [f"dataset/images/lab/{name}/lab.jpg" for name in ("acer_000", "acer_only_in_lab")]
    same_picture(root, names + lab)
    if with_list:
        rows = ["file_id\timage_path\tsegmented_path\tspecies\tsource"]
        for i, name in enumerate(names + lab):
            source, kind = name.split("/")[2:4]
            seen = name.replace("images", "segmented", 1)
            rows.append(f"{i}\t{name}\t{seen}\t{kind.replace('_', ' ').capitalize()}\t{source}")
        (root / "leafsnap-dataset-images.txt").write_text("\n".join(rows) + "\n")
    return root


def write_cub(root: Path, classes: int = 6, each: int = 10, ending: str = "jpg") -> Path:
    """The layout of CUB-200-2011, smaller."""
    root.mkdir(parents=True)
    names = [f"{c + 1:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg" for c in range(classes) for i in range(each)]
    n = len(names)
    write = {
        "images.txt": [f"{i + 1} {name}" for i, name in enumerate(names)],
        "image_class_labels.txt": [f"{i + 1} {i // each + 1}" for i in range(n)],
        "train_test_split.txt": [f"{i + 1} {int(i % each < each // 2)}" for i in range(n)],
        "bounding_boxes.txt": [f"{i + 1} 10.0 5.0 30.0 99.0" for i in range(n)],
        "classes.txt": [f"{c + 1} {c + 1:03d}.Bird_{c}" for c in range(classes)],
    }
    for file, lines in write.items():
        (root / file).write_text("\n".join(lines) + "\n")
    same_picture(root, [f"images/{Path(name).with_suffix('.' + ending)}" for name in names])
    return root


def write_flowers(root: Path, classes: int = 102, each: int = 4) -> Path:
    """The layout of Oxford 102 Flowers, smaller."""
    n = classes * each
    root.mkdir(parents=True)
    ids = np.arange(1, n + 1)
    savemat(root / "imagelabels.mat", {"labels": np.array([[i % classes + 1 for i in range(n)]], dtype=np.uint8)})
    savemat(
        root / "setid.mat", {"trnid": ids[:classes], "valid": ids[classes : 2 * classes], "tstid": ids[2 * classes :]}
    )
    same_picture(root, [f"jpg/image_{i:05d}.jpg" for i in ids])
    return root


def write_inshop(root: Path, items: int = 8, each: int = 6, *, below: str = "", home: str = "Eval") -> Path:
    """The layout of In-Shop Clothes Retrieval, smaller: half of the items train, the others ask and answer."""
    rows = [
        (f"img/WOMEN/Dresses/id_{item:08d}/{n:02d}_1_front.jpg", f"id_{item:08d}", _status(item, n, items, each))
        for item in range(1, items + 1)
        for n in range(each)
    ]
    (root / home).mkdir(parents=True, exist_ok=True)
    lines = [str(len(rows)), "image_name item_id evaluation_status", *("    ".join(row) for row in rows)]
    (root / home / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    same_picture(root, [below + name for name, _, _ in rows])
    return root


def _status(item: int, n: int, items: int, each: int) -> str:
    return "train" if item <= items // 2 else "query" if n < each // 2 else "gallery"


def write_products(root: Path, products: int = 8, each: int = 5) -> Path:
    """The layout of Stanford Online Products, smaller."""
    root.mkdir(parents=True)
    kinds, names, image = ("bicycle", "toaster"), [], 0
    for part, chosen in (("train", range(1, products // 2 + 1)), ("test", range(products // 2 + 1, products + 1))):
        lines = ["image_id class_id super_class_id path"]
        for product in chosen:
            kind = product % 2
            for n in range(each):
                image += 1
                names.append(f"{kinds[kind]}_final/{1000 + product}_{n}.JPG")
                lines.append(f"{image} {product} {kind + 1} {names[-1]}")
        (root / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    same_picture(root, names)
    return root


def write_inaturalist(root: Path, species: int = 8, each: int = 6, *, by_class: bool = True) -> Path:
    """The layout of iNaturalist 2018, smaller: two thirds of each species' images train."""
    root.mkdir(parents=True)
    listed: dict[str, list[tuple[int, int, str]]] = {"train2018": [], "val2018": []}
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for label in range(species):
        for n in range(each):
            name = f"train_val2018/{('Aves', 'Plantae')[label % 2]}/{label}/{label:02d}{n:02d}.jpg"
            listed["train2018" if n < 2 * each // 3 else "val2018"].append((100 * label + n, label, name))
            parts["train" if label < species // 2 else "test"].append(name)
    for file, rows in listed.items():
        content = {
            "images": [{"id": image, "file_name": name, "width": 60, "height": 40} for image, _, name in rows],
            "annotations": [{"id": i, "image_id": i, "category_id": label} for i, label, _ in rows],
            "categories": [{"id": label, "name": str(label)} for label in range(species)],
        }
        (root / f"{file}.json").write_text(json.dumps(content))
    if by_class:
        (root / "Inat_dataset_splits").mkdir()
        for part, names in parts.items():
            (root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt").write_text("\n".join(names) + "\n")
    same_picture(root, [name for names in parts.values() for name in names])
    return root
