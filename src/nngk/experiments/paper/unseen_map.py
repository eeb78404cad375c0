"""The supplement's map of unseen classes, and what retrieval among them finds."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nngk import Model
from nngk.data import Images, ImageTable, centre_crop, square
from nngk.experiments.paper.train_and_test import train_and_test
from nngk.experiments.paper.trial import Experiment, Job, Trial, View
from nngk.files import write_atomically
from nngk.networks.embed import embed
from nngk.search import Exact
from nngk.training.presets import metric_settings

FOLDER = "embedding"
SIZE = 512
QUERIES, FOUND = 8, 7
TILE, LARGE_TILE = 40, 112
COMPONENTS = 50  # principal components that t-SNE reads, as many as its authors advise


def mapped(job: Job) -> dict[str, Any]:
    """Train as the retrieval tables do, then keep what a map and a gallery of the unseen classes need.

    Coordinates of the map are computed where scikit-learn is; it need not be on the machine that trains.
    """
    figures = train_and_test(job)
    model = Model.load(job.folder, job.settings.device)
    table = job.table.where("test").compact()
    spec = model.network.input
    x = embed(
        model.network,
        Images(table, spec.resize, job.settings.cache, squash=spec.squash),
        centre_crop(spec.size, spec.mean, spec.std),
        device=model.device,
        amp=bool(job.settings.amp),
    )
    queries = np.sort(np.random.default_rng(job.seed).permutation(len(table))[:QUERIES])  # at random, not picked
    found = Exact(x).search(x[queries], min(FOUND + 1, len(table)))[1]
    content: dict[str, np.ndarray] = {
        "components": principal_components(x, COMPONENTS).cpu().numpy().astype(np.float16),
        "labels": table.labels.astype(np.int32),
        "class_names": np.array(table.class_names),
        "queries": queries,
        "found": _without_self(found.cpu().numpy(), queries),
    }
    path = job.results / FOLDER / f"{job.name}.npz"
    write_arrays(path, content)
    keep_pictures(table, path, content["queries"], content["found"])
    return figures


def principal_components(x: Tensor, count: int) -> Tensor:
    """Return the embeddings (n, dim) along their ``count`` widest directions.

    >>> x = torch.tensor([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> principal_components(x, 1).abs().squeeze(1).round().tolist()
    [3.0, 3.0, 0.0, 0.0]
    """
    centred = (x - x.mean(0)).double()
    vectors = torch.linalg.eigh(centred.T @ centred).eigenvectors
    return (centred @ vectors.flip(1)[:, : min(count, x.shape[1])]).float()


def _without_self(found: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the neighbours of each query without the query, wherever it stands among them."""
    return np.stack([row[row != query][: found.shape[1] - 1] for row, query in zip(found, queries)])


def write_arrays(path: Path, content: dict[str, np.ndarray]) -> None:
    """Write a compressed npz file, atomically."""

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **content)  # type: ignore[arg-type]

    write_atomically(path, write)


def keep_pictures(table: ImageTable, path: Path, queries: np.ndarray, found: np.ndarray) -> None:
    """Write small copies of the pictures into a folder that git ignores: the datasets are not ours to publish."""
    folder = path.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    gallery = np.concatenate([queries[:, None], found], axis=1).reshape(-1)
    for name, rows, size in (("all", np.arange(len(table)), TILE), ("gallery", gallery, LARGE_TILE)):
        write_atomically(folder / f"{path.stem}-{name}.jpg", partial(_save, contact_sheet(table, rows, size)))


def _save(sheet: Image.Image, part: Path) -> None:
    sheet.save(part, format="JPEG", quality=88)


def contact_sheet(table: ImageTable, rows: np.ndarray, size: int) -> Image.Image:
    """Return pictures of a table in a square of tiles, row by row."""
    across = math.ceil(math.sqrt(len(rows)))
    sheet = np.full((math.ceil(len(rows) / across) * size, across * size, 3), 255, dtype=np.uint8)
    for place, row in enumerate(rows.tolist()):
        top, left = place // across * size, place % across * size
        box = None if table.boxes is None else table.boxes[row]
        sheet[top : top + size, left : left + size] = square(table.paths[row], size, box).permute(1, 2, 0).numpy()
    return Image.fromarray(sheet)


def _trials(preset: str, network: str) -> list[Trial]:
    makes = (f"{FOLDER}/{{name}}.npz",)
    return [
        Trial(
            dataset,
            network,
            metric_settings(preset, SIZE, network),
            settled=preset != "frozen",
            execute=mapped,
            makes=makes,
        )
        for dataset in ("cub200", "cars196")
    ]


EMBEDDING = Experiment(
    "embedding",
    "A map of classes never trained",
    "Supplement, Figures 5 and 6",
    "The test classes of the retrieval tables, laid out by t-SNE: none of them was seen in training.",
    _trials,
    View("embedding", ("recall@1", "nmi", "map@r")),
    "googlenet",
    one_seed=True,
)
