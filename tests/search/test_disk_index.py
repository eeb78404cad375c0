"""Indices whose vectors stay on disk: answers as in memory, damaged and shortened files are a sentence."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from index_files import File
from nngk.errors import InputError
from nngk.search import FANNG, DiskIndex, Exact
from nngk.search.calibration import found_share
from nngk.search.disk_index import ABOUT, PLACES, part_file
from nngk.search.native import core
from nngk.search.partition import k_means

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def points(n: int, dim: int = 12, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(20, dim, generator=generator)
    return centres[torch.randint(20, (n,), generator=generator)] + torch.randn(n, dim, generator=generator)


def ordered(n: int) -> Tensor:
    """Points that come as those of a sorted collection do: the first ones say nothing about the last ones."""
    x = points(n + 200)[:n]
    return x[x[:, 0].argsort()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk") / "index"
    DiskIndex.build(folder, ordered(6000).split(700), part=1000, threads=1)
    return folder


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
def test_searches_on_disk_are_those_in_memory(storage: str, tmp_path: Path) -> None:
    engine = FANNG(12, storage=storage, threads=1)
    engine.build(points(900))
    engine.remove(range(0, 60, 2))
    engine.save(tmp_path / "index")
    opened, q = FANNG.load(tmp_path / "index", threads=2, on_disk=True), points(40, seed=1)
    for effort in ({"ef": 20}, {"budget": 200}, {"recall": 0.9}):
        for mine, theirs in zip(opened.search(q, 5, **effort), engine.search(q, 5, **effort)):  # type: ignore[arg-type]
            assert torch.equal(mine, theirs)
    assert torch.equal(opened.vectors([1, 3]), engine.vectors([1, 3]))
    assert torch.equal(opened.all_neighbours(5, ef=20)[1], engine.all_neighbours(5, ef=20)[1])
    assert opened.stats()["bytes"] < engine.stats()["bytes"]


def test_what_is_on_disk_cannot_be_changed(tmp_path: Path) -> None:
    engine = FANNG(12, threads=1)
    engine.build(points(100))
    engine.save(tmp_path / "index")
    opened = FANNG.load(tmp_path / "index", on_disk=True)
    changes = (
        lambda: opened.build(points(10)),
        lambda: opened.add(points(10)),
        lambda: opened.remove([0]),
        lambda: opened.update(points(100)),
        lambda: opened.save(tmp_path / "other"),
        lambda: opened.all_neighbours(3),
    )
    for change in changes:
        with pytest.raises(InputError, match="for searching only"):
            change()
    assert len(opened) == 100 and not (tmp_path / "other").exists()


@pytest.mark.parametrize("left", [0.0, 0.3])
def test_a_file_that_becomes_shorter_is_a_sentence(left: float, tmp_path: Path) -> None:
    engine, path = FANNG(12, threads=1), tmp_path / "index"
    engine.build(points(900))
    engine.save(path)
    opened = FANNG.load(path, on_disk=True)
    os.truncate(path, int(left * 900 * 32 * 4))
    with pytest.raises(InputError, match=r"index is damaged \(it became shorter"):
        opened.search(points(40, seed=1), 5, ef=50)
    with pytest.raises(InputError, match="became shorter"):
        opened.vectors([*range(900)])


def test_damaged_vectors_are_refused_when_opened(tmp_path: Path) -> None:
    engine, path = FANNG(12, threads=1), tmp_path / "index"
    engine.build(points(300))
    engine.save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[File(good).place("vectors")[0] + 17] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(InputError, match="does not match its checksum"):
        FANNG.load(path, on_disk=True)
    crafted = File(good)
    crafted.values("vectors", "<f4")[5] = np.nan
    path.write_bytes(crafted.sealed())
    with pytest.raises(InputError, match="not finite"):
        FANNG.load(path, on_disk=True)


def test_parts_find_what_exact_search_finds(built: Path) -> None:
    x, q = ordered(6000), points(6200)[6000:]  # of the same classes
    index = DiskIndex(built, threads=1)
    distances, truth = Exact(x).search(q, 10)
    assert len(index) == 6000 and len(index.about["sizes"]) == 6
    everything = index.search(q, 10, probes=6, ef=2000)
    assert torch.equal(everything[1], truth) and torch.allclose(everything[0], distances, rtol=1e-4, atol=1e-4)
    assert found_share(index.search(q, 10, recall=0.95)[1], truth) > 0.85
    assert index.reach(10, 0.6)["probes"] <= index.reach(10, 0.99)["probes"]


def test_pieces_may_have_any_size(built: Path, tmp_path: Path) -> None:
    x, q = ordered(6000), points(30, seed=1)
    again = DiskIndex.build(
        tmp_path / "again", [x[:1].numpy(), x[1:4000], x[4000:4000], x[4000:]], part=1000, threads=2
    )
    other = DiskIndex(built)
    assert again.about["sizes"] == other.about["sizes"]
    for mine, theirs in zip(again.search(q, 7, probes=2, ef=30), other.search(q, 7, probes=2, ef=30)):
        assert torch.equal(mine, theirs)
    assert sorted(p.suffix for p in (tmp_path / "again").iterdir()) == [".fanng"] * 6 + [".json", ".safetensors"]


def test_parts_are_closed_where_memory_is_short(built: Path) -> None:
    q = points(50, seed=1)
    free, tight = DiskIndex(built), DiskIndex(built, memory=1)
    assert torch.equal(free.search(q, 5, probes=3, ef=20)[1], tight.search(q, 5, probes=3, ef=20)[1])
    assert tight.open_bytes < free.open_bytes / 2


def test_few_points_are_one_part(tmp_path: Path) -> None:
    x = points(30)
    index = DiskIndex.build(tmp_path / "few", [x])
    assert torch.equal(index.search(x, 30)[1][:, 0], torch.arange(30))
    assert torch.equal(index.search(x, 30)[1].sort(1).values, torch.arange(30).expand(30, 30))


def test_equal_points_are_indexed(tmp_path: Path) -> None:
    index = DiskIndex.build(tmp_path / "equal", [torch.ones(3000, 4)], part=1000)
    distances, ids = index.search(torch.ones(2, 4), 5)
    assert (distances == 0).all() and (ids >= 0).all()


def test_wrong_use_is_a_sentence(built: Path, tmp_path: Path) -> None:
    index = DiskIndex(built)
    for call, why in (
        (lambda: DiskIndex(tmp_path), "holds no complete index"),
        (lambda: DiskIndex.build(built, [points(10)]), "is not empty"),
        (lambda: DiskIndex.build(tmp_path / "a", []), "at least two points, got 0"),
        (lambda: DiskIndex.build(tmp_path / "b", [points(10), points(10, dim=5)]), r"shape \(n, 12\)"),
        (lambda: DiskIndex.build(tmp_path / "c", [torch.full((9, 2), torch.nan)]), "contain NaN"),
        (lambda: index.search(points(1), 6001), "at most 6000"),
        (lambda: index.search(points(1), 5, ef=10), "together"),
        (lambda: index.search(points(1), 5, ef=10, probes=1, recall=0.5), "together"),
        (lambda: index.search(points(1, dim=5), 5), r"shape \(n, 12\)"),
    ):
        with pytest.raises(InputError, match=why):
            call()


def test_a_failed_attempt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nngk.search.disk_index.write_json", full)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        DiskIndex.build(tmp_path / "index", [points(50)])
    monkeypatch.undo()
    with pytest.raises(InputError, match="contain NaN"):
        DiskIndex.build(tmp_path / "index", [points(50), torch.full((9, 12), torch.nan)])
    assert not any((tmp_path / "index").iterdir())
    assert len(DiskIndex.build(tmp_path / "index", [points(50)])) == 50


def test_damaged_folders_are_a_sentence(tmp_path: Path) -> None:
    folder, x = tmp_path / "index", points(3000)
    DiskIndex.build(folder, [x], part=1000)
    about = (folder / ABOUT).read_text()
    (folder / ABOUT).write_text(about.replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="format 2"):
        DiskIndex(folder)
    (folder / ABOUT).write_text(about)
    first, second = part_file(folder, 0).read_bytes(), part_file(folder, 1).read_bytes()
    part_file(folder, 0).write_bytes(second)
    with pytest.raises(InputError, match="belongs to another index"):
        DiskIndex(folder).search(x[:50], 5, probes=3, ef=20)
    part_file(folder, 0).write_bytes(first)
    os.truncate(folder / PLACES, 100)
    with pytest.raises(InputError):
        DiskIndex(folder)


def test_cells_have_similar_sizes() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(3000, 6, generator=generator), 30 + torch.randn(100, 6, generator=generator)])
    sizes = torch.cdist(x, k_means(x, 10, generator)).argmin(1).bincount(minlength=10)
    assert sizes.max() < 3 * 310
