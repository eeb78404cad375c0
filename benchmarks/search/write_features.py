"""Write the features of real images for the other benchmarks of search: pooled, normalised, in random order.

python benchmarks/search/write_features.py --dataset cub200 --data-dir DIR --out cub200.npy
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from nngk import create_network, read_images
from nngk.data import Images, centre_crop
from nngk.experiments.paper.quick import quick_table
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.networks.embed import embed


def main() -> None:
    parser = benchmark_parser(__doc__, "features.npy")
    parser.add_argument("--dataset", default="cub200", help="The dataset whose images are embedded.")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    torch.set_num_threads(given.threads)
    name, weights = ("small", "random") if given.quick else (given.network, "imagenet")
    network = create_network(name, weights=weights, dim=None, pool="avg", layers=1, layer_norm=False)
    spec = network.input
    with tempfile.TemporaryDirectory() as home:
        quick = quick_table(Path(home), given.dataset, "classify") if given.quick else None
        table = quick or read_images(given.dataset, data_dir=given.data_dir)
        table = table.select(np.random.default_rng(given.seed).permutation(len(table)))
        images = Images(table, spec.resize, threads=given.threads, squash=True)
        x = embed(network, images, centre_crop(spec.size, spec.mean, spec.std), batch_size=32, device=given.device)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.save(given.out, x.cpu().numpy(), allow_pickle=False)
    print(f"{given.out}: {tuple(x.shape)}")


if __name__ == "__main__":
    main()
