"""Folders of small pictures, made as the tests need them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (12, 10)) -> Path:
    """A picture of noise, width × height as given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def make_picture() -> Callable[..., Path]:
    return picture


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Three classes with 4, 3 and 5 pictures of several aspects."""
    sizes = ((12, 10), (10, 15), (9, 9), (40, 5), (7, 8))
    folder = tmp_path / "pets"
    for label, (name, count) in enumerate({"cat": 4, "dog": 3, "owl": 5}.items()):
        for number in range(count):
            picture(folder / name / f"{number}.png", seed=10 * label + number, size=sizes[number])
    return folder
