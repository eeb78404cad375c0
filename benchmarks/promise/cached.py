"""The features of a dataset's images, computed once and kept: what every method of these benchmarks reads.

A file is DATASET-NETWORK.npz with ``x`` (n, channels), the labels ``y`` (n,), ``split`` (n,) with 'train', 'val' and
'test', and the class ``names``. Features from elsewhere are measured by putting such a file there.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nngk import create_network
from nngk.data import Images, ImageTable, centre_crop, read_images
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.networks.embed import embed

IMAGES = "Read these datasets from CSV files with the columns path,label,split, or from folders."
DATASETS = ("flowers102", "leafsnap", "cub200", "cars196")


@dataclass(frozen=True)
class Cached:
    """A dataset as a frozen network sees it."""

    dataset: str
    network: str
    x: Tensor  # (n, channels)
    y: Tensor  # (n,)
    parts: np.ndarray  # (n,) of 'train', 'val' and 'test'
    names: list[str]
    quick: bool = False

    def select(self, rows: Tensor) -> "Cached":
        """Return some of the rows (a mask), with the classes that they have, counted anew."""
        present, y = self.y[rows].unique(return_inverse=True)
        names = [self.names[i] for i in present.tolist()]
        kept = self.parts[rows.cpu().numpy()]
        return Cached(self.dataset, self.network, self.x[rows], y, kept, names, self.quick)

    @property
    def is_test(self) -> Tensor:
        return torch.as_tensor(self.parts == "test", device=self.y.device)

    def table(self) -> ImageTable:
        """Return a table of the rows, each named by its number; its images are never read."""
        paths = [Path(f"{i}.jpg") for i in range(len(self.y))]
        return ImageTable(
            paths, self.y.cpu().numpy(), self.names, splits=self.parts.tolist(), name=self.dataset, task="classify"
        )


def read_cached(path: Path, dataset: str, network: str, quick: bool, device: str = "cpu") -> Cached:
    with np.load(path, allow_pickle=False) as file:
        x, y = (torch.from_numpy(file[name]).to(device) for name in ("x", "y"))
        return Cached(dataset, network, x.float(), y, file["split"], file["names"].tolist(), quick)


def computed(table: ImageTable, network: str, path: Path, quick: bool, device: str = "cpu") -> None:
    """Write the pooled features of a table's images as 'nngk train' reads them: one crop of each."""
    built = create_network(network, weights="random" if quick else "imagenet", pool="avg+max").eval()
    spec = built.input
    size, resize = (16, 16) if quick else (spec.size, spec.resize)
    pooled = nn.Sequential(built.backbone, built.head.pool).to(memory_format=torch.channels_last)  # twice as fast
    rows = embed(pooled.to(device), Images(table, resize), centre_crop(size, spec.mean, spec.std), device=device)
    names, parts = np.array(table.class_names), np.array(table.splits)
    np.savez(path, x=rows.cpu().numpy().astype(np.float16), y=table.labels, split=parts, names=names)


def promise_options(
    doc: str | None, out: str, usual: tuple[str, ...] = DATASETS, **more: dict[str, Any]
) -> argparse.Namespace:
    """Return the options that benchmarks on cached features share; ``more`` are those of one of them."""
    parser = benchmark_parser(doc, out)
    parser.add_argument("--data", type=Path, help="The folder that holds the datasets.  [default: NNGK_DATA]")
    parser.add_argument("--datasets", nargs="+", help=f"[default: those of --images, or {' '.join(usual)}]")
    parser.add_argument("--images", nargs="+", default=[], metavar="NAME=FILE", help=IMAGES)
    parser.add_argument("--features", type=Path, default=Path("runs/promise"), help="Keep features in this folder.")
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--allow-missing", action="store_true", help="Go on where images of a dataset are not there.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    given = benchmark_options(parser)
    given.images = dict(text.split("=", 1) for text in given.images if "=" in text)
    given.datasets = given.datasets or list(given.images) or list(usual)
    if given.quick:
        given.datasets, given.network, given.seeds = given.datasets[:1], "small", [0]
    return given


@contextmanager
def all_cached(given: argparse.Namespace) -> Iterator[Iterator[Cached]]:
    """Yield the features of every dataset that was asked for, one after the other."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) if given.quick else given.features
        yield (_cached(given, dataset, folder) for dataset in given.datasets)


def _cached(given: argparse.Namespace, dataset: str, folder: Path) -> Cached:
    path = folder / f"{dataset}-{given.network}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        computed(_table(given, dataset, folder), given.network, path, given.quick, given.device)
    return read_cached(path, dataset, given.network, given.quick, given.device)


def _table(given: argparse.Namespace, dataset: str, folder: Path) -> ImageTable:
    if dataset in given.images:
        return read_images(Path(given.images[dataset]))
    return Sources(given.data, None, folder, given.quick, given.allow_missing).table(dataset, "classify")
