"""What does a second generation reach on unseen classes, which learns the distances of the first in place of classes?

    python benchmarks/recipe/taught.py --name cub200 --images FOLDER_OR_CSV --weights FILE
        [--teachers 2] [--folds 0] [--seeds 0 1 2] [--try lr=2e-4 epochs=20 --try …]

Pictures are read as the field reads them: shorter side 256, the centre of 224. The first generation is our recipe with
the rate and the whitening that unseen.py chose; the second starts from the same weights, and its teachers are runs
of the first with other seeds. Candidates are judged on halves of the training classes, each with the whitening that
suits it best there; the best by the mean of Recall@1 and MAP@R is then trained on all training classes, and both
generations are scored on the test classes once.
Rows: results/taught_validation.csv and results/taught.csv.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize
from unseen import Prepared, _made, _rows_of, base_settings, changes, trained
from validation_classes import class_halves, scores, shown_settings

from nngk import Settings
from nngk.data import ImageTable, read_images
from nngk.experiments.record import append_rows, provenance, read_rows
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.training.finish import narrow
from nngk.training.presets import TAUGHT, TAUGHT_RATE
from nngk.training.run import Run

# The first generation: rate and whitening as unseen.py chose them (results/unseen_validation_wide.csv).
FIRST: dict[str, dict[str, Any]] = {"cub200": {"lr": 2e-5, "whiten": 0.0}, "cars196": {"lr": 1e-4, "whiten": 0.5}}
CANDIDATES = [[f"lr={TAUGHT_RATE:g}"]]


def first(options: argparse.Namespace) -> Settings:
    """Return the settings of the first generation."""
    base = base_settings(options)
    return base if options.quick else replace(base, **FIRST[options.name])


def second(base: Settings, candidate: Sequence[str], whiten: float | None) -> Settings:
    """Return the settings of the second generation; validation classes say how far it is evened out, where None is."""
    chosen: dict[str, Any] = TAUGHT | {"lr": TAUGHT_RATE, "whiten": whiten} | changes(candidate)
    return replace(base, **chosen, teacher="the first generation")


def generation(
    prepared: Prepared, table: ImageTable, parts: Sequence[np.ndarray], s: Settings, folder: Path, *teachers: nn.Module
) -> tuple[Run, float]:
    """Train a run and cut it to its size; return it with the seconds of its training."""
    run = prepared.run(table, parts, s, _made(folder), teachers)
    seconds = trained(run)
    narrow(run)
    run.network.eval().requires_grad_(False)
    return run, seconds


def scored(run: Run, part: str, **how: Any) -> dict[str, float]:
    """Return the scores of one part's images; embeddings of any length also as they are at unit length."""
    examples = getattr(run.feed, part)
    x = run.embed(examples)
    found = scores(x, examples.labels, **how)
    unit = scores(normalize(x), examples.labels) if not run.network.head.normalise else {}
    return found | {f"unit_{name}": unit[name] for name in ("recall@1", "map@r") if name in unit}


def measure(
    options: argparse.Namespace, table: ImageTable, parts: list[np.ndarray], base: Settings, home: Path,
    seeds: Sequence[int], candidates: Sequence[Sequence[str]], part: str, out: Path, whiten: float | None = None,
    **also: Any,
) -> None:  # fmt: skip
    """Train teachers for every seed, then the candidates, each taught by as many; write a row per run."""
    prepared = Prepared(table, base, options.threads)
    how = {"ks": (1, 2, 4, 8), "nmi_seeds": 10} if part == "test" else {}
    count = max(options.teachers)
    runs: dict[int, Run] = {}

    def told(run: Run, seconds: float, row: dict[str, Any]) -> None:
        s = run.settings
        found = {key: round(value, 5) for key, value in scored(run, part, **how).items()}
        row = {"data": options.name, "network": s.network, "dim": s.dim} | row | {"lr": s.lr, "whiten": s.whiten}
        row |= {"epochs": s.epochs} | found | {"seconds": seconds}
        append_rows(out, [row | provenance(options.device, options.commit) | {"settings": shown_settings(s)}])
        print(options.name, {k: v for k, v in row.items() if k not in ("data", "network", "dim")}, flush=True)

    def teacher(seed: int) -> Run:
        if seed not in runs:
            started = time.perf_counter()
            runs[seed], seconds = generation(prepared, table, parts, replace(base, seed=seed), home / f"first{seed}")
            if seed in seeds:
                told(runs[seed], seconds, also | {"generation": 1, "teachers": 0, "seed": seed, "tried": ""})
            print(f"  first generation, seed {seed}: {time.perf_counter() - started:.1f} s", flush=True)
        return runs[seed]

    for seed in seeds:
        # Teachers of neighbouring seeds: those of a run are its own first generation and the ones after it.
        every = [(seed + i) % max(count, len(seeds)) for i in range(count)]
        for number, candidate in enumerate(candidates):
            for n in options.teachers:
                settings = replace(second(base, candidate, whiten), seed=seed)
                networks = [teacher(one).network for one in every[:n]]
                folder = home / f"second{seed}-{number}-{n}"
                run, seconds = generation(prepared, table, parts, settings, folder, *networks)
                row = {"generation": 2, "teachers": n, "seed": seed, "tried": " ".join(candidate)}
                told(run, seconds, also | row)


def best(rows: list[dict[str, Any]]) -> tuple[list[str], int, float]:
    """Return the candidate and the number of teachers with the highest mean of Recall@1 and MAP@R, and its whitening.

    >>> row = {"generation": "2", "tried": "lr=1", "teachers": "1", "whiten": "0.2", "recall@1": "0.5", "map@r": "0.3"}
    >>> best([row, row | {"teachers": "2", "recall@1": "0.6"}, row | {"teachers": "2", "whiten": "0.4"}, row])
    (['lr=1'], 2, 0.3)
    """
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        if int(row["generation"]) == 2:
            score = (float(row["recall@1"]) + float(row["map@r"])) / 2
            found.setdefault((row["tried"], int(row["teachers"])), []).append((score, float(row["whiten"])))
    most = max(map(len, found.values()))
    means = {key: np.mean(values, axis=0) for key, values in found.items() if len(values) == most}
    tried, teachers = max(means, key=lambda key: means[key][0])
    return tried.split(), teachers, round(float(means[tried, teachers][1]), 2)


def options_given() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, "results/taught.csv")
    parser.add_argument("--name", choices=sorted(FIRST), default="cub200", help="Which dataset it is.")
    parser.add_argument("--images", type=Path, help="Its folder, or a CSV file with the columns path,label,split.")
    parser.add_argument("--weights", help="The file of ResNet50's weights, or 'imagenet'.")
    parser.add_argument("--network", default="resnet50-v1")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2, help="Threads that decode.")
    parser.add_argument("--teachers", type=int, nargs="+", default=[1], help="How many teachers to try.")
    parser.add_argument("--folds", type=int, nargs="*", default=[0, 1], help="Which halves to validate on.")
    parser.add_argument("--try", dest="tried", nargs="+", action="append", metavar="SETTING=VALUE", help="A candidate.")
    options = benchmark_options(parser)
    options.crop = 224
    options.candidates = options.tried or CANDIDATES
    return options


def main() -> None:
    options = options_given()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    table = read_images(options.images, task="metric")
    train, base = table.where("train").compact(), first(options)
    record = options.out.with_name(f"{options.out.stem}_validation.csv")
    with tempfile.TemporaryDirectory() as home:
        for fold in options.folds:
            parts = [_rows_of(train, part) for part in class_halves(train, fold)]
            folder = Path(home) / f"fold{fold}"
            measure(options, train, parts, base, folder, [0], options.candidates, "val", record, fold=fold)
        rows = [row for row in read_rows(record) if row["data"] == options.name]
        candidate, teachers, whiten = best(rows) if rows else (options.candidates[0], options.teachers[0], 0.0)
        told = f"{' '.join(candidate)}, {teachers} teachers, whiten {whiten:g}"
        print(f"Chosen on validation classes: {told}", flush=True)
        if options.seeds:
            splits = np.array(table.splits)
            parts = [np.flatnonzero(splits == "train"), np.array([], dtype=np.int64), np.flatnonzero(splits == "test")]
            options.teachers = [teachers]
            home_of_test = Path(home) / "test"
            measure(options, table, parts, base, home_of_test, options.seeds, [candidate], "test", options.out, whiten)


if __name__ == "__main__":
    main()
