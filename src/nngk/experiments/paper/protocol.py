"""Choosing without the test part, then one run that looks at it once.

Metric learning: a part of the training classes is held out to choose the number of epochs; then all training classes
are trained for as many. Our own recipe brings its number of epochs, chosen on held-out classes when it was searched
for. Classification: the epoch is chosen on the validation part of the paper's split. Where several learning rates are
to choose from, the validation score decides between them as well. Choices are made once a trial, at its first seed.
Sizes that are cut from one wide run share that run, and its choices.
"""

import json
import shutil
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from nngk.data import ImageTable
from nngk.experiments.paper.sizes import cut, is_cut, wide_job
from nngk.experiments.paper.trial import Job
from nngk.files import read_json, write_json
from nngk.progress import say
from nngk.training.loop import train
from nngk.training.settings import Settings

SCORE = {"metric": "val_map@r", "classify": "val_accuracy"}


def train_and_test(job: Job) -> dict[str, Any]:
    """The figures of a trial: choices first, then the run whose test part counts."""
    table = examples_of(job, job.table)
    if is_cut(job.settings):
        whole = wide_job(job)
        figures = train_and_test(whole)
        return cut(job, whole, figures, table, final_settings(job.settings, figures))
    chosen = choose(job)
    return finished(job.folder, table, final_settings(job.settings, chosen)) | {
        "lr": chosen["lr"],
        "selection_seconds": chosen["seconds"] if job.seed == job.first_seed else 0.0,
    }


def final_settings(settings: Settings, chosen: dict[str, Any]) -> Settings:
    """The settings of the run that counts: what was chosen, and no class held out to choose any more."""
    settings = replace(settings, lr=chosen["lr"])
    if settings.task == "metric":
        settings = replace(settings, val_fraction=0.0, epochs=chosen["epochs"], patience=0)
    return settings


def choose(job: Job) -> dict[str, Any]:
    """Learning rate and epochs, by the validation score of runs that have no test part."""
    rates = job.trial.rates or (job.settings.lr,)
    if len(rates) == 1 and (job.trial.settled or job.settings.task == "classify"):
        # In classification the epoch is chosen in the run itself.
        return {"lr": rates[0], "epochs": job.settings.epochs, "seconds": 0.0}
    if job.known:
        return {**job.known, "seconds": 0.0}
    record = job.folder.parent / "choice.json"
    if record.exists():
        return read_json(record, "a choice")
    blind = examples_of(job, without_test(job.table))
    tried: list[dict[str, Any]] = []
    for lr in rates:
        say(f"Choosing on validation data: learning rate {lr:g}")
        folder = job.folder.parent / f"choice-lr{lr:g}"
        figures = finished(folder, blind, replace(job.settings, lr=lr, seed=job.first_seed))
        tried.append({"lr": lr, **{name: figures[name] for name in ("epochs", "val_score", "seconds")}})
    best = max(tried, key=itemgetter("val_score"))
    chosen = {"lr": best["lr"], "epochs": best["epochs"], "seconds": sum(t["seconds"] for t in tried), "tried": tried}
    write_json(record, chosen)
    for lr in rates:  # what was only a question needs no place on the disk
        shutil.rmtree(job.folder.parent / f"choice-lr{lr:g}", ignore_errors=True)
    return chosen


def finished(folder: Path, table: ImageTable, settings: Settings) -> dict[str, Any]:
    """The figures of one training run: read where it is done, continued where it was cut."""
    result = folder / "result.json"
    if result.exists():
        return read_json(result, "a finished run")
    model = train(table, settings, out=folder, resume=(folder / "run" / "checkpoint.json").exists(), force=True)
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    figures: dict[str, Any] = {**model.info.get("test", {}), "epochs": model.info["best_epoch"]}
    at_best: dict[str, Any] = next((row for row in log if row["epoch"] == figures["epochs"]), {})
    figures |= {"val_score": at_best.get(SCORE[settings.task]), "train_sigma": log[-1].get("sigma")}
    figures |= {"last_loss": log[-1]["loss"], "seconds": model.info["seconds"]}
    write_json(result, figures)
    return figures


def without_test(table: ImageTable) -> ImageTable:
    """The table as someone sees it who chooses: no test image in it."""
    assert table.splits is not None
    return table.select(np.array([split != "test" for split in table.splits]))


def examples_of(job: Job, table: ImageTable) -> ImageTable:
    """The table with only as many training images of a class as the trial wants, drawn by the seed.

    A larger number contains the smaller ones, so that a curve's points differ by what was added.
    """
    if not job.trial.examples:
        return table
    assert table.splits is not None
    rng = np.random.default_rng(job.seed)
    training = np.array([split == "train" for split in table.splits])
    keep = ~training
    for label in np.unique(table.labels):
        members = rng.permutation(np.flatnonzero(training & (table.labels == label)))
        keep[members[: job.trial.examples]] = True
    return table.select(keep)
