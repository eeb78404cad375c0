"""What the kernels know before any training: on a network's features, and on their discriminant.

    python benchmarks/start.py --data DIR --weights FILE [--network resnet50-v1] [--dataset flowers102] [--out results]

The training images are the centres, the validation images the questions; σ is the one that suits these best. No test
image is read.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from record import append_rows, circumstances
from torch import Tensor

from nngk.data import Images, evaluation, read_images
from nngk.kernel.formulas import class_log_probabilities, log_kernels
from nngk.kernel.sigma import best_sigma
from nngk.networks import create_network
from nngk.networks.embed import embed
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.search import Exact
from nngk.training.feed import Features


def accuracy(centres: Tensor, labels: Tensor, questions: Tensor, truth: Tensor, k: int = 200) -> float:
    """The share of right answers of the kernels at unit length, all weights one."""
    c, q = (torch.nn.functional.normalize(x, dim=1) for x in (centres, questions))
    squared, found = Exact(c).search(q, min(k, len(c)))
    sigma = best_sigma(squared, labels[found] == truth[:, None])
    logs = class_log_probabilities(
        log_kernels(squared, sigma, torch.zeros_like(squared)), labels[found], int(labels.max()) + 1
    )
    return float((logs.argmax(1) == truth).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--network", default="resnet50-v1")
    parser.add_argument("--dataset", default="flowers102")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 101, 512])
    parser.add_argument("--layers", type=int, default=1, help="of the last feature maps, pooled side by side")
    parser.add_argument("--resize", type=int, help="side of the image that is read; else what the weights expect")
    parser.add_argument("--crop", type=int, help="side of the crop from it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit, where git is not there to ask")
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    network = create_network(
        given.network, weights=given.weights, pool="avg+max", layers=given.layers, layer_norm=True
    ).to(given.device)
    table, spec = read_images(given.dataset, data_dir=given.data), network.input
    spec = replace(spec, resize=given.resize or spec.resize, size=given.crop or spec.size)
    plain, features = evaluation(spec.size, spec.mean, spec.std), Features(network, pooled=False)
    parts = [table.where("train"), table.where("val")]
    centres, questions = (embed(features, Images(part, spec.resize), plain, device=given.device) for part in parts)
    labels, truth = (torch.as_tensor(part.labels).to(given.device) for part in parts)
    shared = {"dataset": given.dataset, "network": given.network, "layers": given.layers, "seed": 0}
    shared |= {"resize": spec.resize, "crop": spec.size}
    right = accuracy(centres, labels, questions, truth)
    rows = [shared | {"on": "features", "dim": centres.shape[1], "accuracy": right}]
    for dim in given.dims:
        w, middle = discriminant(centres, labels, dim), centres.mean(0)
        right = accuracy((centres - middle) @ w, labels, (questions - middle) @ w, truth)
        rows.append(shared | {"on": "discriminant", "dim": dim, "accuracy": right})
    facts = circumstances(given.device, given.commit)
    append_rows(given.out / "start.csv", [row | {"accuracy": round(row["accuracy"], 5)} | facts for row in rows])
    for row in rows:
        print(f"{row['on']:14} {row['dim']:>5} dimensions  {100 * row['accuracy']:.2f}%")


if __name__ == "__main__":
    main()
