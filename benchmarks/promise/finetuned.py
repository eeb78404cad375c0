"""The three questions of this folder, asked of a network that was fine-tuned on a GPU.

    python benchmarks/promise/finetuned.py --images cub200=cub.csv cars196=cars.csv --weights resnet50_v1.safetensors
        [--questions accuracy unknown sessions similar] [--seeds 0 1 2] [--threads 16]

Each file of --images is a CSV with the columns path,label,split, or a folder; birds and cars should be cropped to their
boxes. Every picture is decoded once. For each question, dataset and seed, ResNet50 is fine-tuned by the recipe 'best',
at its usual learning rate, on images of all classes for the accuracy, of four fifths of them for the unknown, of the
first 100 for the sessions of CUB-200, of all but five that look alike for 'similar'. A tenth of the images that are not
for testing choose what 'nngk train' chooses on validation images, and enter the bank afterwards; there is no last
training on everything. The baselines are those of accuracy.py, unknown.py and incremental.py, on the features of the
fine-tuned network and, unless --features says otherwise, on those of the pretrained one. All questions of one seed come
before the next seed. Rows: results/promise_finetuned.csv.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import accuracy
import incremental
import numpy as np
import torch
import unknown
from cached import Cached
from torch import Tensor, nn

from nngk import InputError, Model, Settings
from nngk.data import Images, ImageTable, Split, centre_crop, read_images
from nngk.data.loading import Selected
from nngk.data.resident import Resident
from nngk.data.splits import stratified
from nngk.experiments.paper.quick import quick_table
from nngk.experiments.record import append_rows, epochs, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.networks import EmbeddingNetwork
from nngk.networks.embed import embed
from nngk.training.build import build_run, network_of
from nngk.training.feed import Examples, Feed, augmentation
from nngk.training.finish import finish
from nngk.training.presets import preset_settings
from nngk.training.run import Run

QUESTIONS = ("accuracy", "unknown", "sessions", "similar")
TUNED, PRETRAINED = "fine-tuned", "pretrained"
VALIDATION = 0.1  # of the images that are not for testing
FIGURES = ("accuracy", "auroc", "false_alarms", "oscr", "all", "old", "new", "harmonic")
SMALL = {"network": "small", "weights": "random", "dim": 8, "epochs": 1, "batch_size": 8, "n_neighbours": 10}
SMALL |= {"resize": 18, "crop_size": 16, "train_crop_size": 16, "layers": 1, "lr": 1e-3}


class Pictures:
    """A dataset's pictures, decoded once for all runs, on the GPU where there is one."""

    def __init__(self, dataset: str, table: ImageTable, given: argparse.Namespace) -> None:
        if table.splits is None or "test" not in table.splits:
            raise InputError(f"{dataset} has no test images: its file needs a column 'split' with train and test.")
        self.dataset, self.table, self.given = dataset, table, given
        self.device = torch.device(given.device)
        self.amp = self.device.type == "cuda"
        self.spec = network_of(self.settings(0, 2)).input
        images = Images(table, self.spec.resize, threads=given.threads)
        self.images = Resident(images, self.device, threads=given.threads) if self.amp else images
        self.plain = centre_crop(self.spec.size, self.spec.mean, self.spec.std)

    def settings(self, seed: int, classes: int) -> Settings:
        """Return the recipe for a number of classes."""
        own = {"network": self.given.network, "weights": self.given.weights} | (SMALL if self.given.quick else {})
        own |= {"seed": seed, "device": str(self.device), "hold_out": True, "val_fraction": VALIDATION}
        own |= {"epochs": self.given.epochs} if self.given.epochs else {}
        return preset_settings("best", own, classes=classes, gpu=True)

    def seen_by(self, network: EmbeddingNetwork) -> Cached:
        """Return the features that a network pools of every picture."""
        pooled = nn.Sequential(network.backbone, network.head.pool).to(self.device)
        x = embed(pooled, self.images, self.plain, device=self.device, amp=self.amp).to(self.device)
        y = torch.as_tensor(self.table.labels).to(self.device)
        parts, quick = np.array(self.table.splits), self.given.quick
        return Cached(self.dataset, network.config["name"], x, y, parts, self.table.class_names, quick)

    @cached_property
    def pretrained(self) -> Cached:
        """What the network says of the pictures before it is trained on any."""
        return self.seen_by(network_of(self.settings(0, 2)).eval().to(memory_format=torch.channels_last))

    def fine_tuned(self, kept: Tensor, seed: int) -> tuple[Model, Cached]:
        """Return a model trained on the marked pictures (n,) but those for testing, and the features it has of all.

        Some of them choose what 'nngk train' chooses on validation images. Then they enter the bank like all others.
        """
        rows = (kept & ~self.pretrained.is_test).nonzero().flatten().cpu()
        table = self.table.select(rows.numpy()).compact()
        settings = self.settings(seed, len(table.class_names))
        shares = (1 - settings.val_fraction, settings.val_fraction)
        train, val = (torch.from_numpy(part) for part in stratified(table.labels, shares, seed))
        with tempfile.TemporaryDirectory() as home:
            run = self.run(table, rows, settings, Path(home), train, val)
            run.begin()
            for _ in epochs(run):
                pass
            run.at.best_epoch = run.at.epoch - 1
            run.refresher.finish(run.at.step)
            measured = finish(run, 0.0)
            every = self.run(table, rows, settings, Path(home), torch.cat([train, val]), val[:0])
            every.network.load_state_dict(run.network.state_dict())
            every.at.best_epoch = run.at.best_epoch
            with torch.no_grad():
                every.bank.theta.copy_(torch.cat([run.bank.theta, self.usual_theta(run, table, val)]))
            model = finish(every, 0.0, measured)
        return model, self.seen_by(model.network.eval())

    def seen(self, tuned: Cached) -> list[tuple[str, Cached]]:
        """Return the features that baselines read, each with its name."""
        both = ((TUNED, tuned), (PRETRAINED, self.pretrained))
        return [(name, data) for name, data in both if name in self.given.features]

    def run(self, table: ImageTable, rows: Tensor, settings: Settings, home: Path, train: Tensor, val: Tensor) -> Run:
        """Return a run on some of the pictures at ``rows``, which are those of the table."""
        labels, parts = torch.as_tensor(table.labels), (train, val, val[:0])
        examples = [Examples(Selected(self.images, rows[part]), labels[part]) for part in parts]
        feed = Feed(*examples, augmentation(self.spec, settings), self.plain, self.device, self.amp)
        return build_run(Split(*(table.select(part.numpy()) for part in parts)), settings, home, feed)

    def usual_theta(self, run: Run, table: ImageTable, new: Tensor) -> Tensor:
        """Return the mean log weight of a class's centres for each of its new ones."""
        labels = run.bank.labels
        sums = torch.zeros(len(table.class_names), device=labels.device).index_add_(0, labels, run.bank.theta.detach())
        means = sums / torch.bincount(labels, minlength=len(sums))
        return means[torch.as_tensor(table.labels)[new].to(labels.device)]


def accuracy_rows(pictures: Pictures, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the share of the test images that each method names rightly."""
    model, tuned = pictures.fine_tuned(torch.ones_like(pictures.pretrained.y, dtype=torch.bool), seed)
    right, chosen = accuracy.right_of_model(model, tuned)
    yield {"features": TUNED, "method": "kernels", "accuracy": right, "chosen": chosen}
    for features, data in pictures.seen(tuned):
        for method in accuracy.METHODS[1:]:
            right, chosen = accuracy.right_of(method, data, seed)
            yield {"features": features, "method": method, "accuracy": right, "chosen": chosen}


def unknown_rows(pictures: Pictures, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how well each method tells the test images of a fifth of the classes, never seen, from the others."""
    out = unknown.held_out(pictures.pretrained, seed)
    model, tuned = pictures.fine_tuned(~out, seed)
    for features, data in pictures.seen(tuned):
        known, asked = data.select(~out), unknown.asked_about(data, out)
        found = unknown.scored_by(model, asked) if data is tuned else {}
        for method, values in unknown.figures(known, found | unknown.scored_by_others(known, asked, seed)):
            yield {"features": features, "method": method} | values


def session_rows(pictures: Pictures, seed: int, classes: list[list[int]]) -> Iterator[dict[str, Any]]:
    """Yield how well each method names old and new classes after every session."""
    model, tuned = pictures.fine_tuned(incremental.of_classes(pictures.pretrained, classes[0]), seed)
    truth = tuned.y[tuned.is_test]
    for features, data in pictures.seen(tuned):
        asked = incremental.answers(data, classes, seed, model if data is tuned else None)
        for method, session, labels in asked:
            values = incremental.accuracies(truth, labels, classes, session)
            yield {"features": features, "method": method, "session": session} | values


def rows_of(question: str, pictures: Pictures, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what every method says to one question."""
    if question == "accuracy":
        return accuracy_rows(pictures, seed)
    if question == "unknown":
        return unknown_rows(pictures, seed)
    data = pictures.pretrained
    classes = incremental.sessions_of(data) if question == "sessions" else incremental.similar_of(data, seed)
    return session_rows(pictures, seed, classes)


def options_given() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, "results/promise_finetuned.csv")
    parser.add_argument("--images", nargs="+", default=[], metavar="NAME=FILE", help="Datasets and their CSV files.")
    parser.add_argument("--weights", help="The file of the network's weights, or 'imagenet'.")
    parser.add_argument("--network", default="resnet50-v1")
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS[:3]))
    parser.add_argument("--features", nargs="+", choices=(TUNED, PRETRAINED), default=[TUNED, PRETRAINED])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="Epochs of every training.  [default: the recipe's]")
    parser.add_argument("--threads", type=int, default=8, help="Threads that decode.")
    given = benchmark_options(parser)
    if given.quick:
        given.images, given.seeds = ["cub200="], [0]
    if any("=" not in text for text in given.images):
        raise InputError(f"--images takes NAME=FILE, as in cub200=cub.csv; got {' '.join(given.images)}.")
    return given


def write(question: str, pictures: Pictures, seed: int, given: argparse.Namespace) -> None:
    """Add the rows of one question, dataset and seed."""
    begun = time.perf_counter()
    for found in rows_of(question, pictures, seed):
        row = {"question": question, "dataset": pictures.dataset, "features": found["features"]}
        row |= {"method": found["method"], "network": pictures.pretrained.network, "seed": seed}
        row |= {"session": found.get("session", "")}
        row |= {name: round(found[name], 5) if name in found else "" for name in FIGURES}
        row |= {"chosen": found.get("chosen", ""), "seconds": round(time.perf_counter() - begun, 1)}
        append_rows(given.out, [row | provenance(given.device, given.commit)])
        told = "  ".join(f"{name} {row[name]:.4f}" for name in FIGURES if row[name] != "")
        print(
            f"{pictures.dataset:11} {question:9} seed {seed}  {row['features']:10} {row['method']:30} {told}",
            flush=True,
        )


def main() -> None:
    given = options_given()
    with tempfile.TemporaryDirectory() as home:
        held: dict[str, Pictures] = {}
        for seed in given.seeds:
            for dataset, file in (text.split("=", 1) for text in given.images):
                if dataset not in held:
                    quick = given.quick
                    table = quick_table(Path(home), dataset, "classify") if quick else read_images(Path(file))
                    held[dataset] = Pictures(dataset, table, given)
                for question in given.questions:
                    if question != "sessions" or dataset == "cub200":
                        write(question, held[dataset], seed, given)


if __name__ == "__main__":
    main()
