"""Which recipe finds birds of unseen species best? Variants of the settings, judged on validation classes alone.

    python benchmarks/recipes.py --data DIR --weights DIR [--list best|rivals|paper] [--only NAME ...] [--folds 1]

DIR of --data holds CUB-200-2011 or a pack of it for the task 'metric'. Of its 100 training classes, half is held
out, the other for the other fold, and validates; the 100 test classes are never read. A fold holds out neighbours
of the alphabet: there the kinds of a genus are together, as they are in the test classes, and hard to tell apart. All
decoded images lie on the device, so that a run is the network's time and little else. A line is printed and a row
written as soon as a variant is done, and the same row is not computed twice.
"""

import argparse
import copy
import csv
import functools
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import append_rows, circumstances
from torch import Tensor, nn

from nngk.data import Images, ImageTable, Split, evaluation
from nngk.errors import InputError
from nngk.metrics import evaluate
from nngk.networks.discriminant import discriminant
from nngk.paper.presets import metric_settings
from nngk.paper.sources import Sources
from nngk.rivals import LOSSES
from nngk.rivals.base import RivalLoss
from nngk.training.config import Settings
from nngk.training.parts import Features, Part
from nngk.training.run import Run
from nngk.training.step import take_step
from nngk.training.validation import run_sigma, validate

# The paper's settings as they were first read.
FIRST: dict[str, Any] = {"momentum": 0.9, "embedding_start": "random", "sigma": 10.0}
STILL = FIRST | {"momentum": 0.0}
OF_THE_MEAN = {"lr": 1e-5, "weight_decay": 2e-4}
# Each variant changes the base (our recipe, or the paper's preset for the list 'paper') in what its name says.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "best": {
        "base": {},
        # the start of the embedding layer
        "random start": {"embedding_start": "random"},
        "trained at 512": {"wide": 512},
        "trained at 1024": {"wide": 1024},
        "trained at 2048": {"wide": 2048},
        "shrinkage 1": {"shrinkage": 1.0},
        "shrinkage 10": {"shrinkage": 10.0},
        "embedding x 1": {"embedding_lr_factor": 1.0},
        "embedding x 10": {"embedding_lr_factor": 10.0},
        # before the embedding
        "two layers": {"layers": 2},
        "three layers": {"layers": 3},
        "two layers, trained at 1024": {"layers": 2, "wide": 1024},
        "three layers, trained at 1024": {"layers": 3, "wide": 1024},
        "three layers, trained at 1024, shrinkage 10": {"layers": 3, "wide": 1024, "shrinkage": 10.0},
        "two layers, crops of 256 pixels": {"layers": 2, "train_crop_size": 256},
        "max pool": {"pool": "max"},
        "GeM pool": {"pool": "gem"},
        "no LayerNorm": {"layer_norm": False},
        "not normalised": {"normalise": False},
        "dropout 0.2": {"dropout": 0.2},
        # the kernels
        "sigma x 1": {"sigma_factor": 1.0},
        "sigma x 1.5": {"sigma_factor": 1.5},
        "sigma x 3": {"sigma_factor": 3.0},
        "sigma x 4": {"sigma_factor": 4.0},
        "sigma learned": {"sigma": "learned"},
        "margin 2": {"margin": 2.0},
        "margin 4": {"margin": 4.0},
        "drop no centre": {"drop_centres": 0.0},
        "drop 0.8 of the centres": {"drop_centres": 0.8},
        "drop 0.97 of the centres": {"drop_centres": 0.97},
        "drop 0.95 of 400": {"drop_centres": 0.95, "n_neighbours": 400},
        "50 neighbours": {"n_neighbours": 50},
        "400 neighbours": {"n_neighbours": 400},
        "all centres": {"n_neighbours": None, "drop_centres": 0.0},
        "weights fixed": {"learn_weights": False},
        "weights at the network's rate": {"weight_lr_factor": 1.0},
        "weights at 1000 times": {"weight_lr_factor": 1000.0},
        # the bank
        "update every 0.25 epochs": {"update_interval": 0.25},
        "update every 3 epochs": {"update_interval": 3},
        "write-back": {"write_back": True},
        "write-back, all centres": {"write_back": True, "n_neighbours": None, "drop_centres": 0.0},
        # the images
        "crops from 0.08": {"crop_scale": 0.08},
        "crops from 0.3": {"crop_scale": 0.3},
        "plain random crops": {"crop": "random"},
        "trained at 224, read at 256": {"resize": 256, "crop_size": 256, "train_crop_size": 224},
        "256 pixels": {"resize": 256, "crop_size": 256},
        "crops of 256 pixels": {"train_crop_size": 256},
        "256 of 288 pixels": {"resize": 288, "crop_size": 256},
        "trained at 224, read at 256 of 288": {"resize": 288, "crop_size": 256, "train_crop_size": 224},
        "trained at 224, read at 288 of 320": {"resize": 320, "crop_size": 288, "train_crop_size": 224},
        "256 of 288 pixels, trained at 1024": {"resize": 288, "crop_size": 256, "wide": 1024},
        "256 of 288 pixels, trained at 2048": {"resize": 288, "crop_size": 256, "wide": 2048},
        # the batches
        "random batches": {"per_class": 0},
        "8 a class": {"per_class": 8},
        "batch 48": {"batch_size": 48},
        "batch 192": {"batch_size": 192},
        # the optimisation
        "lr 1e-5": {"lr": 1e-5},
        "lr 6e-5": {"lr": 6e-5},
        "lr 1e-4": {"lr": 1e-4},
        "lr 1e-4, embedding x 1": {"lr": 1e-4, "embedding_lr_factor": 1.0},
        "weight decay 0.01": {"weight_decay": 0.01},
        "weight decay 0.1": {"weight_decay": 0.1},
        "16 epochs": {"epochs": 16},
        "20 epochs": {"epochs": 20},
        "4 epochs": {"epochs": 4},
        "40 epochs, lr 1e-5": {"epochs": 40, "lr": 1e-5},
        "bfloat16": {"amp": True},
        "live BatchNorm": {"freeze_batchnorm": False},
        # luck alone, and with --soup what the mean of lucky weights is worth
        "another seed": {"seed": 101},
        "a third seed": {"seed": 202},
    },
    # The rivals, with what serves our loss and two rates to choose from.
    "rivals": {
        f"{loss}, lr {lr:g}": {"loss": loss, "lr": lr}
        for loss in LOSSES
        if loss not in ("triplet-global", "clustering", "smart-mining")  # far behind before, and slow
        for lr in (3e-5, 1e-4)
    },
    # The readings of the text that are open: which of them trains stably from the weights the authors had?
    # Readings of the paper's text. The preset came out of them; the first ones had PyTorch's start of the layer.
    "paper": {
        "literal": FIRST | {"embedding_lr_factor": 10.0},
        # Caffe's 'xavier' filler draws the embedding layer √3 larger than PyTorch does. The same network and steps with
        # PyTorch's start: σ smaller by √3, and the layer's rate by 3.
        "Caffe's filler, 64 dimensions": FIRST | {"sigma": 10 / 3**0.5, "embedding_lr_factor": 10 / 3},
        "embedding at the base rate": FIRST,
        "the rate is of the mean": FIRST | OF_THE_MEAN,
        "no momentum": STILL,
        "no momentum, sigma 3": STILL | {"sigma": 3.0},
        "no momentum, GoogLeNet's own dropout": STILL | {"dropout": 0.4},  # as its Caffe model has
        "no momentum, the pooled features themselves": STILL | {"dim": None, "sigma": 30.0},  # GoogLeNet's are 1024
        "no momentum, a projection": {},  # the preset; what follows changes it
        "no momentum, a projection, the embedding ten times as fast": {"embedding_lr_factor": 10.0},
        "the rate is of the mean, the embedding ten times as fast": OF_THE_MEAN
        | {"momentum": 0.9, "embedding_lr_factor": 10.0},
        "the pooled features themselves": {"dim": None},
        "GoogLeNet's own dropout": {"dropout": 0.4},
        "update every epoch": {"update_interval": 1},
        "update every 5 epochs": {"update_interval": 5},
        "clipped at 1": {"clip": 1.0},
        "sigma by leave-one-out": {"sigma": "auto", "sigma_factor": 1.0},
        "weights fixed": {"learn_weights": False},
        "normalised": {"normalise": True, "sigma": "auto"},
    },
}


CUTS = ("cut", "aga", "sou", "rea")  # the columns of what else trained features give
READINGS = ((256, 224), (288, 256), (320, 288), (352, 320), (400, 352))  # sides of the image and of the crop


class Resident:
    """Images that lie decoded on the device; a part of them by their rows."""

    def __init__(self, pixels: Tensor, rows: Tensor) -> None:
        self.pixels, self.rows = pixels, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Tensor) -> Tensor:
        return self.pixels[self.rows[indices.to(self.rows.device)]]


class ResidentRun(Run):
    """A run that reads its images where they are computed on."""

    def __init__(self, parts: Split, settings: Settings, folder: Path, pixels: Tensor, places: dict[Path, int]) -> None:
        super().__init__(parts, replace(settings, cache="off", resident_gib=0.0), folder)
        self.pixels, pixels = pixels, resized(pixels, self.network.input.resize)
        for part, table in ((self.parts.train, parts.train), (self.parts.val, parts.val)):
            part.source = Resident(pixels, torch.tensor([places[path] for path in table.paths], device=self.device))

    def embed(self, part: Part, network: nn.Module | None = None) -> Tensor:
        network = self.trainee if network is None else network
        training = network.training
        network.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            rows = [
                network(self.parts.plain(part.source.batch(indices), None)).float()
                for indices in torch.arange(len(part)).split(256)
            ]
        network.train(training)
        return torch.cat(rows)


@functools.lru_cache(maxsize=6)
def resized(pixels: Tensor, side: int) -> Tensor:
    """The images with another side, as a run that reads them so would decode them."""
    if pixels.shape[-1] == side:
        return pixels
    parts = [
        nn.functional.interpolate(some.float(), size=side, mode="bilinear", antialias=True)
        for some in pixels.split(512)
    ]
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])


def measure(run: ResidentRun, every: int, bare: bool = False) -> dict[str, Any]:
    """Train as the library does, validating now and then; the figures of the best epoch and of the last."""
    s, started = run.settings, time.perf_counter()
    labels = run.parts.train.labels.to(run.device)
    run.begin()
    start = {name: tensor.clone() for name, tensor in run.trainee.state_dict().items()}
    initial = validate(run)[0]["val_recall@1"]
    generator = torch.Generator()
    history: list[dict[str, float]] = []
    for epoch in range(s.epochs):
        if isinstance(run.objective, RivalLoss):
            everything = run.embed(run.parts.train) if run.objective.needs_embeddings else None
            run.objective.start_epoch(epoch, everything, labels)
        losses = []
        run.trainee.train()
        for indices in run.index_batches(epoch):
            generator.manual_seed(1_000_003 * s.seed + run.at.step)
            images = run.parts.augment(run.parts.train.source.batch(indices), generator)
            rows = indices.to(run.device)
            losses.append(take_step(run, images, labels[rows], rows))
            run.at.step += 1
        if not torch.stack(losses).isfinite().all():
            return {"error": f"diverged in epoch {epoch + 1}"}
        run.refresher.before_step(run.at.step, run.trainee)
        if (epoch + 1) % every == 0 or epoch + 1 == s.epochs:
            scores, _ = validate(run)
            history.append({**scores, "epoch": epoch + 1, "loss": float(torch.stack(losses).mean())})
    best = max(range(len(history)), key=lambda epoch: history[epoch]["val_recall@1"])
    others = {"start_recall@1": initial}
    if not bare:
        others |= {f"blend{share}_recall@1": blended(run, start, share) for share in (0.3, 0.5, 0.7)} | otherwise(run)
    run.narrow()
    if not bare:
        others |= readings(run)
    x = run.embed(run.parts.val)
    last = evaluate(x, run.parts.val.labels.to(x.device), ks=(1,), nmi_seeds=1)
    figures = {
        "best_epoch": int(history[best]["epoch"]),
        "recall@1": history[best]["val_recall@1"],
        "map@r": history[best]["val_map@r"],
        **{f"last_{name}": last[name] for name in ("recall@1", "map@r", "nmi")},
        "first_loss": history[0]["loss"],
        "last_loss": history[-1]["loss"],
        "sigma": run_sigma(run),
        **others,
    }
    curves = {
        f"{name}_by_epoch": json.dumps([round(scale * row[key], places) for row in history])
        for name, key, scale, places in (("recall@1", "val_recall@1", 100, 1), ("loss", "loss", 1, 3))
    }
    seconds = time.perf_counter() - started
    return {k: round(v, 5) for k, v in figures.items()} | {"seconds": round(seconds, 1)} | curves


def blended(run: ResidentRun, start: dict[str, Tensor], share: float) -> float:
    """Recall@1 of weights that are only part of the way from the start to where training led."""
    network = copy.deepcopy(run.trainee)
    now = network.state_dict()
    network.load_state_dict({k: start[k].lerp(t, share) if t.is_floating_point() else t for k, t in now.items()})
    x = run.embed(run.parts.val, network)
    return evaluate(x, run.parts.val.labels.to(x.device), ks=(1,), nmi_seeds=0)["recall@1"]


def soup(run: ResidentRun, states: list[dict[str, Tensor]]) -> float:
    """Recall@1 of the mean of several runs' weights, which all started from the same."""
    network = copy.deepcopy(run.trainee)
    network.load_state_dict({name: torch.stack([s[name].float() for s in states]).mean(0) for name in states[0]})
    x = run.embed(run.parts.val, network)
    return evaluate(x, run.parts.val.labels.to(x.device), ks=(1,), nmi_seeds=0)["recall@1"]


def otherwise(run: ResidentRun) -> dict[str, float]:
    """What else the trained features give: the embedding cut to fewer dimensions, and a new discriminant of them."""
    linear, features = run.network.head.linear, Features(run.network, run.frozen)
    assert linear is not None
    labels, truth = run.parts.train.labels.to(run.device), run.parts.val.labels.to(run.device)
    trained, unseen = (run.embed(part, features) for part in (run.parts.train, run.parts.val))
    with torch.no_grad():
        x, y = linear(trained), linear(unseen)
    components = torch.linalg.eigh((x - x.mean(0)).double().T @ (x - x.mean(0)).double())[1].flip(1).to(x)
    made = {f"cut{dim}": (y - x.mean(0)) @ components[:, :dim] for dim in (64, 128, 256, 512) if dim < x.shape[1]}
    for dim in sorted({64, linear.out_features}):
        made[f"again{dim}"] = (unseen - trained.mean(0)) @ discriminant(trained, labels, dim, run.settings.shrinkage)
    out = {}
    for name, rows in made.items():
        scores = evaluate(nn.functional.normalize(rows, dim=1), truth, ks=(1,), nmi_seeds=0)
        out |= {f"{name}_{metric}": scores[metric] for metric in ("recall@1", "map@r")}
    return out


def readings(run: ResidentRun) -> dict[str, float]:
    """What the trained network finds when it reads the pictures larger than it was trained with."""
    spec, plain, source, out = run.network.input, run.parts.plain, run.parts.val.source, {}
    for side, size in READINGS:
        if spec.resize < side and len(run.pixels[0, 0]) > 16:  # not in a trial
            run.parts.plain = evaluation(size, spec.mean, spec.std)
            run.parts.val.source = Resident(resized(run.pixels, side), source.rows)
            x = run.embed(run.parts.val)
            scores = evaluate(x, run.parts.val.labels.to(x.device), ks=(1,), nmi_seeds=0)
            out |= {f"read{size}_{metric}": scores[metric] for metric in ("recall@1", "map@r")}
    run.parts.plain, run.parts.val.source = plain, source
    return out


def class_block(table: ImageTable, fold: int, folds: int = 2) -> Split:
    """A half of the classes, consecutive, to validate with; the rest to train with."""
    held = np.asarray(table.labels) * folds // len(table.class_names) == folds - 1 - fold % folds
    return Split(table.select(~held).compact(), table.select(held).compact(), table.select([]))


def resident_pixels(table: ImageTable, size: int, device: str, cache: Path | None) -> Tensor:
    """All images of a table, uint8 on the device."""
    images = Images(table, size, cache)
    pixels = torch.empty((len(table), 3, size, size), dtype=torch.uint8, device=device)
    for indices in torch.arange(len(table)).split(256):
        pixels[indices[0] : indices[-1] + 1] = images.batch(indices).to(device)
    return pixels


def done_already(path: Path) -> set[tuple[str, ...]]:
    """Variant, fold and all settings of the rows that are there."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[c] for c in ("variant", "fold", "settings")) for row in csv.DictReader(file)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CUB-200-2011 or a pack of it")
    parser.add_argument("--weights", required=True, help="the folder of the weights files, or 'imagenet'")
    parser.add_argument("--list", choices=list(VARIANTS), default="best")
    parser.add_argument("--only", nargs="+", help="names of variants")
    parser.add_argument("--network", default="resnet50", help="googlenet, resnet50 or another of 'nngk networks'")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--folds", type=int, nargs="+", default=[0], help="which half of the classes; also the seed")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth run from the Ith, for N programs side by side")
    parser.add_argument("--set", nargs="*", default=[], help="NAME=JSON for the base of all variants")
    parser.add_argument("--cache", type=Path, help="folder of the decoded images")
    parser.add_argument("--every", type=int, default=1, help="validate after as many epochs, and after the last")
    parser.add_argument("--epochs", type=int, help="of the base: a trial, or a tighter budget")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results/recipes.csv"))
    parser.add_argument("--minutes", type=float, help="start no new run after as many")
    parser.add_argument("--commit", help="the commit, where git is not there to ask")
    parser.add_argument("--soup", action="store_true", help="also judge the mean of the weights of a fold's runs")
    parser.add_argument("--bare", action="store_true", help="only the trained network itself, nothing made from it")
    parser.add_argument("--quick", action="store_true", help="generated pictures and a tiny network: a trial")
    return parser.parse_args()


def variants(options: argparse.Namespace, sources: Sources) -> dict[str, Settings]:
    """The settings of every variant that was asked for."""
    preset = "paper" if options.list == "paper" else "best"
    network, weights = sources.network(options.network)
    base = replace(metric_settings(preset, options.dim, network), network=network, weights=weights)
    if options.quick:
        small: dict[str, Any] = {"dim": 4, "epochs": 2, "batch_size": 8, "n_neighbours": 10, "lr": 1e-3}
        base = replace(base, **small, per_class=4 if base.per_class else 0, resize=16, crop_size=16)
        base = replace(base, wide=None, layers=1, train_crop_size=None)
    chosen = VARIANTS[options.list]
    unknown = [name for name in options.only or () if name not in chosen]
    if unknown:
        raise SystemExit(f"There is no variant '{unknown[0]}' in the list '{options.list}': {', '.join(chosen)}.")
    base = replace(base, epochs=options.epochs or base.epochs)
    base = replace(base, **{name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)})
    return {
        name: replace(base, **changes, device=options.device, patience=0)
        for name, changes in chosen.items()
        if not options.only or name in options.only
    }


def main() -> None:
    options = arguments()
    started = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(options.data, options.weights, Path(home), options.quick)
        table = sources.table("cub200", "metric").where("train").compact()  # the test classes stay where they are
        pixels = resident_pixels(table, 16 if options.quick else 256, options.device, options.cache)
        places = {path: row for row, path in enumerate(table.paths)}
        facts, before = circumstances(options.device, options.commit), done_already(options.out)
        print(f"{len(table)} images of {len(table.class_names)} classes on {facts['device']}", flush=True)
        mine, shards = map(int, options.shard.split("/"))
        soups: dict[int, list[dict[str, Tensor]]] = {}
        for number, (fold, (name, settings)) in enumerate(product(options.folds, variants(options, sources).items())):
            if number % shards == mine:
                settings = replace(settings, seed=settings.seed + fold)
                shown = settings.to_dict() | {"weights": Path(settings.weights).name}
                text = json.dumps({k: v for k, v in shown.items() if k not in ("device", "threads", "cache")})
                if (name, str(fold), text) in before:
                    continue
                if options.minutes and time.monotonic() - started > 60 * options.minutes:
                    raise SystemExit("Out of time; the rest is left for the next call.")
                parts = class_block(table, fold)
                try:
                    run = ResidentRun(parts, settings, Path(home), pixels, places)
                    figures = measure(run, options.every, options.bare)
                    if options.soup:
                        soups.setdefault(fold, []).append(copy.deepcopy(run.trainee.state_dict()))
                        figures["soup_recall@1"] = round(soup(run, soups[fold]), 5)
                except InputError as error:  # one variant that cannot be must not end the others
                    figures = {"error": str(error)}
                row = {"list": options.list, "variant": name, "network": settings.network, "dim": settings.dim}
                append_rows(options.out, [row | {"fold": fold} | figures | facts | {"settings": text}])
                print(line(name, fold, figures), flush=True)


def line(name: str, fold: int, figures: dict[str, Any]) -> str:
    """What a person watching wants to know of a variant."""
    if "error" in figures:
        return f"{name:38} fold {fold}  {figures['error']}"
    return (
        f"{name:38} fold {fold}  R@1 {100 * figures['start_recall@1']:.2f} to "
        f"{100 * figures['recall@1']:.2f}  MAP@R {100 * figures['map@r']:.2f} at epoch "
        f"{figures['best_epoch']:>2}  end {100 * figures['last_recall@1']:.2f}  NMI {100 * figures['last_nmi']:.2f}  "
        f"blends {' '.join(f'{100 * figures[k]:.2f}' for k in figures if k.startswith('blend'))}  "
        f"cuts {' '.join(f'{k[:-9]} {100 * figures[k]:.2f}' for k in figures if k[:3] in CUTS and k.endswith('@1'))}  "
        f"sigma {figures['sigma']:.3g}  {figures['seconds']:.0f} s  {figures['recall@1_by_epoch']}"
    )


if __name__ == "__main__":
    main()
