"""Choices without the test part, then one run that looks at it once.

Metric learning: some of the training classes are held out to choose the number of epochs; then all training classes
are trained for as many. Our own recipe brings its number of epochs, chosen on held-out classes when it was searched
for. Classification: the epoch is chosen on the validation part of the paper's split. Where there are several learning
rates to choose from, the validation score decides between them as well. Choices are made once per trial, at its first
seed. Sizes that are cut from one wide run share that run and its choices.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nngk import Settings
from nngk.data import ImageTable
from nngk.experiments.paper.sizes import cut, is_cut, wide_job
from nngk.experiments.paper.trial import Job
from nngk.experiments.record import choose_rate, finished_run
from nngk.files import read_json, write_json
from nngk.training.optimiser import rate_of


def train_and_test(job: Job) -> dict[str, Any]:
    """Return the figures of a trial: choose first, then train the run whose test part counts."""
    table = examples_of(job, job.table)
    if is_cut(job.settings):
        whole = wide_job(job)
        figures = train_and_test(whole)
        return cut(job, whole, figures, table, final_settings(job.settings, figures))
    chosen = choose(job)
    figures = finished_run(job.folder, table, final_settings(job.settings, chosen))
    spent = chosen["seconds"] if job.seed == job.first_seed else 0.0
    return figures | {"epochs": figures["best_epoch"], "lr": chosen["lr"], "selection_seconds": spent}


def final_settings(settings: Settings, chosen: dict[str, Any]) -> Settings:
    """Return the settings of the run that counts: what was chosen, with no class held out any more."""
    settings = replace(settings, lr=chosen["lr"])
    if settings.task == "metric":
        settings = replace(settings, val_fraction=0.0, epochs=chosen["epochs"], patience=0)
    return settings


def choose(job: Job) -> dict[str, Any]:
    """Return learning rate and epochs, by the validation score of runs that have no test part."""
    rates = job.trial.rates or (rate_of(job.settings),)
    if len(rates) == 1 and (job.trial.settled or job.settings.task == "classify"):
        # In classification the epoch is chosen in the run itself.
        return {"lr": rates[0], "epochs": job.settings.epochs, "seconds": 0.0}
    if job.known:
        return {**job.known, "seconds": 0.0}
    record = job.folder.parent / "choice.json"
    if record.exists():
        return read_json(record, "a choice")

    def folder(lr: float) -> Path:
        return record.with_name(f"choice-lr{lr:g}")

    blind = replace(job.settings, seed=job.first_seed)
    best, tried = choose_rate(examples_of(job, job.table), blind, rates, folder)
    kept = ("lr", "best_epoch", "val_score", "seconds", "error")
    chosen = {
        "lr": best["lr"],
        "epochs": best["best_epoch"],
        "seconds": sum(figures.get("seconds", 0.0) for figures in tried),
        "tried": [{name: figures[name] for name in kept if name in figures} for figures in tried],
    }
    write_json(record, chosen)
    for lr in rates:  # what was only a question needs no place on the disk
        shutil.rmtree(folder(lr), ignore_errors=True)
    return chosen


def examples_of(job: Job, table: ImageTable) -> ImageTable:
    """Return the table with only as many training images per class as the trial wants, drawn by the seed.

    A larger number contains the smaller ones, so that the points of a curve differ by what was added.
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
