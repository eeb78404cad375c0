"""Drawn leaves in the place of photos: three kinds, and a fourth that no model knows; no two lie alike."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 256
GREENS = ((72, 118, 48), (96, 140, 60), (134, 150, 58), (168, 138, 52))


def _outline(kind: str) -> list[tuple[float, float]]:
    """Return the outline of a leaf, its stem at (0, 0.5) and its tip near (0, -0.5)."""
    if kind in ("clover", "ginkgo"):
        turns = np.linspace(-0.75 * math.pi, 0.75 * math.pi, 121)
        if kind == "clover":  # three round parts
            reach = 0.28 + 0.24 * np.abs(np.cos(2.0 * turns)) ** 1.5 * np.cos(turns / 2.4)
        else:  # a fan with a cut in its middle
            turns = turns * 0.45
            reach = 0.62 - 0.25 * np.exp(-((turns / 0.07) ** 2)) + 0.012 * np.cos(40 * turns)
        low = 0.15 if kind == "clover" else 0.3
        return [(0.0, low), *((r * math.sin(t), low - r * math.cos(t)) for t, r in zip(turns, reach))]
    along = np.linspace(0, 1, 81)
    wide = {"willow": 0.085 * np.sin(np.pi * along) ** 0.8}.get(kind)
    if wide is None:  # an oak's round lobes
        wide = 0.27 * np.sin(np.pi * along**0.85) ** 0.6 * (0.78 + 0.3 * np.cos(9 * np.pi * along))
    right = [(float(w), 0.45 - 0.95 * float(t)) for t, w in zip(along, wide)]
    return right + [(-x, y) for x, y in reversed(right)]


def leaf(kind: str, number: int, side: int = SIDE) -> Image.Image:
    """Return leaf ``number`` of a kind: oak, willow, clover or ginkgo."""
    rng = np.random.default_rng([number, ("oak", "willow", "clover", "ginkgo").index(kind)])
    many = 2 * side  # drawn at twice the size, so that its edge is soft
    paper = np.array([226, 218, 204]) + rng.normal(0, 4, 3) + rng.normal(0, 3, (many, many, 3))
    image = Image.fromarray(np.clip(paper, 0, 255).astype(np.uint8))
    turn, scale = rng.uniform(-0.9, 0.9), many * rng.uniform(0.72, 0.92)
    middle = many / 2 + rng.uniform(-0.05, 0.05, 2) * many

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            middle[0] + scale * (x * math.cos(turn) - y * math.sin(turn)),
            middle[1] + scale * (x * math.sin(turn) + y * math.cos(turn)),
        )

    colour = tuple(int(v) for v in np.clip(np.array(GREENS[rng.integers(4)]) + rng.normal(0, 10, 3), 0, 255))
    dark = tuple(int(0.72 * v) for v in colour)
    outline = [at(x, y) for x, y in _outline(kind)]
    shadow = Image.new("L", image.size, 0)
    ImageDraw.Draw(shadow).polygon([(x + many / 50, y + many / 40) for x, y in outline], fill=90)
    image.paste((60, 54, 46), mask=shadow.filter(ImageFilter.GaussianBlur(many / 60)))
    draw = ImageDraw.Draw(image)
    draw.polygon(outline, fill=colour, outline=dark)
    draw.line([at(0, 0.53), at(0, -0.3)], fill=dark, width=max(2, many // 90))
    for step in np.linspace(0.3, -0.2, 5) if kind == "oak" else ():
        draw.line([at(0, step), at(0.13, step - 0.13)], fill=dark, width=max(1, many // 250))
        draw.line([at(0, step), at(-0.13, step - 0.13)], fill=dark, width=max(1, many // 250))
    return image.resize((side, side), Image.Resampling.LANCZOS)


def write_leaves(folder: Path, kinds: tuple[str, ...] = ("clover", "oak", "willow"), count: int = 20) -> Path:
    """Write photos of leaves, one folder for each kind."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            leaf(kind, number).save(folder / kind / f"{kind}-{number:02d}.jpg", quality=90)
    return folder
