"""Digits: classification beside softmax, blocking beside background refresh, unseen classes, and classes learned by
being shown. The settings are the demonstration's.

python benchmarks/digits.py --out results/digits.csv
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import append_rows, circumstances

from nngk import progress
from nngk.data import read_images, split
from nngk.experiments.demo import digits as demo
from nngk.metrics import evaluate
from nngk.training.loop import train


def classification(folder: Path, home: Path, seed: int) -> list[dict[str, Any]]:
    rows = []
    for loss, background in (("nngk", False), ("nngk", True), ("softmax", False)):
        settings = replace(demo.SETTINGS, epochs=15, loss=loss, background=background, seed=seed)
        model = train(folder, settings, out=home / f"{loss}-{background}-{seed}")
        what = f"{loss}, {'background' if background else 'blocking'} refresh" if loss == "nngk" else loss
        rows.append({"question": "ten classes", "variant": what, "seed": seed} | model.info["test"])
    return rows


def unseen(folder: Path, home: Path, seed: int) -> list[dict[str, Any]]:
    """Eight classes are trained; the other two are retrieved, then shown."""
    table = read_images(folder)
    new = np.isin(table.labels, [table.class_names.index(name) for name in demo.NEW])
    known, rest = table.select(~new).compact(), table.select(new)
    s = replace(demo.SETTINGS, seed=seed)
    model = train(known, s, out=home / f"eight-{seed}")
    test = split(known, s.task, s.val_fraction, s.test_fraction, s.seed).test
    found = evaluate(model.embed(rest.paths), torch.as_tensor(rest.labels))
    rows: list[dict[str, Any]] = [{"question": "two unseen classes", "variant": "retrieval", "seed": seed} | found]
    for shown in (5, 20):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/digits.csv"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    progress.quiet = True
    torch.set_num_threads(1)
    about = circumstances("cpu")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        digits = demo.write_digits(home / "digits")
        for seed in range(arguments.seeds):
            rows = [*classification(digits, home, seed), *unseen(digits, home, seed)]
            append_rows(arguments.out, [about | row for row in rows])
            for row in rows:
                print(row["question"], row["variant"], seed, row.get("accuracy", row.get("recall@1")), flush=True)


if __name__ == "__main__":
    main()
