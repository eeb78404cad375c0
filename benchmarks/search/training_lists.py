"""Does training with FANNG's neighbour lists end as well as with exact ones? Digits, and a head on CUB's features.

    python benchmarks/search/write_features.py --dataset cub200 --data-dir DIR --out cub200.npy
    python benchmarks/search/training_lists.py --data digits
    python benchmarks/search/training_lists.py --data cub200 --data-dir DIR --features cub200.npy

Rows: results/search_training.csv.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nngk import CentreBank, GaussianKernelLoss, evaluate, progress, read_images, train
from nngk.bank.refresh import Refresher
from nngk.experiments.demo import digits as demo
from nngk.experiments.record import append_rows, provenance, read_log
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.kernel.formulas import class_log_probabilities, log_kernels
from nngk.search import Exact, create_engine

EPOCHS = 15
BATCH = 64
NEIGHBOURS = 100


class Head(nn.Module):
    """Features to an embedding of unit length."""

    def __init__(self, width: int, dim: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(self.linear(x))


def digits(search: str, seed: int, epochs: int, step: int, home: Path) -> dict[str, Any]:
    """Return the figures of a small network trained on every so many digits."""
    settings = replace(demo.SETTINGS, epochs=epochs, search=search, seed=seed)
    out = home / f"{search}-{seed}"
    table = read_images(demo.write_digits(home / "digits"))
    model = train(table.select(range(0, len(table), step)), settings, out=out)
    recalls = [row["list_recall"] for row in read_log(out) if "list_recall" in row]
    scores = {key: model.info["test"][key] for key in ("accuracy", "recall@1", "map@r")}
    return {"list_recall_least": min(recalls, default=1.0)} | scores


def head(search: str, seed: int, x: Tensor, labels: Tensor, trained: Tensor) -> dict[str, Any]:
    """Return the figures of a linear head on frozen features, with the bank's lists by one engine."""
    torch.manual_seed(seed)
    network = Head(x.shape[1])
    features, classes = x[trained], labels[trained]
    bank = CentreBank(classes, dim=64, n_neighbours=NEIGHBOURS)
    engine = create_engine(search, dim=64, k=NEIGHBOURS, seed=seed)
    refresher = Refresher(bank, lambda net: net(features).detach(), every=-(-len(classes) // BATCH), engine=engine)
    refresher.refresh(0, network)
    loss = GaussianKernelLoss(bank)
    optimiser = torch.optim.AdamW([*network.parameters(), bank.theta], lr=3e-3)
    step = 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(classes)).split(BATCH):
            refresher.before_step(step, network)
            optimiser.zero_grad()
            loss(network(features[rows]), classes[rows], rows).backward()
            optimiser.step()
            step += 1
    refresher.refresh(step, network)
    asked = network(x[~trained]).detach()
    squared, found = Exact(bank.centres).search(asked, NEIGHBOURS)
    values = log_kernels(squared, loss.sigma, bank.theta.detach()[found])
    answers = class_log_probabilities(values, bank.labels[found], int(labels.max()) + 1).argmax(1)
    scores = evaluate(asked, labels[~trained], nmi_seeds=1)
    row = {
        "list_recall_least": min(done.list_recall for done in refresher.history),
        "refreshes": len(refresher.history),
    }
    row["accuracy"] = float((answers == labels[~trained]).float().mean())
    return row | {key: scores[key] for key in ("recall@1", "map@r")}


def main() -> None:
    parser = benchmark_parser(__doc__, "results/search_training.csv")
    parser.add_argument("--data", choices=["digits", "cub200"], default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--features", type=Path, help="The file that write_features.py wrote.")
    parser.add_argument("--seeds", type=int, default=3)
    given = benchmark_options(parser)
    progress.quiet = True
    torch.set_num_threads(1)  # small products: a second thread would wait more than it works
    seeds, epochs, step = (1, 1, 8) if given.quick else (given.seeds, EPOCHS, 1)
    if given.data == "cub200":
        table = read_images("cub200", data_dir=given.data_dir)
        table = table.select(np.random.default_rng(0).permutation(len(table)))  # the order of the features
        x = torch.from_numpy(np.load(given.features, allow_pickle=False)).float()
        labels, trained = torch.as_tensor(table.labels), torch.tensor([part == "train" for part in table.splits or []])
    for seed in range(seeds):
        for search in ("exact", "fanng"):
            with tempfile.TemporaryDirectory() as folder:
                if given.data == "digits":
                    row = digits(search, seed, epochs, step, Path(folder))
                else:
                    row = head(search, seed, x, labels, trained)
            row = {"data": given.data, "search": search, "seed": seed, "epochs": epochs} | row
            print(row, flush=True)
            append_rows(given.out, [row | provenance("cpu", given.commit)])


if __name__ == "__main__":
    main()
