"""Index files that somebody wrote by hand, with the right checksums: refused with a sentence, and never a crash."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import forked
from faults import survived
from index_files import NONE, SECTIONS, File
from nngk.errors import InputError
from nngk.search import FANNG
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    engine = FANNG(6, degree=6, neighbours=8)
    engine.build(torch.randn(120, 6, generator=torch.Generator().manual_seed(0)))
    engine.remove([3, 7])
    path = tmp_path_factory.mktemp("crafted") / "good"
    engine.save(path)
    return path.read_bytes()


def test_an_unchanged_file_is_sealed_as_it_was(good: bytes, tmp_path: Path) -> None:
    assert File(good).sealed() == good
    (tmp_path / "same").write_bytes(good)
    assert len(FANNG.load(tmp_path / "same")) == 118


def setting(name: str, value: float) -> Callable[[File], None]:
    return lambda file: file.__setitem__(name, value)


def value(section: str, dtype: str, at: int, new: float) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.values(section, dtype)[at] = new

    return change


def overlapping(file: File) -> None:
    file.move("lists", file.place("graph")[0], file.place("lists")[1])


def two_ids_of_one_vertex(file: File) -> None:
    places = file.values("places", "<u4")
    places[0] = places[1]


def huge(file: File) -> None:
    # 2^58 rows of 32 floats are 2^65 bytes, which a 64-bit size takes for nothing.
    file["points"] = 1 << 58
    for section in SECTIONS:
        file.move(section, file.place(section)[0], 0)


CRAFTED = {
    "sizes that overflow": huge,
    "more points than can be": setting("points", 1 << 31),
    "more ids than can be": setting("ids", 1 << 33),
    "lists whose length overflows": setting("list_width", 1 << 62),
    "lists without a width": setting("list_width", 0),
    "no dimensions": setting("dim", 0),
    "dimensions beyond the limit": setting("dim", 1 << 31),
    "other dimensions than its vectors": setting("dim", 40),
    "another storage": setting("storage", 1),
    "an unknown storage": setting("storage", 7),
    "another degree than its graph": setting("degree", 60),
    "no degree": setting("degree", 0),
    "another stride": setting("stride", 1 << 60),
    "alpha that is no number": setting("alpha", float("nan")),
    "recall that is no number": setting("recall", float("nan")),
    "success above one": setting("success", 3.0),
    "a share of walks that is no number": setting("walk_success", float("nan")),
    "codes without a step": setting("step", 0.0),
    "codes that are not there": setting("has_codes", 2),
    "fewer marks than it says": setting("dead_count", 5),
    "a mark too many": value("marks", "u1", 50, 1),
    "a mark of another value": value("marks", "u1", 50, 2),
    "an id of another vertex": two_ids_of_one_vertex,
    "an id beyond the ids": value("labels", "<u4", 4, 4000),
    "a vertex beyond the vertices": value("places", "<u4", 4, 4000),
    "an id that lost its vertex": value("places", "<u4", 4, NONE),
    "an edge to nowhere": value("graph", "<u4", 1, 120),
    "more edges than there is room for": value("graph", "<u4", 0, 1 << 30),
    "a list that names no vertex": value("lists", "<u4", 0, 120),
    "an entry that is no vertex": setting("medoid", 120),
    "a vector with NaN": value("vectors", "<f4", 0, float("nan")),
    "a vector whose distances overflow": value("vectors", "<f4", 0, 3e38),
    "a value where there is padding": value("vectors", "<f4", 31, 1.0),
    "a tree that leads back": value("tree", "<u4", 3, 0),
    "a cut between no points": value("tree", "<u4", 0, 120),
    "sections that overlap": overlapping,
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_files_are_refused(name: str, good: bytes, tmp_path: Path) -> None:
    file = File(good)
    CRAFTED[name](file)
    crafted = file.sealed()
    assert crafted != good
    path = tmp_path / "crafted"
    path.write_bytes(crafted)
    with pytest.raises(InputError, match="damaged"):
        FANNG.load(path)


@pytest.mark.thorough
def test_any_change_is_refused_or_harmless(good: bytes, tmp_path: Path) -> None:
    """Change words at random, seal the file, and do everything with what is still accepted, in another process."""
    generator = np.random.default_rng(0)
    used = len(good) // 4
    for number in range(150):
        file = File(good)
        words = np.frombuffer(file.data, "<u4", used)
        # Half of the changes in the header, where they reach farthest.
        at = int(generator.integers(6, 36)) if number % 2 else int(generator.integers(98, used))
        words[at] = int(generator.choice([0, 1, 2, 119, 120, 1 << 16, 1 << 31, NONE, int(words[at]) + 1 & NONE]))
        (tmp_path / str(number)).write_bytes(file.sealed())
    program = (
        "import sys, torch\nfrom pathlib import Path\n"
        "from nngk.errors import InputError\nfrom nngk.search import FANNG\n"
        "accepted = 0\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        engine = FANNG.load(path, threads=1)\n    except InputError:\n        continue\n"
        "    accepted += 1\n"
        "    x = torch.randn(30, engine.dim)\n"
        "    engine.search(x, 5, ef=20); engine.search(x, 5, budget=50); engine.all_neighbours(5)\n"
        "    engine.add(x); engine.remove(range(20, 60)); engine.all_neighbours(3, ef=9); engine.stats()\n"
        "    engine.update(torch.randn(len(engine), engine.dim)); engine.search(x, 5, recall=0.9)\n"
        "print(accepted)"
    )
    done = forked.run(["-c", program, tmp_path])
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) < 150


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="not a file"):
            FANNG.load(path)


def test_a_file_that_becomes_shorter_after_it_was_read(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(good)

    def ask() -> None:
        engine, x = FANNG.load(path, threads=1), torch.zeros(1, 6)
        before = engine.search(x, 5, ef=20)
        path.write_bytes(bytes(len(good)))  # copied over, and then cut
        os.truncate(path, 0)
        assert all(torch.equal(a, b) for a, b in zip(engine.search(x, 5, ef=20), before))
        engine.add(x)

    assert survived(ask)
