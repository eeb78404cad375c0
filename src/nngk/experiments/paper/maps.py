"""The map of unseen classes and the galleries of what was found, from what the experiment left."""

import base64
import colorsys
import io
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from nngk.errors import InputError, MissingExtra
from nngk.experiments.paper.scores import Group
from nngk.experiments.paper.unseen_map import FOLDER, LARGE_TILE, TILE, write_arrays
from nngk.progress import say

WIDTH, HEIGHT = 1500, 1000


@dataclass
class Found:
    """A picture of a gallery: its place on the sheet, its class, and whether that is the query's."""

    tile: int
    label: str
    right: bool


@dataclass
class EmbeddingFile:
    """What one run of the experiment left."""

    path: Path
    arrays: dict[str, np.ndarray]

    @cached_property
    def labels(self) -> np.ndarray:
        return self.arrays["labels"]

    def name_of(self, row: int) -> str:
        """Return the class of a picture as people write it: '101.White_Pelican' is White Pelican."""
        name = str(self.arrays["class_names"][self.labels[row]])
        return name.split(".", 1)[-1].replace("_", " ") if name[:1].isdigit() else name.replace("_", " ")

    def sheet(self, kind: str) -> Image.Image | None:
        """Return the small copies of the pictures; None where they are not at hand."""
        path = self.path.parent / "pictures" / f"{self.path.stem}-{kind}.jpg"
        return Image.open(path).convert("RGB") if path.exists() else None

    def gallery(self) -> list[list[Found]]:
        """Return one row per query: the query, then what was found, nearest first."""
        rows = []
        width = 1 + self.arrays["found"].shape[1]
        for place, (query, found) in enumerate(zip(self.arrays["queries"], self.arrays["found"])):
            members = [int(query), *found.tolist()]
            rows.append(
                [
                    Found(place * width + i, self.name_of(row), bool(self.labels[row] == self.labels[query]))
                    for i, row in enumerate(members)
                ]
            )
        return rows

    def coordinates(self) -> np.ndarray | None:
        """Return the t-SNE map (n, 2), computed once and kept in the file; None where scikit-learn is not installed."""
        if "xy" not in self.arrays:
            try:
                self.arrays["xy"] = layout(self.arrays["components"].astype(np.float32))
            except MissingExtra as error:
                say(f"No map: {error}")
                return None
            del self.arrays["components"]  # the larger part of the file, which nobody needs any more
            write_arrays(self.path, self.arrays)
        return self.arrays["xy"]


def read_embedding(results: Path, group: Group) -> EmbeddingFile | None:
    """Return the file of a trial's run; None where it is not at hand."""
    path = results / FOLDER / f"{group.dataset}-{group.rows[0]['key']}.npz"
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as content:
            return EmbeddingFile(path, {name: content[name] for name in content.files})
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it and run the experiment 'embedding' again.") from None


def layout(components: np.ndarray) -> np.ndarray:
    """Return the t-SNE of principal components, scaled into the unit square."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "demo", "The map of the embedding") from None
    perplexity = min(30.0, (len(components) - 1) / 3)
    say(f"Laying out {len(components)} images by t-SNE …")
    xy = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(components)
    low, high = xy.min(0), xy.max(0)
    scaled: np.ndarray = ((xy - low) / np.maximum(high - low, 1e-9)).astype(np.float32)
    return scaled


def picture_map(xy: np.ndarray, sheet: Image.Image, tile: int = TILE) -> Image.Image:
    """Return thumbnails at their places on the map, as many as do not hide each other."""
    across = sheet.width // TILE
    canvas = Image.new("RGB", (WIDTH, HEIGHT), "white")
    taken: set[tuple[int, int]] = set()
    for row in np.random.default_rng(0).permutation(len(xy)):
        x, y = int(xy[row, 0] * (WIDTH - tile)), int((1 - xy[row, 1]) * (HEIGHT - tile))
        spot = (x // (tile - 6), y // (tile - 6))  # a grid a little finer than the tiles: edges may touch
        if spot in taken:
            continue
        taken.add(spot)
        left, top = int(row) % across * TILE, int(row) // across * TILE
        picture = sheet.crop((left, top, left + TILE, top + TILE))
        canvas.paste(picture.resize((tile, tile)), (spot[0] * (tile - 6), spot[1] * (tile - 6)))
    return canvas


def dot_map(xy: np.ndarray, labels: np.ndarray) -> Image.Image:
    """Return the same map with a coloured dot per image, which shows the classes and nobody's pictures."""
    scale = 2  # drawn larger and shrunk: smooth dots
    canvas = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    draw = ImageDraw.Draw(canvas)
    radius = scale * max(3.0, min(9.0, 300 / math.sqrt(len(xy))))
    colours = _colours(int(labels.max()) + 1)
    for (x, y), label in zip(xy, labels):
        cx, cy = 20 + x * (WIDTH * scale - 40), 20 + (1 - y) * (HEIGHT * scale - 40)
        draw.ellipse((cx - radius, cy - radius, cx + radius, cy + radius), fill=colours[label])
    return canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def _colours(count: int) -> list[tuple[int, int, int]]:
    """Return colours that are far apart: hues by the golden angle, in three strengths."""
    out = []
    for i in range(count):
        r, g, b = colorsys.hls_to_rgb(i * 0.618034 % 1, (0.45, 0.6, 0.35)[i % 3], (0.75, 0.6, 0.85)[i // 3 % 3])
        out.append((round(255 * r), round(255 * g), round(255 * b)))
    return out


def data_uri(image: Image.Image, form: str = "JPEG") -> str:
    """Return an image as text that a page can hold."""
    return f"data:image/{form.lower()};base64," + base64.b64encode(encoded(image, form)).decode()


def encoded(image: Image.Image, form: str) -> bytes:
    """Return the bytes of an image file."""
    buffer = io.BytesIO()
    if form == "PNG":
        image.quantize(128).save(buffer, format="PNG", optimize=True)
    else:
        image.save(buffer, format=form, quality=82)
    return buffer.getvalue()


def tile_position(tile: int, sheet: Image.Image) -> tuple[int, int]:
    """Return left and top of a gallery tile on its sheet."""
    across = sheet.width // LARGE_TILE
    return tile % across * LARGE_TILE, tile // across * LARGE_TILE
