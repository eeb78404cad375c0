"""Which recipe finds birds of unseen species best? Variants of the settings, judged on validation classes alone.

    python benchmarks/recipe/variants.py --data DIR --weights DIR [--list best|rivals|paper|readings] [--only NAME ...]

Of the training classes of CUB or Cars196, one half is held out and validates, in the other fold the other half; the
test classes are never read. A fold holds out neighbours of the alphabet: there the kinds of a genus are together, as
they are in the test classes, and hard to tell apart. A row is written as soon as a variant is done, and the same row is
not computed twice; at the end the means over the folds are printed. Folds 2 and 3 are the halves with other seeds, so
that every reading of the paper is judged on both halves with two seeds by

    python benchmarks/recipe/variants.py --data DIR --weights DIR --list readings --network googlenet --dim 64
        --folds 0 1 2 3 --every 10 --bare

Rows: results/recipes.csv.
"""

import argparse
import copy
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from validation_classes import begun, class_halves, scores, shown_settings, validated
from variant_lists import VARIANTS

from nngk import InputError, Settings
from nngk.data import Images, centre_crop
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import Row, append_rows, provenance, read_rows
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.networks.embed import embed
from nngk.networks.embedding_layer.discriminant import discriminant
from nngk.training.feed import Features
from nngk.training.finish import narrow
from nngk.training.presets import metric_settings
from nngk.training.run import Run
from nngk.training.validation import run_sigma, validate

CUTS = ("cut", "aga", "sou", "rea")  # beginnings of the columns of what else trained features give
READINGS = ((256, 224), (288, 256), (320, 288), (352, 320), (400, 352))  # sides of the image and of the crop


def measure(run: Run, every: int, bare: bool, larger: bool) -> dict[str, Any]:
    """Train a run that has begun, validating now and then; return the figures of the best epoch and of the last.

    Args:
        bare: judge the trained network alone.
        larger: also read the pictures larger than in training.
    """
    started = time.perf_counter()
    start = {name: tensor.clone() for name, tensor in run.trainee.state_dict().items()}
    initial = validate(run)[0]["val_recall@1"]
    history = validated(run, every)
    best = max(range(len(history)), key=lambda epoch: history[epoch]["val_recall@1"])
    others = {"start_recall@1": initial}
    if not bare:
        others |= {f"blend{share}_recall@1": blended(run, start, share) for share in (0.3, 0.5, 0.7)} | otherwise(run)
    narrow(run)
    if larger and not bare:
        others |= readings(run)
    last = scores(run.embed(run.feed.val), run.feed.val.labels, nmi_seeds=1)
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


def blended(run: Run, start: dict[str, Tensor], share: float) -> float:
    """Return Recall@1 of weights that are only part of the way from the start to where training led."""
    network = copy.deepcopy(run.trainee)
    now = network.state_dict()
    network.load_state_dict({k: start[k].lerp(t, share) if t.is_floating_point() else t for k, t in now.items()})
    return scores(run.embed(run.feed.val, network), run.feed.val.labels)["recall@1"]


def soup(run: Run, states: list[dict[str, Tensor]]) -> float:
    """Return Recall@1 of the mean of the weights of several runs, which all started from the same."""
    network = copy.deepcopy(run.trainee)
    network.load_state_dict({name: torch.stack([s[name].float() for s in states]).mean(0) for name in states[0]})
    return scores(run.embed(run.feed.val, network), run.feed.val.labels)["recall@1"]


def otherwise(run: Run) -> dict[str, float]:
    """Return what else the trained features give: the embedding cut to fewer dimensions, and a new discriminant."""
    linear, features = run.network.head.linear, Features(run.network, run.frozen)
    assert linear is not None
    labels, truth = run.feed.train.labels.to(run.device), run.feed.val.labels.to(run.device)
    trained, unseen = (run.embed(part, features) for part in (run.feed.train, run.feed.val))
    with torch.no_grad():
        x, y = linear(trained), linear(unseen)
    components = torch.linalg.eigh((x - x.mean(0)).double().T @ (x - x.mean(0)).double())[1].flip(1).to(x)
    made = {f"cut{dim}": (y - x.mean(0)) @ components[:, :dim] for dim in (64, 128, 256, 512) if dim < x.shape[1]}
    for dim in sorted({64, linear.out_features}):
        made[f"again{dim}"] = (unseen - trained.mean(0)) @ discriminant(trained, labels, dim, run.settings.shrinkage)
    out = {}
    for name, rows in made.items():
        found = scores(nn.functional.normalize(rows, dim=1), truth)
        out |= {f"{name}_{metric}": found[metric] for metric in ("recall@1", "map@r")}
    return out


def readings(run: Run) -> dict[str, float]:
    """Return what the trained network finds when it reads the pictures larger than it was trained with."""
    spec, cache, out = run.network.input, Path(str(run.settings.cache)), {}
    for side, size in READINGS:
        if spec.resize < side:
            images = Images(run.split.val, side, cache, run.settings.threads, squash=spec.squash)
            plain = centre_crop(size, spec.mean, spec.std)
            x = embed(run.network, images, plain, device=run.device, amp=run.amp)
            found = scores(x, run.feed.val.labels)
            out |= {f"read{size}_{metric}": found[metric] for metric in ("recall@1", "map@r")}
    return out


def options_given() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, "results/recipes.csv")
    add_sources(parser)
    parser.add_argument("--dataset", choices=["cub200", "cars196"], default="cub200", help="Whose training classes.")
    parser.add_argument("--allow-missing", action="store_true", help="Go on where some images are missing.")
    parser.add_argument("--list", choices=list(VARIANTS), default="best")
    parser.add_argument("--only", nargs="+", help="The names of the variants to run.")
    parser.add_argument("--network", default="resnet50", help="googlenet, resnet50 or another of 'nngk networks'.")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--folds", type=int, nargs="+", default=[0], help="Which half of the classes; also the seed.")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth run from the Ith, for N programs side by side.")
    parser.add_argument("--set", nargs="*", default=[], help="NAME=JSON for the base of all variants.")
    parser.add_argument("--every", type=int, default=1, help="Validate after as many epochs, and after the last.")
    parser.add_argument("--epochs", type=int, help="The epochs of the base.")
    parser.add_argument("--minutes", type=float, help="Start no new run after as many minutes.")
    parser.add_argument("--soup", action="store_true", help="Also judge the mean of the weights of a fold's runs.")
    parser.add_argument("--bare", action="store_true", help="Judge only the trained network, nothing made from it.")
    given = benchmark_options(parser)
    if given.quick and not given.only:
        given.only = list(VARIANTS[given.list])[:2]
    return given


def variants(options: argparse.Namespace, sources: Sources) -> dict[str, Settings]:
    """Return the settings of every variant that was asked for."""
    preset = "paper" if options.list in ("paper", "readings") else "best"
    network, weights = sources.network(options.network)
    chosen = VARIANTS[options.list]
    base = replace(metric_settings(preset, options.dim, network), network=network, weights=weights)
    if options.quick:
        small: dict[str, Any] = {"dim": 4, "epochs": 2, "batch_size": 8, "n_neighbours": 10, "lr": 1e-3}
        base = replace(base, **small, per_class=4 if base.per_class else 0, resize=16, crop_size=16)
        base = replace(base, wide=None, layers=1, train_crop_size=None)
        # Changes of these would be a hundred epochs, or more pixels than there are.
        large = ("epochs", "resize", "crop_size")
        chosen = {name: {k: v for k, v in changes.items() if k not in large} for name, changes in chosen.items()}
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
    options = options_given()
    started = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    before = {(dataset_of(row), row["variant"], row["fold"], row["settings"]) for row in read_rows(options.out)}
    mine, shards = map(int, options.shard.split("/"))
    soups: dict[int, list[dict[str, Tensor]]] = {}
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(options.data, options.weights, Path(home), options.quick, options.allow_missing)
        table = sources.table(options.dataset, "metric").where("train").compact()  # the test classes are not read
        print(f"{len(table)} images of {len(table.class_names)} classes", flush=True)
        chosen = list(product(options.folds, variants(options, sources).items()))
        for number, (fold, (name, settings)) in list(enumerate(chosen))[mine::shards]:
            settings = replace(settings, seed=settings.seed + fold, cache=str(options.cache or Path(home) / "images"))
            if (options.dataset, name, str(fold), shown_settings(settings)) in before:
                continue
            if options.minutes and time.monotonic() - started > 60 * options.minutes:
                raise SystemExit("Out of time; the rest is left for the next call.")
            try:
                run = begun(class_halves(table, fold), settings, Path(home) / str(number))
                figures = measure(run, options.every, options.bare, not options.quick)
                if options.soup:
                    soups.setdefault(fold, []).append(copy.deepcopy(run.trainee.state_dict()))
                    figures["soup_recall@1"] = round(soup(run, soups[fold]), 5)
            except InputError as error:  # a variant that cannot be trained must not end the others
                figures = {"error": str(error)}
            row = {
                "list": options.list,
                "dataset": options.dataset,
                "variant": name,
                "network": settings.network,
                "dim": settings.dim,
            }
            row |= {"fold": fold, **figures, **provenance(options.device, options.commit)}
            append_rows(options.out, [row | {"settings": shown_settings(settings)}])
            print(line(name, fold, figures), flush=True)
    about = (options.list, options.dataset)
    for text in means([row for row in read_rows(options.out) if (row["list"], dataset_of(row)) == about]):
        print(text)


def dataset_of(row: Row) -> str:
    """Return whose classes a row is about; older rows are about CUB's."""
    return row.get("dataset") or "cub200"


def means(rows: list[Row]) -> list[str]:
    """Return a line per variant and size with more than one run: its means at the end of training, best first."""
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.get("last_recall@1"):
            runs.setdefault((row["network"], row["dim"] or "none", row["variant"]), []).append(row)
    shown = []
    for (network, dim, name), mine in runs.items():
        recall, precision = (fmean(float(row[f"last_{m}"]) for row in mine) for m in ("recall@1", "map@r"))
        text = f"{network} {dim:>4}  {name:60} R@1 {100 * recall:.2f}  MAP@R {100 * precision:.2f}  {len(mine)} runs"
        if len(mine) > 1:
            shown.append((recall, text))
    return [text for _, text in sorted(shown, reverse=True)]


def line(name: str, fold: int, figures: dict[str, Any]) -> str:
    """Return what a person who watches wants to know of a variant."""
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
