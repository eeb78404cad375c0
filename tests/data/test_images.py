import json
import os
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nngk.data import ImageDataset, Images, ImageTable, load_image, pack, read_images, read_pack, square
from nngk.errors import InputError


class Counter:
    """Counts decodings, through the progress of the builds."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done = done


def plain(table: ImageTable, size: int) -> torch.Tensor:
    boxes = [None] * len(table) if table.boxes is None else list(table.boxes)
    return torch.stack([square(path, size, box) for path, box in zip(table.paths, boxes)])


def test_images_with_and_without_cache_are_the_decoded_files(pets: Path, tmp_path: Path) -> None:
    table = read_images(pets)
    want = plain(table, 8)
    for images in (Images(table, 8), Images(table, 8, threads=1), Images(table, 8, cache=tmp_path / "c")):
        assert len(images) == 12
        assert torch.equal(images.batch(range(12)), want)
        assert torch.equal(images.batch(torch.tensor([5, 0, 5])), want[[5, 0, 5]])
        assert torch.equal(images.batch(np.array([-1])), want[[-1]])
        assert torch.equal(images[3], want[3])
        assert images.batch([]).shape == (0, 3, 8, 8)
        with pytest.raises(IndexError, match="12 images"):
            images.batch([12])
        assert torch.equal(pickle.loads(pickle.dumps(images))[3], want[3])
    big = Images(table, 64, cache=tmp_path / "c")
    assert len(pickle.dumps(big)) < 12 * 64 * 64  # the array itself does not travel


def test_cache_decodes_each_picture_once_for_all_tables(pets: Path, tmp_path: Path) -> None:
    table, first, again, part = read_images(pets), Counter(), Counter(), Counter()
    Images(table.select(range(7)), 8, tmp_path / "c", progress=first)
    assert first.done == 7
    whole = Images(table, 8, tmp_path / "c", progress=again)
    assert again.done == 5  # only those that were new
    shuffled = table.select([11, 2, 6])
    assert torch.equal(Images(shuffled, 8, tmp_path / "c", progress=part).batch([0, 1, 2]), plain(shuffled, 8))
    assert part.done == 0
    assert torch.equal(whole.batch(range(12)), plain(table, 8))


def test_cache_notices_changed_files_sizes_and_boxes(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table, 8, cache)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(table.paths[4])
    os.utime(table.paths[4], ns=(1, 1))
    assert Images(table, 8, cache)[4][:, 0, 0].tolist() == [1, 2, 3]
    assert Images(table, 6, cache)[0].shape == (3, 6, 6)
    boxed = ImageTable(table.paths, table.labels, table.class_names, boxes=np.tile([2.0, 2, 8, 8], (12, 1)))
    assert torch.equal(Images(boxed, 8, cache).batch(range(12)), plain(boxed, 8))
    assert torch.equal(Images(table, 8, cache).batch(range(12)), plain(table, 8))


def test_cache_drops_packs_whose_pictures_all_changed(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table.select([0, 1]), 8, cache)
    for path in table.paths:
        os.utime(path, ns=(5, 5))
    Images(table, 8, cache)
    assert len(list(cache.glob("cache-*"))) == 1


def test_an_interrupted_build_goes_on(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    from nngk.data.packs import writer as module

    monkeypatch.setattr(module, "_CHUNK", 4)
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    decoded: list[Path] = []

    def counting(path: Path, *rest: object) -> torch.Tensor:
        decoded.append(path)
        return square(path, *rest)

    monkeypatch.setattr(module, "square", counting)
    table = read_images(pets)

    def stop(done: int, total: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Images(table, 8, tmp_path / "c", progress=stop)
    assert len(decoded) == 8
    decoded.clear()
    images = Images(table, 8, tmp_path / "c")
    assert len(decoded) == 8  # the first chunk of four was safe, the second had not been recorded
    assert torch.equal(images.batch(range(12)), plain(table, 8))
    left = {file.name for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert left == {".lock", "images.npy", "table.json"}


def test_a_damaged_cache_is_built_again(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table, 8, cache)
    (file,) = cache.glob("*/images.npy")
    file.write_bytes(file.read_bytes()[:-100])
    assert torch.equal(Images(table, 8, cache).batch(range(12)), plain(table, 8))


def test_two_builders_at_once_agree(pets: Path, tmp_path: Path) -> None:
    table, built = read_images(pets), []
    threads = [threading.Thread(target=lambda: built.append(Images(table, 8, tmp_path / "c"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 3
    assert all(torch.equal(images.batch(range(12)), plain(table, 8)) for images in built)
    assert len(list((tmp_path / "c").glob("cache-*"))) == 1


def test_a_pack_reads_the_same_elsewhere(pets: Path, tmp_path: Path) -> None:
    found = read_images(pets)
    table = ImageTable(
        found.paths,
        found.labels,
        found.class_names,
        splits=["train", "val", "test"] * 4,
        boxes=np.tile([1.0, 1, 7, 9], (12, 1)),
        name="pets",
        task="classify",
    )
    want = plain(table, 8)
    moved = tmp_path / "elsewhere"
    shutil.move(pack(table, tmp_path / "out", 8), moved)
    shutil.rmtree(pets)
    assert str(pets) not in (moved / "table.json").read_text()  # nor where it was made
    assert json.loads((moved / "table.json").read_text())["paths"][0] == "cat/0.png"
    images, again = read_pack(moved)
    assert torch.equal(images.batch(range(12)), want)
    assert again.boxes is None  # they are in the pixels now
    assert (again.class_names, again.splits, again.name, again.task) == (
        table.class_names, table.splits, "pets", "classify",
    )  # fmt: skip
    assert again.labels.tolist() == table.labels.tolist()
    # A table read from a pack is like any other: it can be selected from, decoded, cached at another size.
    some = read_images(moved).select([7, 3])
    assert torch.equal(Images(some, 8).batch([0, 1]), want[[7, 3]])
    assert some.paths[0].name == "00000007 0.png"
    np.testing.assert_array_equal(np.asarray(load_image(some.paths[0])), want[7].permute(1, 2, 0).numpy())
    small = Images(some, 4, cache=tmp_path / "c").batch([0, 1])
    assert torch.equal(small, torch.stack([square(want[i], 4) for i in (7, 3)]))


def test_a_pack_is_a_cache_and_a_cache_is_a_pack(pets: Path, tmp_path: Path) -> None:
    table, count = read_images(pets), Counter()
    pack(table, tmp_path / "out", 8)
    Images(table, 8, cache=tmp_path / "out", progress=count)
    assert count.done == 0
    Images(table, 8, cache=tmp_path / "c")
    (folder,) = (tmp_path / "c").glob("cache-*")
    assert read_images(folder).class_names == ["cat", "dog", "owl"]


def test_packing_again_keeps_pixels_and_renews_labels(pets: Path, tmp_path: Path) -> None:
    table, count = read_images(pets), Counter()
    pack(table, tmp_path / "out", 8)
    renamed = ImageTable(table.paths, table.labels, ["A", "B", "C"])
    pack(renamed, tmp_path / "out", 8, progress=count)
    assert count.done == 0
    assert read_pack(tmp_path / "out")[1].class_names == ["A", "B", "C"]


def test_pack_refuses_what_it_cannot_do(pets: Path, tmp_path: Path) -> None:
    table = read_images(pets)
    with pytest.raises(InputError, match="holds other files"):
        pack(table, pets, 8)
    with pytest.raises(InputError, match="no images to pack"):
        pack(table.select([]), tmp_path / "out", 8)
    with pytest.raises(InputError, match=r"need .* GB in .* are free"):
        pack(table, tmp_path / "huge", 2_000_000)
    table.paths[5].write_bytes(b"not a picture")
    with pytest.raises(InputError, match=str(table.paths[5])):
        pack(table, tmp_path / "out", 8)
    table.paths[5].unlink()
    with pytest.raises(InputError, match="There is no image"):
        pack(table, tmp_path / "out", 8)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "images.npy").unlink(), r"has no images.npy"),
        (lambda d: (d / "images.npy").write_bytes(b"\x93NUMPY"), "damaged"),
        (lambda d: (d / "table.json").write_text("{"), "damaged"),
        (lambda d: (d / "table.json").write_text("{}"), "does not belong to a pack"),
        (lambda d: _edit(d, version=99), "version 99"),
        (lambda d: _edit(d, size=9), "damaged"),
    ],
)
def test_a_damaged_pack_is_refused(pets: Path, tmp_path: Path, damage: object, says: str) -> None:
    folder = pack(read_images(pets), tmp_path / "out", 8)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=says):
        read_pack(folder)
    with pytest.raises(InputError, match=says):
        read_images(folder)


def _edit(folder: Path, **changes: object) -> None:
    file = folder / "table.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_dataset_yields_image_label_index(pets: Path) -> None:
    table = read_images(pets)
    data = ImageDataset(Images(table, 8), table.labels, transform=lambda image: image.float() / 255)
    loader = torch.utils.data.DataLoader(data, batch_size=5)
    images, labels, indices = next(iter(loader))
    assert images.shape == (5, 3, 8, 8) and images.dtype == torch.float32
    assert labels.tolist() == [0, 0, 0, 0, 1] and indices.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="one label per image"):
        ImageDataset(Images(table, 8), [0, 1])


def test_images_work_in_forked_workers(pets: Path) -> None:
    table = read_images(pets)
    images = Images(table, 8)
    images.batch([0])  # its threads exist here and not in the workers
    loader = torch.utils.data.DataLoader(ImageDataset(images, table.labels), batch_size=6, num_workers=1)
    assert sum(len(batch) for batch, _, _ in loader) == 12


def test_a_truncated_part_of_a_cache_is_decoded_again(pets: Path, tmp_path: Path) -> None:
    table = read_images(pets)
    first, second = table.select(range(6)), table.select(range(6, 12))
    Images(first, 8, cache=tmp_path)
    (store,) = tmp_path.glob("*/images.npy")
    Images(second, 8, cache=tmp_path)
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size // 2)
    for part in (first, second, table):
        assert torch.equal(Images(part, 8, cache=tmp_path).batch(range(len(part))), plain(part, 8))


@pytest.mark.parametrize("damage", ["images.npy", "table.json"])
def test_a_damaged_pack_is_packed_again(pets: Path, tmp_path: Path, damage: str) -> None:
    table = read_images(pets)
    pack(table, tmp_path / "p", 8)
    file = tmp_path / "p" / damage
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    images, again = read_pack(pack(table, tmp_path / "p", 8))
    assert torch.equal(images.batch(range(12)), plain(table, 8)) and again.class_names == table.class_names


def test_a_pack_of_other_images_is_kept(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets, tmp_path / "others")
    pack(read_images(pets), tmp_path / "p", 8)
    with pytest.raises(InputError, match="holds a pack of other images"):
        pack(read_images(tmp_path / "others"), tmp_path / "p", 8)
