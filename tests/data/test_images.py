import json
import os
import pickle
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nngk.data import (
    FlatPictures,
    ImageDataset,
    Images,
    ImageTable,
    centre_crop,
    check_folder,
    fitted,
    load_image,
    pack,
    read_images,
    read_pack,
    square,
)
from nngk.errors import InputError
from nngk.files import write_record


class Counter:
    """Counts decodings, through the progress of the builds."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done = done


@pytest.fixture(params=[False, True], ids=["aspect", "squash"])
def squash(request: pytest.FixtureRequest) -> bool:
    return request.param


def plain(table: ImageTable, size: int, squash: bool) -> list[torch.Tensor]:
    boxes = [None] * len(table) if table.boxes is None else list(table.boxes)
    return [fitted(path, size, box, squash=squash) for path, box in zip(table.paths, boxes)]


def same(batch: torch.Tensor | FlatPictures, wanted: list[torch.Tensor]) -> bool:
    assert isinstance(batch, torch.Tensor) or torch.equal(batch.places, FlatPictures.of(wanted).places)
    return len(batch) == len(wanted) and all(torch.equal(batch[i], each) for i, each in enumerate(wanted))


def test_images_with_and_without_cache_are_the_decoded_files(pets: Path, tmp_path: Path, squash: bool) -> None:
    table = read_images(pets)
    want = plain(table, 8, squash)
    assert len({each.shape for each in want}) == (1 if squash else 5)
    for options in ({}, {"threads": 1}, {"cache": tmp_path / "c"}):
        images = Images(table, 8, squash=squash, **options)
        assert len(images) == 12 and isinstance(images.batch([0]), torch.Tensor if squash else FlatPictures)
        assert same(images.batch(range(12)), want)
        assert same(images.batch(torch.tensor([5, 0, 5])), [want[i] for i in (5, 0, 5)])
        assert same(images.batch(np.array([-1])), want[-1:])
        assert torch.equal(images[3], want[3])
        assert len(images.batch([])) == 0
        with pytest.raises(IndexError, match="12 images"):
            images.batch([12])
        assert torch.equal(pickle.loads(pickle.dumps(images))[3], want[3])
    assert images.nbytes == sum(each.numel() for each in want)
    big = Images(table, 64, cache=tmp_path / "c", squash=squash)
    assert len(pickle.dumps(big)) < 12 * 64 * 64  # the array itself does not travel


def test_cache_decodes_each_picture_once_for_all_tables(pets: Path, tmp_path: Path, squash: bool) -> None:
    table, first, again, part = read_images(pets), Counter(), Counter(), Counter()
    Images(table.select(range(7)), 8, tmp_path / "c", squash=squash, progress=first)
    assert first.done == 7
    whole = Images(table, 8, tmp_path / "c", squash=squash, progress=again)
    assert again.done == 5  # only those that were new
    shuffled = table.select([11, 2, 6])
    some = Images(shuffled, 8, tmp_path / "c", squash=squash, progress=part)
    assert same(some.batch([0, 1, 2]), plain(shuffled, 8, squash))
    assert part.done == 0
    assert same(whole.batch(range(12)), plain(table, 8, squash))


def test_cache_notices_changed_files_sizes_boxes_and_shapes(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table, 8, cache)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(table.paths[4])
    os.utime(table.paths[4], ns=(1, 1))
    assert Images(table, 8, cache)[4][:, 0, 0].tolist() == [1, 2, 3]
    assert Images(table, 6, cache)[0].shape == (3, 6, 7)
    boxed = ImageTable(table.paths, table.labels, table.class_names, boxes=np.tile([2.0, 2, 8, 7], (12, 1)))
    for squash in (False, True):
        for some in (boxed, table):
            images = Images(some, 8, cache, squash=squash)
            assert same(images.batch(range(12)), plain(some, 8, squash))


def test_cache_drops_packs_whose_pictures_all_changed(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table.select([0, 1]), 8, cache)
    for path in table.paths:
        os.utime(path, ns=(5, 5))
    Images(table, 8, cache)
    assert len(list(cache.glob("cache-*"))) == 1


def test_an_interrupted_build_goes_on(
    pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squash: bool
) -> None:

    from nngk.data.packs import writer as module

    monkeypatch.setattr(module, "_CHUNK", 4)
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    decoded: list[Path] = []

    def counting(path: Path, *rest: object, **options: object) -> torch.Tensor:
        decoded.append(path)
        return fitted(path, *rest, **options)

    monkeypatch.setattr(module, "fitted", counting)
    table = read_images(pets)

    def stop(done: int, total: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Images(table, 8, tmp_path / "c", squash=squash, progress=stop)
    assert len(decoded) == 8
    decoded.clear()
    images = Images(table, 8, tmp_path / "c", squash=squash)
    assert len(decoded) == 8  # the first chunk of four was safe, the second had not been recorded
    assert same(images.batch(range(12)), plain(table, 8, squash))
    left = {file.name for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert left == {".lock", "pixels.bin", "table.json"}


def test_a_damaged_cache_is_built_again(pets: Path, tmp_path: Path) -> None:
    table, cache = read_images(pets), tmp_path / "c"
    Images(table, 8, cache)
    (file,) = cache.glob("*/pixels.bin")
    file.write_bytes(file.read_bytes()[:-100])
    assert same(Images(table, 8, cache).batch(range(12)), plain(table, 8, False))


def test_two_builders_at_once_agree(pets: Path, tmp_path: Path) -> None:
    table, built = read_images(pets), []
    threads = [threading.Thread(target=lambda: built.append(Images(table, 8, tmp_path / "c"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 3
    assert all(same(images.batch(range(12)), plain(table, 8, False)) for images in built)
    assert len(list((tmp_path / "c").glob("cache-*"))) == 1


def test_a_pack_reads_the_same_elsewhere(pets: Path, tmp_path: Path, squash: bool) -> None:
    found = read_images(pets)
    table = ImageTable(
        found.paths,
        found.labels,
        found.class_names,
        splits=["train", "val", "test"] * 4,
        boxes=np.tile([1.0, 1, 7, 5], (12, 1)),
        name="pets",
        task="classify",
    )
    want = plain(table, 8, squash)
    moved = tmp_path / "elsewhere"
    shutil.move(pack(table, tmp_path / "out", 8, squash=squash), moved)
    shutil.rmtree(pets)
    assert str(pets) not in (moved / "table.json").read_text()  # nor where it was made
    assert json.loads((moved / "table.json").read_text())["paths"][0] == "cat/0.png"
    images, again = read_pack(moved)
    assert same(images.batch(range(12)), want)
    assert again.boxes is None  # they are in the pixels now
    assert (again.class_names, again.splits, again.name, again.task) == (
        table.class_names, table.splits, "pets", "classify",
    )  # fmt: skip
    assert again.labels.tolist() == table.labels.tolist()
    # A table read from a pack is like any other: it can be selected from, decoded, cached at another size.
    some = read_images(moved).select([7, 3])
    assert same(Images(some, 8, squash=squash).batch([0, 1]), [want[7], want[3]])
    assert some.paths[0].name == "00000007 0.png"
    np.testing.assert_array_equal(np.asarray(load_image(some.paths[0])), want[7].permute(1, 2, 0).numpy())
    for other in (False, True):  # squares stay squares, and others can still be squashed
        small = Images(some, 4, cache=tmp_path / "c", squash=other).batch([0, 1])
        assert same(small, [fitted(want[i], 4, squash=other) for i in (7, 3)])
    assert same(Images(some, 8, squash=True).batch([0, 1]), [square(want[i], 8) for i in (7, 3)])


def write_version_1(table: ImageTable, folder: Path, size: int) -> Path:
    """A pack as it was before images kept their aspect: squares in images.npy."""
    pack(table, folder, size, squash=True)
    file, squares_ = folder / "table.json", torch.stack(plain(table, size, True)).numpy()
    meta = json.loads(file.read_text())
    del meta["squash"], meta["sizes"], meta["checksum"]
    file.write_text(json.dumps({**meta, "version": 1}))
    (folder / "pixels.bin").unlink()
    np.save(folder / "images.npy", squares_)
    return folder


def test_packs_of_version_1_are_read_as_the_squares_they_are(pets: Path, tmp_path: Path) -> None:
    table, count = read_images(pets), Counter()
    old = write_version_1(table, tmp_path / "c" / "cache-8-old", 8)
    want = plain(table, 8, True)
    images, again = read_pack(old)
    assert images.squash and same(images.batch(range(12)), want)
    assert torch.equal(pickle.loads(pickle.dumps(images)).batch([3])[0], want[3])
    assert again.paths[0].parent.name == "images.npy"
    np.testing.assert_array_equal(np.asarray(load_image(again.paths[7])), want[7].permute(1, 2, 0).numpy())
    assert same(Images(again, 8).batch([1, 2]), want[1:3])  # squares have no other aspect to keep
    assert check_folder(old, decode=True).complete
    # As a cache it serves what is squashed, and nothing else.
    assert same(Images(table, 8, tmp_path / "c", squash=True, progress=count).batch([3]), want[3:4])
    assert count.done == 0
    assert same(Images(table, 8, tmp_path / "c", progress=count).batch([3]), plain(table, 8, False)[3:4])
    assert count.done == 12
    # Packed again with other labels it keeps its pixels.
    pack(ImageTable(table.paths, table.labels, ["A", "B", "C"]), old, 8, squash=True, progress=stop)
    assert read_pack(old)[1].class_names == ["A", "B", "C"] and (old / "images.npy").exists()
    # Packed with its aspect it becomes one of this version.
    assert same(read_pack(pack(table, old, 8))[0].batch(range(12)), plain(table, 8, False))
    assert not (old / "images.npy").exists()


def stop(done: int, total: int) -> None:
    raise AssertionError("nothing was to be decoded")


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
        (lambda d: (d / "pixels.bin").unlink(), r"has no pixels.bin"),
        (lambda d: (d / "pixels.bin").write_bytes(b"\x93NUMPY"), "damaged"),
        (lambda d: (d / "pixels.bin").write_bytes(b""), "damaged"),
        (lambda d: _edit(d, sizes=[[8, 8]]), "damaged"),
        (lambda d: _edit(d, sizes=None), "damaged"),
        (lambda d: (d / "table.json").write_text("{"), "damaged"),
        (lambda d: (d / "table.json").write_text("{}"), "does not belong to a pack"),
        (lambda d: _edit(d, version=99), "version 99"),
        (lambda d: _edit(d, size=9), "damaged"),
        (lambda d: _edit(d, size="8"), "damaged"),
        (lambda d: _edit(d, size=-8), "damaged"),
        (lambda d: _edit(d, labels=["a"] * 12), "damaged"),
        (lambda d: _edit(d, labels=[9] * 12), "beyond its 3 classes"),
        (lambda d: _edit(d, labels=[0]), "12 paths but 1 labels"),
        (lambda d: _edit(d, class_names="abc"), "damaged"),
        (lambda d: _edit(d, splits=["train"]), "12 paths but 1 splits"),
        (lambda d: _edit(d, splits=["tarin"] * 12), "not 'tarin'"),
        (lambda d: _edit(d, crc32=[1]), "12 paths but 1 crc32"),
        (lambda d: _edit(d, sizes=[[8, -8]] * 12), "damaged"),
        (lambda d: _edit(d, sizes=[[8, 1 << 62]] * 12), "damaged"),
        (lambda d: _edit(d, sizes=[[8, 1 << 70]] * 12), "damaged"),
        (lambda d: _edit(d, squash=True), "not square"),
        (lambda d: _edit(d, name=None), "damaged"),
        (lambda d: _edit(d, version=None), "version None"),
        (lambda d: _edit(d, version=[3]), "version"),
        (lambda d: _relabel_unsealed(d), "damaged"),
    ],
)
def test_a_damaged_pack_is_refused(pets: Path, tmp_path: Path, damage: object, says: str) -> None:
    folder = pack(read_images(pets), tmp_path / "out", 8)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=says):
        read_pack(folder)
    with pytest.raises(InputError, match=says):
        read_images(folder)


def _relabel_unsealed(folder: Path) -> None:
    """Change a label as a flipped bit does, with the old checksum."""
    meta = json.loads((folder / "table.json").read_text())
    meta["labels"][0] ^= 1
    (folder / "table.json").write_text(json.dumps(meta))


def _edit(folder: Path, **changes: object) -> None:
    """Change what the table says; its checksum is right again."""
    write_record(folder / "table.json", {**json.loads((folder / "table.json").read_text()), **changes})


def test_dataset_yields_image_label_index(pets: Path) -> None:
    table = read_images(pets)
    data = ImageDataset(Images(table, 8), table.labels, transform=centre_crop(8))
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
    data = ImageDataset(images, table.labels, transform=centre_crop(8))
    loader = torch.utils.data.DataLoader(data, batch_size=6, num_workers=1)
    assert sum(len(batch) for batch, _, _ in loader) == 12


def test_a_truncated_part_of_a_cache_is_decoded_again(pets: Path, tmp_path: Path) -> None:
    table = read_images(pets)
    first, second = table.select(range(6)), table.select(range(6, 12))
    Images(first, 8, cache=tmp_path)
    (store,) = tmp_path.glob("*/pixels.bin")
    Images(second, 8, cache=tmp_path)
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size // 2)
    for part in (first, second, table):
        assert same(Images(part, 8, cache=tmp_path).batch(range(len(part))), plain(part, 8, False))


@pytest.mark.parametrize("damage", ["pixels.bin", "table.json"])
def test_a_damaged_pack_is_packed_again(pets: Path, tmp_path: Path, damage: str) -> None:
    table = read_images(pets)
    pack(table, tmp_path / "p", 8)
    file = tmp_path / "p" / damage
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    images, again = read_pack(pack(table, tmp_path / "p", 8))
    assert same(images.batch(range(12)), plain(table, 8, False)) and again.class_names == table.class_names


def test_a_pack_of_other_images_is_kept(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets, tmp_path / "others")
    pack(read_images(pets), tmp_path / "p", 8)
    with pytest.raises(InputError, match="holds a pack of other images"):
        pack(read_images(tmp_path / "others"), tmp_path / "p", 8)


@pytest.mark.parametrize("squash", [False, True])
def test_the_middle_alone_is_the_middle_of_the_whole(pets: Path, tmp_path: Path, squash: bool) -> None:
    table = read_images(pets)
    whole, crop = Images(table, 12, squash=squash), centre_crop(9)
    middles, rows = whole.middles(9), range(len(whole))
    assert torch.equal(crop(middles.batch(rows)), crop(whole.batch(rows)))
    assert all(middles[row].shape == (3, 9, 9) for row in rows)
    assert whole[0].shape[1] == 12  # as before
    cached = Images(table, 12, tmp_path / "cache", squash=squash).middles(9)
    assert torch.equal(crop(cached.batch(rows)), crop(whole.batch(rows)))
    larger = whole.middles(20)  # more than there is
    assert torch.equal(crop(larger.batch(rows)), crop(whole.batch(rows)))


def test_the_middles_of_images_share_their_threads(pets: Path) -> None:
    whole = Images(read_images(pets), 12, threads=2)
    pools = {whole._threads(), whole.middles(9)._threads(), whole.middles(8).middles(7)._threads()}
    assert len(pools) == 1
    assert pickle.loads(pickle.dumps(whole))._threads() not in pools


def test_threads_that_ask_at_once_share_one_pool(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ThreadPoolExecutor):
        def __init__(self, *args: Any, **how: Any) -> None:
            time.sleep(0.02)
            super().__init__(*args, **how)

    images, pool = Images(read_images(pets), 12), ThreadPoolExecutor(8)
    monkeypatch.setattr("nngk.data.images.ThreadPoolExecutor", Slow)
    with pool:
        assert len(set(pool.map(lambda _: images._threads(), range(8)))) == 1


@pytest.mark.parametrize("squash", [False, True])
def test_what_cannot_be_read_is_a_grey_middle(pets: Path, squash: bool) -> None:
    table = read_images(pets)
    row = 5
    table.paths[row].write_bytes(b"no picture")
    images = Images(table, 12, squash=squash, tolerant=True).middles(9)
    found = centre_crop(9, (0.0,) * 3, (1.0,) * 3)(images.batch(range(len(table))))
    assert list(images.broken) == [row] and torch.all(found[row] == 128 / 255)
