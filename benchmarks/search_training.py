"""Training with FANNG's neighbour lists beside training with exact ones: digits, and CUB with a frozen network.

python benchmarks/search_training.py --data-dir DIR --work FOLDER --out results/search_training.csv

The parts of the data are the same for all seeds, so that a frozen network's features are computed once, in FOLDER.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import append_rows, circumstances

from nngk import demo, progress
from nngk.data import ImageTable, read_images, split
from nngk.training.config import Settings
from nngk.training.loop import train

# Small images: what is compared is the search, and the same for both.
CUB = Settings(dim=64, epochs=8, lr=1e-3, embedding_lr_factor=1.0, crop_size=160, freeze=True)


def fixed_parts(table: ImageTable, settings: Settings) -> ImageTable:
    """The table with its validation part chosen once."""
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, seed=0)
    part_of = {path: name for name, part in zip(("train", "val", "test"), parts) for path in part.paths}
    return replace(table, splits=[part_of[path] for path in table.paths])


def compared(name: str, table: ImageTable, settings: Settings, work: Path, seeds: int) -> list[dict[str, Any]]:
    table = fixed_parts(table, settings)
    rows = []
    kept = work / f"{name}.safetensors"
    for seed in range(seeds):
        for search in ("exact", "fanng"):
            out = work / f"{name}-{search}-{seed}"
            shutil.rmtree(out, ignore_errors=True)
            features = out / "run" / "features.safetensors"
            if settings.freeze and kept.exists():
                features.parent.mkdir(parents=True)
                shutil.copy(kept, features)
            model = train(
                table, replace(settings, search=search, seed=seed, cache=str(work / f"{name}-images")), out=out
            )
            if settings.freeze and not kept.exists():
                shutil.copy(features, kept)
            log = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
            recalls = [row["list_recall"] for row in log if "list_recall" in row]
            row = {"data": name, "search": search, "seed": seed, "centres": splits_of(table)["train"]}
            row["least_list_recall"] = min(recalls) if recalls else 1.0
            rows.append(row | {key: model.info["test"][key] for key in ("accuracy", "recall@1", "map@r")})
            print(rows[-1], flush=True)
    return rows


def splits_of(table: ImageTable) -> dict[str, int]:
    """How many images each part has."""
    names, counts = np.unique(np.array(table.splits), return_counts=True)
    return dict(zip(names.tolist(), counts.tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "cub200"], choices=["digits", "cub200"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/search_training.csv"))
    given = parser.parse_args()
    progress.quiet = True
    torch.set_num_threads(2)
    given.work.mkdir(parents=True, exist_ok=True)
    for name in given.data:
        if name == "digits":
            table, settings = read_images(demo.write_digits(given.work / "digits")), replace(demo.SETTINGS, epochs=15)
        else:
            table, settings = read_images(name, data_dir=given.data_dir), CUB
        rows = compared(name, table, settings, given.work, given.seeds)
        append_rows(given.out, [circumstances("cpu") | row for row in rows])


if __name__ == "__main__":
    main()
