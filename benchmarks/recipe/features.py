"""Which features of a pretrained network tell unseen birds apart before any training? Judged on validation classes.

    python benchmarks/recipe/features.py --data DIR --weights DIR [--network resnet50] [--folds 0 1]

Layers, poolings and sizes of the image that is read; on all of them the discriminant of one half of CUB's 100 training
classes, looked at on the other half. The test classes are never read. Rows: results/features.csv.
"""

import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from validation_classes import class_halves, scores

from nngk import create_network
from nngk.data import Augmentation, Images, ImageTable, centre_crop
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.networks import EmbeddingNetwork, InputSpec
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.networks.heads import POOLS

TAPS = {
    "resnet50": ("layer2", "layer3", "layer4"),
    "googlenet": ("inception4e", "inception5a", "inception5b"),
    "small": ("stem", "stage1", "stage2"),  # of a quick run
}
READINGS = ((256, 224), (256, 256), (288, 256), (288, 288), (320, 288), (352, 320), (400, 352))
CROPS = 4  # of each training image, where its spread is measured with crops as well
SHOWN = ("features", "resize", "crop", "dim", "shrinkage", "fold", "recall@1", "map@r")


class Taps:
    """Run a network and keep the pooled, normalised maps of some of its layers."""

    def __init__(self, network: EmbeddingNetwork, layers: tuple[str, ...]) -> None:
        self.network, self.pools = network, {name: POOLS[name]() for name in ("avg", "max", "avg+max")}
        self.rows: dict[str, list[Tensor]] = {}
        for layer in layers:
            network.backbone.get_submodule(layer).register_forward_hook(self._keep(layer))

    def _keep(self, layer: str) -> Any:
        def hook(module: nn.Module, given: Any, out: Tensor) -> None:
            for name, pool in self.pools.items():
                pooled = pool(out.float())
                self.rows.setdefault(f"{layer} {name}", []).append(nn.functional.layer_norm(pooled, pooled.shape[1:]))

        return hook

    @torch.no_grad()
    def __call__(self, batches: Iterator[Tensor]) -> dict[str, Tensor]:
        self.rows = {}
        for batch in batches:
            with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
                self.network.backbone(batch.contiguous(memory_format=torch.channels_last))
        return {name: torch.cat(rows) for name, rows in self.rows.items()}


class Reading(NamedTuple):
    """Features of all images, those whose spread the discriminant measures, and the classes of these."""

    x: Tensor
    measured: Tensor
    classes: Tensor


def transformed(images: Images, device: str, how: Callable[..., Tensor], *options: Any) -> Iterator[Tensor]:
    """Yield all images in batches on the device."""
    for indices in torch.arange(len(images)).split(128):
        yield how(images.batch(indices).to(device), *options)


def first_readings(
    read: dict[str, Tensor], layers: tuple[str, ...], labels: Tensor, taps: Taps, images: Images, spec: InputSpec
) -> dict[str, Reading]:
    """Return, for the first size of the image, also groups of layers and the spread of crops."""
    readings = {key: Reading(x, x, labels) for key, x in read.items()}
    for group in (layers[-2:], layers[-3:]):
        both = torch.cat([read[f"{layer} max"] for layer in group], 1)
        readings["+".join(group) + " max"] = Reading(both, both, labels)
    augment = Augmentation(spec.size, "resized", (0.16, 1.0), mean=spec.mean, std=spec.std)
    luck = torch.Generator().manual_seed(0)
    device, key = str(labels.device), f"{layers[-1]} max"
    crops = [taps(transformed(images, device, augment, luck))[key] for _ in range(CROPS)]
    readings[f"{key}, spread of crops"] = Reading(read[key], torch.cat(crops), labels.repeat(CROPS))
    return readings


def measure(reading: Reading, table: ImageTable, labels: Tensor, fold: int, dim: int, shrinkage: float) -> dict:
    """Return the figures of the discriminant of one half of the classes on the other."""
    x, measured, classes = reading
    places = {path: row for row, path in enumerate(table.paths)}
    halves = class_halves(table, fold)[:2]
    train, held = (torch.tensor([places[path] for path in half.paths], device=x.device) for half in halves)
    among = torch.cat([train + turn * len(x) for turn in range(len(measured) // len(x))])
    w = discriminant(measured[among], classes[among], dim, shrinkage)
    found = scores(nn.functional.normalize((x[held] - x[train].mean(0)) @ w, dim=1), labels[held])
    return {name: round(found[name], 5) for name in ("recall@1", "map@r")}


def main() -> None:
    parser = benchmark_parser(__doc__, "results/features.csv")
    add_sources(parser)
    parser.add_argument("--network", choices=list(TAPS), default="resnet50")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    given = benchmark_options(parser)
    if given.quick:
        given.network, given.dims = "small", [2]
    layers, sizes = TAPS[given.network], ((16, 16), (18, 16)) if given.quick else READINGS
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(given.data, given.weights, Path(home), given.quick)
        table = sources.table("cub200", "metric").where("train").compact()
        name, weights = sources.network(given.network)
        network = create_network(name, weights=weights, dim=None, pool="avg", layers=1, layer_norm=False)
        network = network.to(given.device).eval().to(memory_format=torch.channels_last)
        taps, spec = Taps(network, layers), network.input
        labels = torch.as_tensor(table.labels).to(given.device)
        for number, (side, size) in enumerate(sizes):
            images = Images(table, side, given.cache or Path(home) / "images", squash=True)
            read = taps(transformed(images, given.device, centre_crop(size, spec.mean, spec.std)))
            readings = {key: Reading(x, x, labels) for key, x in read.items() if key.startswith(layers[-1])}
            if number == 0:
                spec = InputSpec(size, side, spec.mean, spec.std)
                readings = first_readings(read, layers, labels, taps, images, spec)
            rows = []
            for (key, reading), fold, dim, shrinkage in product(readings.items(), given.folds, given.dims, (3.0, 10.0)):
                row = {"network": name, "features": key, "resize": side, "crop": size, "dim": dim}
                row |= {"shrinkage": shrinkage, "fold": fold}
                rows.append(row | measure(reading, table, labels, fold, dim, shrinkage))
                print(*(rows[-1][column] for column in SHOWN), flush=True)
            append_rows(given.out, [row | provenance(given.device, given.commit) for row in rows])


if __name__ == "__main__":
    main()
