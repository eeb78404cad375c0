"""Is what 'nngk train' does on a frozen network at least as good as the obvious baselines on the same features?

    python benchmarks/promise/accuracy.py --data DIR [--datasets flowers102 leafsnap cub200 cars196] [--seeds 3]

Every method reads the same features of EfficientNet-Lite0, one crop per image, and learns from the training and
validation parts of the official splits; the test part is looked at once per method and seed. Kernels are trained as
'nngk train' does by default: learning rate, epoch and σ are chosen on the validation part, then everything but the test
part is trained on. The baselines choose C and the number of neighbours by cross-validation. Birds and cars are cropped
to their boxes. Rows: results/promise_accuracy.csv.
"""

import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from nngk import Model, create_network
from nngk.data import Images, ImageTable, Split, centre_crop
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.files import read_tensors, write_tensors
from nngk.networks.embed import Rows, embed, untransformed
from nngk.training.build import build_run
from nngk.training.everything import run_on_everything
from nngk.training.feed import Examples, Feed
from nngk.training.finish import finish
from nngk.training.loop import train_epoch, train_epochs
from nngk.training.presets import preset_settings
from nngk.training.tune import tuned_rate, use_rate

DATASETS = ("flowers102", "leafsnap", "cub200", "cars196")
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)  # of logistic regression, C
NEIGHBOURS = (1, 3, 5, 10, 20)


def features_of(table: ImageTable, network: str, folder: Path, quick: bool) -> Tensor:
    """Return the pooled features of a table's images, computed once and kept in a folder."""
    path = folder / f"{table.name}-{network}.safetensors"
    if path.exists():
        return read_tensors(path)["features"]
    built = create_network(network, weights="random" if quick else "imagenet").eval()
    spec = built.input
    size, resize = (16, 16) if quick else (spec.size, spec.resize)
    pooled = nn.Sequential(built.backbone, built.head.pool)
    rows = embed(pooled, Images(table, resize), centre_crop(size, spec.mean, spec.std))
    write_tensors(path, {"features": rows})
    return rows


def kernels(x: Tensor, table: ImageTable, network: str, seed: int, quick: bool) -> Model:
    """Return the model that 'nngk train' would make of all but the test images."""
    given = {"network": network, "seed": seed, "device": "cpu", "hold_out": False}
    given |= {"weights": "random", "epochs": 2, "dim": 8} if quick else {}
    settings = preset_settings("frozen", given, classes=len(table.class_names))
    parts = np.array(table.splits)
    tables = Split(table.where("train"), table.where("val"), table.select([]))
    examples = [
        Examples(Rows(x[torch.as_tensor(parts == part)]), torch.as_tensor(rows.labels))
        for part, rows in zip(("train", "val", "none"), tables)
    ]
    feed = Feed(*examples, untransformed, untransformed, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as home:
        run = build_run(tables, settings, Path(home), feed)
        run.begin()
        use_rate(run, tuned_rate(run, train_epoch, never))
        train_epochs(run, never)
        measured = finish(run, 0.0)
        last = run_on_everything(run)
        last.begin()
        train_epochs(last, never)
        return finish(last, 0.0, measured)


def never() -> bool:
    return False


def right_of_kernels(x: Tensor, table: ImageTable, asked: np.ndarray, network: str, seed: int, quick: bool) -> float:
    """Return the share of the test images that the kernels name rightly."""
    model = kernels(x, table, network, seed, quick)
    with torch.no_grad():
        answers = model.probabilities(model.network.head.project(x[torch.as_tensor(asked)])).argmax(1)
    return float((answers.numpy() == table.labels[asked]).mean())


def right_of_baseline(name: str, x: Tensor, table: ImageTable, asked: np.ndarray, seed: int) -> float:
    """Return the share of the test images that a baseline names rightly, its choice made by cross-validation."""
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    if name == "k-NN":
        search = KNeighborsClassifier(metric="cosine", weights="distance", algorithm="brute")
        fitted = GridSearchCV(search, {"n_neighbors": NEIGHBOURS}, cv=folds)
    else:
        fitted = LogisticRegressionCV(Cs=STRENGTHS, cv=folds, max_iter=200)
    rows, labels = x.numpy(), table.labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        fitted.fit(rows[~asked], labels[~asked])
    return float((fitted.predict(rows[asked]) == labels[asked]).mean())


def main() -> None:
    parser = benchmark_parser(__doc__, "results/promise_accuracy.csv")
    parser.add_argument("--data", type=Path, help="The folder that holds the datasets.  [default: NNGK_DATA]")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=["kernels", "logistic regression", "k-NN"])
    parser.add_argument("--features", type=Path, default=Path("runs/promise"), help="Keep features in this folder.")
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--seeds", type=int, default=3)
    given = benchmark_options(parser)
    with tempfile.TemporaryDirectory() as home:
        if given.quick:
            given.datasets, given.network, given.seeds, given.features = ["flowers102"], "small", 1, Path(home)
        given.features.mkdir(parents=True, exist_ok=True)
        sources = Sources(given.data, None, given.features, given.quick)
        for dataset in given.datasets:
            table = sources.table(dataset, "classify")
            x = features_of(table, given.network, given.features, given.quick)
            asked = np.array([part == "test" for part in table.splits or []])
            for seed in range(given.seeds):
                for method in given.methods:
                    begun = time.perf_counter()
                    if method == "kernels":
                        right = right_of_kernels(x, table, asked, given.network, seed, given.quick)
                    else:
                        right = right_of_baseline(method, x, table, asked, seed)
                    row = {"dataset": dataset, "method": method, "network": given.network, "seed": seed}
                    row |= {"accuracy": round(right, 5), "test_images": int(asked.sum())}
                    row |= {"seconds": round(time.perf_counter() - begun, 2)}
                    append_rows(given.out, [row | provenance("cpu", given.commit)])
                    print(f"{dataset:11} {method:20} seed {seed}  {right:.2%}")


if __name__ == "__main__":
    main()
