"""Datasets that come with a split by class: In-Shop, Stanford Online Products and iNaturalist, in small copies."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import forked
import published
from nngk import Model
from nngk.data import DATASETS, check_folder, read_images, split
from nngk.data.datasets.download import download
from nngk.errors import InputError

WRITERS = {
    "inshop": published.write_inshop,
    "sop": published.write_products,
    "inat2018": published.write_inaturalist,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sizes of the small copies be the published ones."""
    sizes = {
        "inshop": {"images": 48, "classes": 8, "unseen": {"train": 24, "test": 12, "gallery": 12}},
        "sop": {"images": 40, "classes": 8, "unseen": {"train": 20, "test": 20}},
        "inat2018": {
            "images": 48,
            "classes": 8,
            "official": {"train": 32, "test": 16},
            "unseen": {"train": 24, "test": 24},
        },
    }
    for name, changes in sizes.items():
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], **changes))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", WRITERS)
def test_the_official_classes_train_and_others_are_searched(name: str, tmp_path: Path) -> None:
    root = WRITERS[name](tmp_path / DATASETS[name].folders[0])
    report = check_folder(tmp_path).parts[0] if name != "inshop" else check_folder(root)
    assert report.kind == name and report.complete, str(report)
    table = read_images(name, data_dir=tmp_path, task="metric")
    assert dict(Counter(table.splits or ())) == DATASETS[name].unseen
    parts = split(table, "metric", 0.0)
    assert len(parts.train.class_names) == len(parts.test.class_names) == 4
    assert not set(parts.train.class_names) & set(parts.test.class_names)
    assert all(path.is_file() for path in table.paths)
    classify = read_images(name, data_dir=tmp_path, task="classify")
    assert {"train", "test"} <= set(classify.splits or ()) <= {"train", "val", "test"}
    assert len(set(classify.where("train").labels.tolist())) == 8


def test_published_sizes_are_those_of_their_papers() -> None:
    for name in WRITERS:
        dataset = DATASETS[name]
        assert dataset.unseen is not None and sum(dataset.unseen.values()) == dataset.images
    assert (DATASETS["inshop"].classes, DATASETS["sop"].classes) == (3_997 + 3_985, 11_318 + 11_316)
    assert DATASETS["inat2018"].classes == 5_690 + 2_452
    assert sum((DATASETS["inat2018"].official or {}).values()) == DATASETS["inat2018"].images


@pytest.mark.usefixtures("small")
def test_inshop_has_queries_and_a_gallery(tmp_path: Path) -> None:
    root = published.write_inshop(tmp_path / "inshop", below="Img/", home="Anno")
    table = read_images("inshop", data_dir=root, task="metric")
    tested = split(table, "metric", 0.25).test
    asking = tested.asking()
    assert len(asking["queries"]) == len(asking["gallery"]) == 12
    assert all("/00_1_" in str(tested.paths[i]) or i % 6 < 3 for i in asking["queries"])
    assert table.where("train").asking() == {}
    assert table.paths[0].parent.parent.parent.parent == root / "Img" / "img"


def test_other_benchmarks_with_a_list_of_that_name_are_not_inshop(tmp_path: Path) -> None:
    (tmp_path / "Eval").mkdir()
    file = tmp_path / "Eval" / "list_eval_partition.txt"
    for text in ("", "1\n", "000001.jpg 0\n000002.jpg 1\n", "2\nimage_pair_name_1 image_pair_name_2 item_id status\n"):
        file.write_text(text)
        assert not DATASETS["inshop"].is_here(tmp_path)


def test_damaged_lists_say_where(tmp_path: Path) -> None:
    shop = published.write_inshop(tmp_path / "shop")
    with (shop / "Eval" / "list_eval_partition.txt").open("a") as file:
        file.write("img/x.jpg id_1 lost\n")
    with pytest.raises(InputError, match=r"Line 51 of .* is not 'image item train\|query\|gallery'"):
        read_images("inshop", data_dir=shop, task="metric")
    sop = published.write_products(tmp_path / "sop")
    (sop / "Ebay_test.txt").write_text("image_id class_id super_class_id path\n1 one 1 a.JPG\n")
    with pytest.raises(InputError, match=r"Line 2 of .*Ebay_test.txt"):
        read_images("sop", data_dir=sop, task="metric")
    (sop / "Ebay_test.txt").unlink()
    with pytest.raises(InputError, match=r"There is no Ebay_test.txt"):
        read_images("sop", data_dir=sop, task="metric")
    inat = published.write_inaturalist(tmp_path / "inat")
    (inat / "val2018.json").write_text('{"images": []}')
    with pytest.raises(InputError, match=r"val2018.json is not a list of iNaturalist 2018"):
        read_images("inat2018", data_dir=inat)


@pytest.mark.usefixtures("small")
def test_inaturalist_without_the_split_by_species_classifies_only(tmp_path: Path) -> None:
    root = published.write_inaturalist(tmp_path / "inat2018", by_class=False)
    assert len(read_images("inat2018", data_dir=root).where("test")) == 16
    with pytest.raises(InputError, match=r"split by class.*Inaturalist_train_set1.txt .*Smooth_AP"):
        read_images("inat2018", data_dir=root, task="metric")
    (root / "Inaturalist_train_set1.txt").write_text("")
    (root / "Inaturalist_test_set1.txt").write_text("\n")
    with pytest.raises(InputError, match="leave out 48 images"):
        read_images("inat2018", data_dir=root, task="metric")


@pytest.mark.usefixtures("small")
def test_a_missing_image_is_named_with_its_part(tmp_path: Path) -> None:
    root = published.write_inshop(tmp_path / "inshop")
    next(iter(sorted((root / "img").rglob("id_00000008/05*.jpg")))).unlink()
    with pytest.raises(InputError, match=r"1 of 48 listed images are missing.*\(1 gallery\).*--allow-missing"):
        read_images("inshop", data_dir=root, task="metric")
    assert len(read_images("inshop", data_dir=root, task="metric", allow_missing=True)) == 47


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_not_fetched_says_where_it_is_and_how_it_is_unpacked(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(mmlab|github)\.[\w.]+/.*Unpack it into .* as .*nngk data check"):
        download(name, tmp_path)


def test_a_list_may_name_queries_and_a_gallery(tmp_path: Path) -> None:
    published.same_picture(tmp_path, [f"{i}.jpg" for i in range(6)])
    rows = [f"{i}.jpg,{'ab'[i % 2]},{part}" for i, part in enumerate(["train"] * 2 + ["query"] * 2 + ["Gallery"] * 2)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    table = read_images(tmp_path / "list.csv")
    assert table.splits == ["train", "train", "test", "test", "gallery", "gallery"]


def test_the_json_of_inaturalist_is_read_whatever_else_it_has(tmp_path: Path) -> None:
    root = published.write_inaturalist(tmp_path / "inat")
    content = json.loads((root / "train2018.json").read_text())
    (root / "train2018.json").write_text(json.dumps(content | {"info": {"year": 2018}, "licenses": []}))
    assert DATASETS["inat2018"].read(root).class_names[:2] == ["Aves/0", "Plantae/1"]


@pytest.mark.thorough
def test_training_and_measuring_ask_the_gallery(tmp_path: Path) -> None:
    """As a user meets it: the test images ask, the gallery answers, with the K that the field reports."""
    root = published.write_inshop(tmp_path / "inshop", each=8)
    for path in sorted((root / "img").rglob("*.jpg")):  # pictures of an item are alike
        item = int(path.parent.name[3:])
        path.unlink()
        Image.new("RGB", (40, 30), (30 * item % 256, 200 - 20 * item, 25 * item)).save(path)
    words = ["inshop", "--data-dir", str(tmp_path), "--task", "metric", "--allow-missing"]
    quick = ["--preset", "quick", "--crop-size", "16", "--device", "cpu", "--quiet"]
    done = forked.run(["-m", "nngk", "train", *words, *quick, "--out", str(tmp_path / "model")])
    assert done.returncode == 0, done.stderr
    measured = forked.run(["-m", "nngk", "evaluate", str(tmp_path / "model"), *words, "--split", "test", "--json"])
    assert measured.returncode == 0, measured.stderr
    scores = json.loads(measured.stdout)
    assert scores["images"] == 32 and {"recall@1", "recall@10", "recall@20", "recall@30"} <= set(scores)
    model = Model.load(tmp_path / "model")
    assert model.info["test"]["recall@1"] == pytest.approx(scores["recall@1"], abs=1e-6)
    table = read_images("inshop", data_dir=tmp_path, task="metric", allow_missing=True).where("test", "gallery")
    x = model.embed([str(path) for path in table.paths])
    asks = [i for i, part in enumerate(table.splits or ()) if part == "test"]
    answers = [i for i, part in enumerate(table.splits or ()) if part == "gallery"]
    apart = torch.cdist(x[asks].double(), x[answers].double())
    right = sum(table.labels[answers[int(row.argmin())]] == table.labels[i] for i, row in zip(asks, apart))
    assert scores["recall@1"] == pytest.approx(right / len(asks), abs=0.07)  # ties are broken either way
