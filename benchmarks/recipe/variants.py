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
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from recipe_variants import VARIANTS
from record import append_rows, circumstances
from torch import Tensor, nn
from validation_runs import Resident, ResidentRun, class_block, resident_pixels, resized, trained

from nngk.data import evaluation
from nngk.errors import InputError
from nngk.experiments.paper.sources import Sources
from nngk.metrics import evaluate
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.training.feed import Features
from nngk.training.presets import metric_settings
from nngk.training.settings import Settings
from nngk.training.validation import run_sigma, validate

CUTS = ("cut", "aga", "sou", "rea")  # the columns of what else trained features give
READINGS = ((256, 224), (288, 256), (320, 288), (352, 320), (400, 352))  # sides of the image and of the crop


def measure(run: ResidentRun, every: int, bare: bool = False) -> dict[str, Any]:
    """Train, validating now and then; the figures of the best epoch and of the last."""
    started = time.perf_counter()
    run.begin()
    start = {name: tensor.clone() for name, tensor in run.trainee.state_dict().items()}
    initial = validate(run)[0]["val_recall@1"]
    history = trained(run, every)
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
