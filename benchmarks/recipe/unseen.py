"""What does our recipe reach on classes never seen, when pictures are read as the field reads them?

    python benchmarks/recipe/unseen.py --name cub200 --images FOLDER_OR_CSV --weights FILE [--crop 224] [--seeds 0 1 2]
        [--try lr=5e-5 train_crop_size=160 --try lr=1e-4 …]

Pictures keep their aspect. With --crop 224 their shorter side has 256 pixels and the centre of 224 is read, as in most
papers; with --crop 352 it is 400, our own choice. First, candidates are trained on one half of the training classes
and judged on the other, in both folds; test images are not decoded until that is over. A candidate is the preset with
the settings of one --try changed. The candidate and the whitening with the highest mean of Recall@1 and MAP@R over the
folds are chosen. Then every seed is trained on all training classes and scored on the test classes, once.
Rows: results/unseen_validation.csv and results/unseen.csv.

With --own LOSS nothing is searched for: another loss is trained with the settings of its authors
(benchmarks/losses/papers.toml, changed by one --try), which shows what their published figure becomes with our weights
and pictures. Rows: results/published.csv.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from validation_classes import class_halves, scores, shown_settings

from nngk import Settings
from nngk.data import BatchSource, Images, ImageTable, Split, centre_crop, read_images
from nngk.data.loading import Selected
from nngk.data.resident import Resident
from nngk.experiments.compare.fair import own_settings
from nngk.experiments.record import append_rows, epochs, provenance, read_rows
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.networks.embedding_layer.reduction import reduced
from nngk.training.build import build_run, network_of
from nngk.training.feed import Examples, Features, Feed, augmentation, has_detail
from nngk.training.finish import WHITENINGS, narrow
from nngk.training.presets import metric_settings
from nngk.training.run import Run

RESIZE = {224: 256, 352: 400}
PAPERS = Path(__file__).resolve().parents[1] / "losses" / "papers.toml"
LONG = ("cars196",)  # where training gains for 20 epochs; birds gain for 10
# What is tried besides the preset. Cars want a higher rate than birds.
CANDIDATES: dict[str, list[list[str]]] = {
    "cub200": [[f"lr={lr:g}"] for lr in (1e-5, 2e-5, 5e-5, 1e-4)],
    "cars196": [[f"lr={lr:g}"] for lr in (5e-5, 1e-4, 2e-4)],
}


class Prepared:
    """A table's images, decoded once for all runs, on the GPU where there is one."""

    def __init__(self, table: ImageTable, base: Settings, threads: int) -> None:
        self.spec = network_of(base).input
        self.device = torch.device(base.device)
        self.table, self.threads = table, threads
        self.sized: dict[int, BatchSource] = {}

    def of_size(self, size: int) -> BatchSource:
        """Return all images with this shorter side."""
        if size not in self.sized:
            images = Images(self.table, size, threads=self.threads)
            on_gpu = self.device.type == "cuda"
            self.sized[size] = Resident(images, self.device, threads=self.threads) if on_gpu else images
        return self.sized[size]

    def run(
        self,
        table: ImageTable,
        parts: Sequence[np.ndarray],
        settings: Settings,
        folder: Path,
        teachers: Sequence[nn.Module] = (),
    ) -> Run:
        """Return a run that is ready for its first step; ``parts`` are rows to train, validate and test with."""
        tables = [table.select(rows).compact() for rows in parts]
        images = self.of_size(self.spec.resize)
        examples = [Examples(Selected(images, rows), torch.as_tensor(t.labels)) for rows, t in zip(parts, tables)]
        detailed = None
        if has_detail(self.spec, settings):
            detailed = Selected(self.of_size(settings.detail or 0), parts[0])
        plain = centre_crop(self.spec.size, self.spec.mean, self.spec.std)
        amp = self.device.type == "cuda"
        feed = Feed(*examples, augmentation(self.spec, settings), plain, self.device, amp, detailed=detailed)
        run = build_run(Split(*tables), settings, folder, feed, teachers=teachers)
        run.begin()
        return run


def trained(run: Run) -> float:
    """Train a run to its end; return the seconds that it took."""
    started = time.perf_counter()
    for _ in epochs(run):
        pass
    return round(time.perf_counter() - started, 1)


def whitened(run: Run) -> dict[float, Tensor]:
    """Return the embeddings of the validation images by how much their components are evened out."""
    features, linear = Features(run.network, run.frozen), run.network.head.linear
    known, new = (run.embed(part, features) for part in (run.feed.train, run.feed.val))
    out = {}
    for share in WHITENINGS:
        with torch.no_grad():
            out[share] = torch.nn.functional.normalize(reduced(linear, known, run.network.dim, share)(new))
    return out


def validate_candidates(
    options: argparse.Namespace, table: ImageTable, base: Settings, home: Path, record: Path
) -> None:
    """Train every candidate on each half of the training classes; write a row per candidate, fold and whitening."""
    train = table.where("train").compact()
    prepared = Prepared(train, base, options.threads)
    for number, (fold, candidate) in enumerate(product(options.folds, options.candidates)):
        settings = replace(base, **changes(candidate), seed=fold)
        halves = class_halves(train, fold)
        parts = [_rows_of(train, part) for part in halves]
        run = prepared.run(train, parts, settings, _made(home / f"candidate{number}"))
        seconds, rows = trained(run), []
        for share, x in whitened(run).items():
            found = scores(x, run.feed.val.labels)
            row = {"data": options.name, "crop": options.crop, "fold": fold, "tried": " ".join(candidate)}
            row |= {"lr": settings.lr, "whiten": share}
            row |= {key: round(found[key], 5) for key in ("recall@1", "map@r")} | {"seconds": seconds}
            rows.append(row | provenance(options.device, options.commit) | {"settings": shown_settings(settings)})
            if share in (0.0, 0.2):
                told = f"fold {fold} {row['tried']} whiten {share}: {row['recall@1']:.4f} {row['map@r']:.4f}"
                print(f"{told} {seconds} s", flush=True)
        append_rows(record, rows)


def _rows_of(table: ImageTable, part: ImageTable) -> np.ndarray:
    place = {path: row for row, path in enumerate(table.paths)}
    return np.array([place[path] for path in part.paths], dtype=np.int64)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def changes(candidate: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a candidate changes.

    >>> changes(["lr=1e-4", "pool=max"])
    {'lr': 0.0001, 'pool': 'max'}
    """
    return {name: _value(text) for name, _, text in (part.partition("=") for part in candidate)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def best(rows: list[dict[str, Any]]) -> tuple[list[str], float]:
    """Return the candidate and the whitening with the highest mean of Recall@1 and MAP@R over the folds.

    >>> rows = [{"tried": "lr=1", "whiten": 0, "recall@1": 0.5, "map@r": 0.2}]
    >>> best([*rows, {"tried": "lr=2", "whiten": 0.1, "recall@1": 0.4, "map@r": 0.4}])
    (['lr=2'], 0.1)
    """
    sums: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        key = row["tried"], float(row["whiten"])
        sums.setdefault(key, []).append((float(row["recall@1"]) + float(row["map@r"])) / 2)
    most = max(len(values) for values in sums.values())
    complete = {key: sum(values) / len(values) for key, values in sums.items() if len(values) == most}
    tried, whiten = max(complete, key=complete.__getitem__)
    return tried.split(), whiten


def test(options: argparse.Namespace, table: ImageTable, base: Settings, home: Path) -> None:
    """Train on all training classes with every seed, score the test classes, and write the rows."""
    prepared = Prepared(table, base, options.threads)
    splits = np.array(table.splits)
    parts = [np.flatnonzero(splits == "train"), np.array([], dtype=np.int64), np.flatnonzero(splits == "test")]
    for seed in options.seeds:
        settings = replace(base, seed=seed)
        run = prepared.run(table, parts, settings, _made(home / f"seed{seed}"))
        labels = run.feed.test.labels
        start = scores(run.embed(run.feed.test), labels)["recall@1"]
        seconds = trained(run)
        narrow(run)
        found = scores(run.embed(run.feed.test), labels, ks=(1, 2, 4, 8), nmi_seeds=10)
        row = {"data": options.name, "crop": options.crop, "network": base.network, "dim": base.dim, "seed": seed}
        row |= {"loss": base.loss} if options.own else {}
        row |= {"lr": base.lr, "whiten": base.whiten, "epochs": base.epochs, "start_recall@1": round(start, 5)}
        row |= {key: round(value, 5) for key, value in found.items()} | {"seconds": seconds}
        row |= provenance(options.device, options.commit) | {"settings": shown_settings(settings)}
        append_rows(options.out, [row])
        print(f"{options.name} {options.crop} seed {seed}: {found} {seconds} s", flush=True)


def options_given() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, "results/unseen.csv")
    parser.add_argument("--name", choices=sorted(CANDIDATES), default="cub200", help="Which dataset it is.")
    parser.add_argument("--images", type=Path, help="Its folder, or a CSV file with the columns path,label,split.")
    parser.add_argument("--weights", help="The file of ResNet50's weights, or 'imagenet'.")
    parser.add_argument("--network", default="resnet50-v1")
    parser.add_argument("--crop", type=int, choices=sorted(RESIZE), default=224, help="How large pictures are read.")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2, help="Threads that decode.")
    parser.add_argument("--validation", type=Path, help="Rows of validation to choose by, instead of new ones.")
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1], help="Which halves to validate on.")
    parser.add_argument("--try", dest="tried", nargs="+", action="append", metavar="SETTING=VALUE", help="A candidate.")
    parser.add_argument("--own", metavar="LOSS", help="Train this loss with the settings of its authors.")
    options = benchmark_options(parser)
    if options.own and options.out.name == "unseen.csv":
        options.out = options.out.with_name("published.csv")
    options.candidates = options.tried or CANDIDATES[options.name]
    if options.quick:
        options.candidates = options.candidates[:2]
    return options


def as_published(base: Settings, loss: str, changed: Sequence[str] = ()) -> Settings:
    """Return a loss's own settings: its own start, size and course of training, the network and pictures of ``base``.

    >>> found = as_published(Settings(task="metric", dim=512), "proxy-anchor", ["step_epochs=10"])
    >>> found.epochs, found.batch_size, found.step_epochs, found.embedding_start, found.n_neighbours
    (60, 120, 10, 'random', 200)
    """
    plain: dict[str, Any] = {"embedding_start": "random", "wide": None, "whiten": 0.0}
    return replace(base, loss=loss, **plain | own_settings(PAPERS)[loss] | changes(changed))


def base_settings(options: argparse.Namespace) -> Settings:
    """Return the settings that all candidates share."""
    if options.quick:
        small = {"network": "small", "weights": "random", "dim": 16, "epochs": 1, "batch_size": 8, "per_class": 2}
        chosen = replace(metric_settings("best", 16, "small"), **small, n_neighbours=10, embedding_start="discriminant")
        return replace(chosen, resize=36, crop_size=32, train_crop_size=32, device="cpu")
    chosen = metric_settings("best", 512, options.network)
    sizes = {"resize": RESIZE[options.crop], "crop_size": options.crop, "train_crop_size": 224}
    chosen = replace(chosen, network=options.network, weights=options.weights, **sizes, device=options.device)
    return replace(chosen, epochs=20 if options.name in LONG else 10)


def main() -> None:
    options = options_given()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    table = read_images(options.images, task="metric")
    base = base_settings(options)
    with tempfile.TemporaryDirectory() as home:
        if options.own:
            changed = options.tried[0] if options.tried else []
            test(options, table, as_published(base, options.own, changed), Path(home))
            return
        record = options.validation or options.out.with_name(f"{options.out.stem}_validation.csv")
        if options.validation is None:
            validate_candidates(options, table, base, Path(home), record)
        of_this = (options.name, str(options.crop))
        candidate, whiten = best([row for row in read_rows(record) if (row["data"], row["crop"]) == of_this])
        print(f"Chosen on validation classes: {' '.join(candidate)}, whiten {whiten:g}", flush=True)
        if options.seeds:
            test(options, table, replace(base, **changes(candidate), whiten=whiten), Path(home))


if __name__ == "__main__":
    main()
