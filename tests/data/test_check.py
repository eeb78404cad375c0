import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import published
from nngk.data import check_folder, pack, read_images
from nngk.data.packs.layout import open_pack
from nngk.errors import InputError


def test_an_image_folder_with_damage(pets: Path, make_picture) -> None:
    assert check_folder(pets, decode=True).complete
    (pets / "cat" / "1.png").write_bytes((pets / "cat" / "1.png").read_bytes()[:60])
    make_picture(pets / "yak" / "1.png")
    assert check_folder(pets).complete  # nothing was opened
    seen = []
    report = check_folder(pets, decode=True, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (13, 13)
    assert not report.complete and report.broken == [str(pets / "cat" / "1.png")]
    assert "cannot be opened" in str(report) and "'yak'" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["complete"] is False


def test_pictures_without_colour_are_counted(pets: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)
    Image.fromarray(grey).save(pets / "cat" / "1.png")
    Image.fromarray(grey).convert("RGB").save(pets / "cat" / "2.png")
    assert "2 images have no colour" in str(check_folder(pets, decode=True))


def test_splits_and_one_class(tmp_path: Path, make_picture) -> None:
    for place in ("train/a/1.png", "train/a/2.png", "test/a/3.png"):
        make_picture(tmp_path / place)
    report = check_folder(tmp_path)
    assert report.splits == {"train": 2, "test": 1} and report.classes == 1
    assert not report.complete and "one class, 'a'" in report.problems[0]


def test_what_is_not_known(tmp_path: Path) -> None:
    report = check_folder(tmp_path)
    assert report.kind == "unknown" and not report.complete and "CUB-200-2011" in str(report)
    with pytest.raises(InputError, match="There is no folder"):
        check_folder(tmp_path / "nowhere")


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    published.write_cub(tmp_path / "CUB_200_2011")
    published.write_flowers(tmp_path / "flowers-102")
    report = check_folder(tmp_path)
    assert [part.kind for part in report.parts] == ["cub200", "flowers102"]
    assert not report.complete and "60 images of 6 classes" in str(report)
    assert report.to_dict()["parts"][0]["kind"] == "cub200"


def test_a_pack_with_a_changed_pixel(pets: Path, tmp_path: Path) -> None:
    folder = pack(read_images(pets), tmp_path / "out", 8, squash=True)
    report = check_folder(folder, decode=True)
    assert report.kind == "pack" and report.complete and report.images == 12 and "8×8" in report.title
    folder = pack(read_images(pets), tmp_path / "out", 8)
    report = check_folder(folder, decode=True)
    assert report.complete and "shorter sides of 8 pixels" in report.title
    pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r+")
    pixels[open_pack(folder).places[5, 0]] ^= 1
    pixels.flush()
    report = check_folder(folder, decode=True)
    assert len(report.broken) == 1 and report.broken[0].endswith("dog/1.png") and not report.complete
    (folder / "table.json").write_text("{")
    assert "damaged" in check_folder(folder).problems[0]


def test_a_dataset_with_broken_images(tmp_path: Path) -> None:
    root = published.write_cub(tmp_path / "CUB_200_2011")
    victim = root / "images" / "002.Bird_1" / "Bird_1_0003.jpg"
    victim.unlink()
    victim.write_bytes(b"\xff\xd8\xff nothing more")
    report = check_folder(root, decode=True)
    assert report.broken == [str(victim)] and report.images == 60
