"""How good are kernels on small images: beside softmax, with either refresh, on unseen classes and on shown ones?

    python benchmarks/losses/small_images.py

scikit-learn's digits with the settings of the demonstration, on the CPU. Rows: results/digits.csv.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nngk import Settings, evaluate, progress, read_images, train
from nngk.data import ImageTable, split
from nngk.experiments.demo import digits as demo
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser


def classification(table: ImageTable, home: Path, settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Train on all ten classes: kernels with a blocking and with a background refresh, and softmax."""
    rows = []
    for loss, background in (("nngk", False), ("nngk", True), ("softmax", False)):
        s = replace(settings, loss=loss, background=background, seed=seed)
        model = train(table, s, out=home / f"{loss}-{background}-{seed}")
        what = f"{loss}, {'background' if background else 'blocking'} refresh" if loss == "nngk" else loss
        rows.append({"question": "ten classes", "variant": what, "seed": seed} | model.info["test"])
    return rows


def unseen(table: ImageTable, home: Path, settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Train on eight classes, retrieve the other two, then show them to the model."""
    new = np.isin(table.labels, [table.class_names.index(name) for name in demo.NEW])
    known, rest = table.select(~new).compact(), table.select(new)
    s = replace(settings, seed=seed)
    model = train(known, s, out=home / f"eight-{seed}")
    test = split(known, s.task, s.val_fraction, s.test_fraction, s.seed).test
    found = evaluate(model.embed(rest.paths), torch.as_tensor(rest.labels))
    rows: list[dict[str, Any]] = [{"question": "two unseen classes", "variant": "retrieval", "seed": seed} | found]
    for shown in (5, 20) if len(rest) > 100 else (5,):
        means = [_shown(model, rest, test, shown, draw) for draw in range(5)]
        variant = f"{shown} pictures of each shown, mean of 5 draws and of the classes' accuracies"
        rows.append(
            {"question": "all ten classes", "variant": variant, "seed": seed, "accuracy": float(np.mean(means))}
        )
    return rows


def _shown(model: Any, rest: Any, test: Any, shown: int, draw: int) -> float:
    rng = np.random.default_rng(draw)
    asked, truth = list(test.paths), [test.class_names[label] for label in test.labels]
    for name in demo.NEW:
        order = rng.permutation(np.flatnonzero(rest.labels == rest.class_names.index(name)))
        model.add(name, [rest.paths[i] for i in order[:shown]])
        asked += [rest.paths[i] for i in order[shown:]]
        truth += [name] * (len(order) - shown)
    said = np.array(model.class_names)[model.probabilities(model.embed(asked)).argmax(1).numpy()]
    accuracy = float(np.mean([(said == name)[np.array(truth) == name].mean() for name in model.class_names]))
    for name in demo.NEW:
        model.remove(name)
    return accuracy


def main() -> None:
    parser = benchmark_parser(__doc__, "results/digits.csv")
    parser.add_argument("--seeds", type=int, default=3)
    given = benchmark_options(parser)
    progress.quiet = True
    torch.set_num_threads(1)
    seeds, epochs, few = (1, 1, 1) if given.quick else (given.seeds, 15, demo.SETTINGS.epochs)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        table = read_images(demo.write_digits(home / "digits"))
        table = table.select(range(0, len(table), 8 if given.quick else 1))
        for seed in range(seeds):
            rows = classification(table, home, replace(demo.SETTINGS, epochs=epochs), seed)
            rows += unseen(table, home, replace(demo.SETTINGS, epochs=few), seed)
            append_rows(given.out, [row | provenance("cpu", given.commit) for row in rows])
            for row in rows:
                print(row["question"], row["variant"], seed, row.get("accuracy", row.get("recall@1")), flush=True)


if __name__ == "__main__":
    main()
