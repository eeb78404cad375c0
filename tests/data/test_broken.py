"""Images that cannot be read: counted, named, asked about, and remembered by the cache until the file changes."""

import numpy as np
import pytest
import torch

from nngk.data import Images, read_images
from nngk.data.broken import Tolerance, without_broken
from nngk.errors import InputError
from shapes import write_shapes

BROKEN = {3: "The image a.png cannot be read."}


@pytest.mark.parametrize(
    ("tolerance", "total", "accepted"),
    [
        (Tolerance(), 100, True),
        (Tolerance(), 99, False),
        (Tolerance(any_number=True), 2, True),
        (Tolerance(any_number=True), 1, False),
        (Tolerance(strict=True), 1000, False),
        (Tolerance(ask=lambda question: True), 2, True),
        (Tolerance(ask=lambda question: False), 2, False),
    ],
)
def test_how_many_are_too_many(tolerance, total, accepted, capfd):
    if accepted:
        tolerance.accept(BROKEN, total)
        said = capfd.readouterr().err
        assert "a.png" in said and f"1 of {total} images cannot be read and are left out" in said
    else:
        with pytest.raises(InputError, match=r"a\.png"):
            tolerance.accept(BROKEN, total)
    tolerance.accept({}, total)


def test_a_person_is_asked_with_the_numbers():
    asked = []
    Tolerance(ask=lambda question: asked.append(question) or True).accept(BROKEN, 10)
    assert asked == ["1 of 10 images cannot be read, which is more than 1%. Go on without them?"]


@pytest.fixture
def spoilt(tmp_path):
    table = read_images(write_shapes(tmp_path / "shapes", count=4))
    table.paths[5].write_bytes(b"no picture")
    return table


@pytest.mark.parametrize("cached", [True, False])
def test_the_others_are_kept(spoilt, tmp_path, cached):
    cache = tmp_path / "cache" if cached else None
    how = {"squash": False, "cache": cache, "threads": 1}
    kept = without_broken(spoilt, 12, tolerance=Tolerance(any_number=True), **how)
    assert kept.paths == [path for i, path in enumerate(spoilt.paths) if i != 5]
    assert np.array_equal(kept.labels, np.delete(spoilt.labels, 5))
    with pytest.raises(InputError, match="cannot be read"):
        without_broken(spoilt, 12, tolerance=Tolerance(strict=True), **how)


def test_a_package_that_was_missing_mends_a_picture(spoilt, tmp_path, monkeypatch):
    tolerant = {"cache": tmp_path / "cache", "tolerant": True}
    assert list(Images(spoilt, 12, **tolerant).broken) == [5]
    mended = torch.full((3, 12, 12), 7, dtype=torch.uint8)
    monkeypatch.setattr("nngk.data.images.fitted", lambda *given, **how: mended)
    images = Images(spoilt, 12, **tolerant)
    assert not images.broken and images[5].equal(mended)


def test_the_cache_remembers_until_the_file_changes(spoilt, tmp_path):
    tolerant = {"cache": tmp_path / "cache", "tolerant": True}
    assert list(Images(spoilt, 12, **tolerant).broken) == [5]
    before = [each.stat().st_mtime_ns for each in sorted(tmp_path.glob("cache/*/table.json"))]
    assert list(Images(spoilt.select([5, 6]), 12, **tolerant).broken) == [0]  # by its place in another table
    assert [each.stat().st_mtime_ns for each in sorted(tmp_path.glob("cache/*/table.json"))] == before
    with pytest.raises(InputError, match="cannot be read"):  # who does not tolerate it never sees a grey square
        Images(spoilt, 12, tmp_path / "cache")
    spoilt.paths[5].write_bytes(spoilt.paths[4].read_bytes())
    mended = Images(spoilt, 12, **tolerant)
    assert not mended.broken and mended[5].equal(mended[4])
