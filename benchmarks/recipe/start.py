"""What do the kernels know before any training, on a network's features and on their discriminant?

    python benchmarks/recipe/start.py --data DIR --weights FILE [--network resnet50-v1] [--dataset flowers102]

The training images are the centres, the validation images the questions; σ is the one that suits these best. No test
image is read. Rows: results/start.csv.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nngk import create_network, read_images
from nngk.data import Images, centre_crop
from nngk.experiments.paper.quick import quick_table
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.kernel.formulas import class_log_probabilities, log_kernels
from nngk.kernel.sigma import best_sigma
from nngk.networks.embed import embed
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.search import Exact
from nngk.training.feed import Features


def accuracy(centres: Tensor, labels: Tensor, questions: Tensor, truth: Tensor, k: int = 200) -> float:
    """Return the share of right answers of the kernels at unit length, with all weights one."""
    c, q = (torch.nn.functional.normalize(x, dim=1) for x in (centres, questions))
    squared, found = Exact(c).search(q, min(k, len(c)))
    sigma = best_sigma(squared, labels[found] == truth[:, None])
    logs = class_log_probabilities(
        log_kernels(squared, sigma, torch.zeros_like(squared)), labels[found], int(labels.max()) + 1
    )
    return float((logs.argmax(1) == truth).float().mean())


def main() -> None:
    parser = benchmark_parser(__doc__, "results/start.csv")
    add_sources(parser)
    parser.add_argument("--network", default="resnet50-v1")
    parser.add_argument("--dataset", default="flowers102")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 101, 512])
    parser.add_argument("--layers", type=int, default=1, help="How many of the last feature maps are pooled.")
    parser.add_argument("--resize", type=int, help="The side of the image that is read.  [default: the weights']")
    parser.add_argument("--crop", type=int, help="The side of the crop from it.  [default: the weights']")
    given = benchmark_options(parser)
    if given.quick:
        given.network, given.weights, given.dims, given.resize, given.crop = "small", "random", [2, 4], 16, 16
    network = create_network(
        given.network,
        dim=None,
        weights=given.weights or "imagenet",
        pool="avg+max",
        layers=given.layers,
        layer_norm=True,
    ).to(given.device)
    spec, features = network.input, Features(network, pooled=False)
    spec = replace(spec, resize=given.resize or spec.resize, size=given.crop or spec.size)
    plain = centre_crop(spec.size, spec.mean, spec.std)
    with tempfile.TemporaryDirectory() as home:
        quick = quick_table(Path(home), given.dataset, "classify") if given.quick else None
        table = quick or read_images(given.dataset, data_dir=given.data)
        parts = [table.where("train"), table.where("val")]
        centres, questions = (
            embed(features, Images(part, spec.resize, given.cache, squash=True), plain, device=given.device)
            for part in parts
        )
    labels, truth = (torch.as_tensor(part.labels).to(given.device) for part in parts)
    shared = {"dataset": given.dataset, "network": given.network, "layers": given.layers, "seed": 0}
    shared |= {"resize": spec.resize, "crop": spec.size}
    right = accuracy(centres, labels, questions, truth)
    rows = [shared | {"on": "features", "dim": centres.shape[1], "accuracy": right}]
    for dim in given.dims:
        w, middle = discriminant(centres, labels, dim), centres.mean(0)
        right = accuracy((centres - middle) @ w, labels, (questions - middle) @ w, truth)
        rows.append(shared | {"on": "discriminant", "dim": dim, "accuracy": right})
    origin = provenance(given.device, given.commit)
    append_rows(given.out, [row | {"accuracy": round(row["accuracy"], 5)} | origin for row in rows])
    for row in rows:
        print(f"{row['on']:14} {row['dim']:>5} dimensions  {100 * row['accuracy']:.2f}%")


if __name__ == "__main__":
    main()
