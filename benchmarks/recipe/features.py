"""Which features of a pretrained network tell unseen birds apart, before any training? Judged on validation classes.

    python benchmarks/features.py --data DIR --weights DIR [--network resnet50] [--folds 0 1] [--out results]

Layers, poolings and sizes of the image that is read; on all of them the discriminant of the training half of CUB's 100
training classes, looked at on the other half. The test classes are never read.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from record import append_rows, circumstances
from torch import Tensor, nn
from validation_runs import class_block, resident_pixels, resized

from nngk.data import Augmentation, evaluation
from nngk.experiments.paper.sources import Sources
from nngk.metrics import evaluate
from nngk.networks import create_network
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.networks.heads import POOLS
from nngk.networks.network import EmbeddingNetwork

TAPS = {
    "resnet50": ("layer2", "layer3", "layer4"),
    "googlenet": ("inception4e", "inception5a", "inception5b"),
}
READINGS = ((256, 224), (256, 256), (288, 256), (288, 288), (320, 288), (352, 320), (400, 352))
CROPS = 4  # of a training image, where its spread is measured with crops as well


class Taps:
    """Runs a network and keeps the pooled, normalised maps of some of its layers."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CUB-200-2011 or a pack of it")
    parser.add_argument("--weights", required=True, help="the folder of the weights files")
    parser.add_argument("--network", choices=list(TAPS), default="resnet50")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--cache", type=Path, help="folder of the decoded images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit, where git is not there to ask")
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(given.data, given.weights, Path(home), quick=False)
        table = sources.table("cub200", "metric").where("train").compact()
        pixels = resident_pixels(table, 256, given.device, given.cache)
        name, weights = sources.network(given.network)
        network = create_network(name, weights=weights).to(given.device).eval().to(memory_format=torch.channels_last)
    taps, spec, layers = Taps(network, TAPS[given.network]), network.input, TAPS[given.network]
    labels = torch.as_tensor(table.labels).to(given.device)
    places = {path: row for row, path in enumerate(table.paths)}
    last, facts = layers[-1], circumstances(given.device, given.commit)
    for number, (side, size) in enumerate(READINGS):
        images, plain = resized(pixels, side), evaluation(size, spec.mean, spec.std)
        read = taps(plain(images[i]) for i in torch.arange(len(images)).split(128))
        sets = {key: (read[key], read[key], labels) for key in read if key.startswith(last)}
        if number == 0:
            sets = {key: (rows, rows, labels) for key, rows in read.items()}
            for group in (layers[-2:], layers[-3:]):
                both = torch.cat([read[f"{layer} max"] for layer in group], 1)
                sets["+".join(group) + " max"] = (both, both, labels)
            augment = Augmentation(size, "resized", (0.16, 1.0), mean=spec.mean, std=spec.std)
            luck = torch.Generator().manual_seed(0)
            crops = [taps(augment(images[i], luck) for i in torch.arange(len(images)).split(128)) for _ in range(CROPS)]
            key = f"{last} max"
            sets[f"{key}, spread of crops"] = (read[key], torch.cat([c[key] for c in crops]), labels.repeat(CROPS))
        rows = []
        for (key, (x, measured, classes)), fold, dim, shrinkage in product(
            sets.items(), given.folds, given.dims, (3.0, 10.0)
        ):
            parts = class_block(table, fold)
            train, held = (torch.tensor([places[p] for p in part.paths], device=x.device) for part in parts[:2])
            among = torch.cat([train + turn * len(x) for turn in range(len(measured) // len(x))])
            w = discriminant(measured[among], classes[among], dim, shrinkage)
            found = nn.functional.normalize((x[held] - x[train].mean(0)) @ w, dim=1)
            scores = evaluate(found, labels[held], ks=(1,), nmi_seeds=0)
            row = {"network": name, "features": key, "resize": side, "crop": size, "dim": dim, "shrinkage": shrinkage}
            row |= {"fold": fold, "recall@1": round(scores["recall@1"], 5), "map@r": round(scores["map@r"], 5)}
            rows.append(row | facts)
        append_rows(given.out / "features.csv", rows)
        for row in rows:
            print(*(row[k] for k in ("features", "resize", "crop", "dim", "shrinkage", "fold", "recall@1", "map@r")))


if __name__ == "__main__":
    main()
