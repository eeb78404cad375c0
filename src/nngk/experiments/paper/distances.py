"""The supplement's curves of distance and kernel value to the nearest centres, at several points of training."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nngk.data import split
from nngk.experiments.paper.known_classes import curve_trial
from nngk.experiments.paper.trial import Experiment, Job, Trial, View
from nngk.experiments.record import epochs, read_rows, write_rows
from nngk.progress import say
from nngk.training.build import build_run
from nngk.training.finish import finish
from nngk.training.run import Run
from nngk.training.validation import leave_one_out_neighbours, run_sigma

NEAREST = 200
MARKS = (0, 1, 2, 5, 10, 20, 40)  # epochs at which the centres are looked at
CURVE = "distances-curve.csv"


@dataclass
class Moment:
    """Where the training examples stood after some epochs."""

    epoch: int
    squared: Tensor  # (n, NEAREST) to the nearest centres of that moment, without the own centre
    sigma: float | None = None


def watched_training(job: Job) -> dict[str, Any]:
    """Train without stopping early and look at the neighbourhoods on the way; the curves go to their own file."""
    started = time.perf_counter()
    lr = job.trial.rates[0] if job.trial.rates else job.settings.lr
    s = replace(job.settings, lr=lr, patience=0)
    job.folder.mkdir(parents=True, exist_ok=True)
    run = build_run(split(job.table, s.task, s.val_fraction, s.test_fraction, job.seed), s, job.folder)
    run.begin()
    moments = [_look(run)]
    for epoch, loss in enumerate(epochs(run), 1):
        say(f"epoch {epoch:>3}  loss {loss:.4f}")
        if moments[0].sigma is None:
            moments[0].sigma = run_sigma(run)  # σ is tuned in the first step, on the bank of this first moment
        if epoch in MARKS or epoch == s.epochs:
            moments.append(_look(run))
    run.refresher.finish(run.at.step)
    seconds = time.perf_counter() - started
    test = finish(run, seconds).info.get("test", {})
    _write_curves(job, moments)
    return {**test, "epochs": s.epochs, "lr": lr, "train_sigma": run_sigma(run), "seconds": round(seconds, 3)}


def _look(run: Run) -> Moment:
    x = run.embed(run.feed.train)
    squared, _ = leave_one_out_neighbours(x, run.feed.train.labels.to(x.device), NEAREST)
    return Moment(run.at.epoch, squared, run_sigma(run) if run.at.epoch else None)


def curve(moment: Moment) -> list[dict[str, float]]:
    """Return mean distance and mean kernel value by rank of the neighbour.

    >>> moment = Moment(0, torch.tensor([[0.0, 4.0], [0.0, 16.0]]), sigma=1.0)
    >>> [row["distance"] for row in curve(moment)]
    [0.0, 3.0]
    """
    assert moment.sigma is not None
    distance = moment.squared.clamp(min=0).sqrt().mean(0)
    kernel = torch.exp(-moment.squared / (2 * moment.sigma**2)).mean(0)
    ranks = [r for r in range(1, len(distance) + 1) if r <= 10 or r % 5 == 0]
    return [
        {"rank": r, "distance": round(float(distance[r - 1]), 6), "kernel": round(float(kernel[r - 1]), 6)}
        for r in ranks
    ]


def _write_curves(job: Job, moments: list[Moment]) -> None:
    path = job.results / CURVE
    others: list[dict[str, Any]] = [dict(row) for row in read_rows(path) if row["key"] != job.key]
    facts = {"key": job.key, "dataset": job.trial.dataset, "seed": job.seed}
    mine = [{**facts, "epoch": moment.epoch, **row} for moment in moments for row in curve(moment)]
    write_rows(path, others + mine)


def _trials(preset: str, network: str) -> list[Trial]:
    return [replace(curve_trial(preset, network), variant="watched", execute=watched_training, makes=(CURVE,))]


DISTANCES = Experiment(
    "distances",
    "Distances to the nearest centres",
    "Supplement, Figure 4b and 4c",
    "How far a training example is from its 200 nearest centres, and what their kernels say, as training goes on.",
    _trials,
    View("distances"),
    "vgg16",
    one_seed=True,
)
