"""Write the features of real images for the other benchmarks of search, before or after training, in random order.

    python benchmarks/search/write_features.py --dataset cub200 --data-dir DIR --out cub200.npy
    python benchmarks/search/write_features.py --dataset cub200 --data-dir DIR --trained 128 --out trained.npy

After training means: embedded by a linear head that the nearest-neighbour Gaussian loss has trained on all of them.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nngk import CentreBank, GaussianKernelLoss, create_network, read_images
from nngk.bank.refresh import Refresher
from nngk.data import Images, centre_crop
from nngk.experiments.paper.quick import quick_table
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.networks.embed import embed

BATCH = 64
EPOCHS = 15


def trained(x: Tensor, labels: Tensor, dim: int, seed: int, epochs: int = EPOCHS) -> Tensor:
    """Return unit embeddings (n, dim) of features by a linear head that was trained on them."""
    torch.manual_seed(seed)
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    head = nn.Linear(x.shape[1], dim)

    def embedded(rows: Tensor) -> Tensor:
        return nn.functional.normalize(head(rows))

    bank = CentreBank(labels, dim=dim, n_neighbours=100)
    steps = -(-len(x) // BATCH)
    refresher = Refresher(bank, lambda network: embedded(x).detach(), every=steps)
    refresher.refresh(0, head)
    loss = GaussianKernelLoss(bank)
    optimiser = torch.optim.AdamW([*head.parameters(), bank.theta], lr=1e-3)
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            refresher.before_step(step, head)
            optimiser.zero_grad()
            loss(embedded(x[rows]), labels[rows], rows).backward()
            optimiser.step()
            step += 1
    return embedded(x).detach()


def main() -> None:
    parser = benchmark_parser(__doc__, "features.npy")
    parser.add_argument("--dataset", default="cub200", help="The dataset whose images are embedded.")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--pool", default="avg")
    parser.add_argument("--part", help="Only the images of this part of the dataset: train or test.")
    parser.add_argument("--trained", type=int, metavar="DIM", help="Train a head of so many dimensions on them.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    torch.set_num_threads(given.threads)
    name, weights = ("small", "random") if given.quick else (given.network, "imagenet")
    network = create_network(name, weights=weights, dim=None, pool=given.pool, layers=1, layer_norm=False)
    spec = network.input
    with tempfile.TemporaryDirectory() as home:
        quick = quick_table(Path(home), given.dataset, "classify") if given.quick else None
        table = quick or read_images(given.dataset, data_dir=given.data_dir)
        if given.part is not None:
            table = table.select([i for i, part in enumerate(table.splits or []) if part == given.part])
        table = table.select(np.random.default_rng(given.seed).permutation(len(table)))
        images = Images(table, spec.resize, threads=given.threads, squash=True)
        x = embed(network, images, centre_crop(spec.size, spec.mean, spec.std), batch_size=32, device=given.device)
    if given.trained is not None:
        x = trained(x.cpu(), torch.as_tensor(table.labels), given.trained, given.seed, 1 if given.quick else EPOCHS)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.save(given.out, x.cpu().numpy().astype(np.float16), allow_pickle=False)
    print(f"{given.out}: {tuple(x.shape)}")


if __name__ == "__main__":
    main()
