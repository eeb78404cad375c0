"""The learning rate, chosen on the validation part: short runs with several rates, and the best of them is kept.

No other setting depends on the data as much: unseen cars want a higher rate than unseen birds. Test images are
never looked at. What was tried is kept in the folder of the run, so that tuning goes on where it was stopped.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nngk.data import Split
from nngk.errors import InputError
from nngk.files import fitted, read_json, write_json
from nngk.networks.embed import Rows
from nngk.progress import say
from nngk.training.build import build_run
from nngk.training.feed import Examples
from nngk.training.optimiser import rate_of
from nngk.training.run import Run
from nngk.training.settings import Settings
from nngk.training.step import take_step
from nngk.training.step_batches import step_batches
from nngk.training.validation import comparable, validate

TRAINED = (2e-5, 5e-5, 1e-4, 2e-4)
FROZEN = (1e-4, 3e-4, 1e-3)
WIDEN = 3  # rates beyond an end of the list at most, where the best one is there
SHARE = 3  # a short run has this part of the epochs; one on cached features is short as it is
LIMIT = 300.0  # seconds that a person waits for without having asked
PROBED = 4  # steps that tell how long one takes
FOLDER, RECORD = "tuning", "tuning.json"  # of short runs, and of what they scored

TrainEpoch = Callable[[Run, Callable[[], bool], float], tuple[float, float]]


@dataclass(frozen=True)
class Tried:
    """A learning rate, and the best validation score of its short run; none where the loss was not finite."""

    lr: float
    score: list[float]


def wants_tuning(run: Run, settings: Settings) -> bool:
    """Return whether the rate is to be chosen: nobody gave one, and there are images to choose by."""
    return settings.lr is None and settings.tune and comparable(run.feed.val.labels, settings.task)


def tuned_rate(run: Run, train_epoch: TrainEpoch, stopping: Callable[[], bool], limit: float = LIMIT) -> float:
    """Return the learning rate for a run that has begun and taken no step; its own where tuning would take too long.

    ``train_epoch`` passes once over the batches of a run. It says how long it will take, and what was tried.
    """
    record, ranks = run.folder / RECORD, run.ranks
    tried = ranks.told(_read(record))
    rates = FROZEN if run.frozen else TRAINED
    usual = rate_of(run.settings)
    seconds = ranks.told(_estimate(run, len(rates)))
    if seconds > limit and not tried:
        say(
            f"The learning rate is the recipe's, {usual:g}: to choose it on the validation images would take about "
            f"{_duration(seconds)}. Give --lr to set it."
        )
        return usual
    say(f"Choosing the learning rate on the validation images, in about {_duration(seconds)} (--no-tune skips this).")
    while (lr := next_rate(tried, rates, usual)) is not None:
        tried.append(Tried(lr, _short_run(run, lr, train_epoch, stopping)))
        if ranks.first:
            write_json(record, {"tried": [vars(one) for one in tried]})
        say(f"  learning rate {lr:<8g} {_told(tried[-1].score, run.settings.task)}")
    best = best_of(tried, usual)
    if ranks.first:
        shutil.rmtree(run.folder / FOLDER, ignore_errors=True)
    if not best.score:
        raise InputError("The loss was not finite at any learning rate: set one with --lr, or look at the images.")
    say(f"Training with the learning rate {best.lr:g}.")
    return best.lr


def next_rate(tried: Sequence[Tried], rates: Sequence[float], usual: float, widen: int | None = None) -> float | None:
    """Return the rate to try next: the list first, then beyond its end as long as the best one lies there.

    >>> next_rate([Tried(1e-4, [0.5])], (1e-4, 2e-4), 1e-4)
    0.0002
    >>> next_rate([Tried(1e-4, [0.5]), Tried(2e-4, [0.6])], (1e-4, 2e-4), 1e-4)
    0.0004
    >>> next_rate([Tried(1.0, [0.5]), Tried(2.0, [0.6]), Tried(4.0, [0.4])], (1.0, 2.0), 1.0)
    """
    widen = WIDEN if widen is None else widen
    done = sorted(tried, key=lambda one: one.lr)
    for rate in rates:
        if rate not in [one.lr for one in done]:
            return rate
    if len(done) < 2:
        return None
    best = best_of(tried, usual)
    if best == done[-1] and best.score > done[-2].score and sum(one.lr > max(rates) for one in done) < widen:
        return float(f"{best.lr * best.lr / done[-2].lr:.3g}")
    if best == done[0] and best.score > done[1].score and sum(one.lr < min(rates) for one in done) < widen:
        return float(f"{best.lr * best.lr / done[1].lr:.3g}")
    return None


def best_of(tried: Sequence[Tried], usual: float) -> Tried:
    """Return the rate with the best score; of equal ones, that which is nearest to the usual one.

    >>> best_of([Tried(2e-5, [0.7]), Tried(1e-4, [0.7]), Tried(1e-3, [])], usual=2e-4).lr
    0.0001
    """
    return max(tried, key=lambda one: (one.score, -abs(math.log(one.lr / usual))))


def use_rate(run: Run, lr: float) -> None:
    """Give a run that has taken no step another learning rate."""
    for group in run.optimiser.param_groups:
        group["base_lr"] *= lr / rate_of(run.settings)
    run.settings = replace(run.settings, lr=lr)


def _short_run(run: Run, lr: float, train_epoch: TrainEpoch, stopping: Callable[[], bool]) -> list[float]:
    """Return the best validation score of a short run at a learning rate; none if its loss was not finite."""
    short, best = _copy(run, lr), list[float]()
    try:
        for epoch in range(short.epochs):
            train_epoch(short, stopping, time.perf_counter())
            short.at = replace(short.at, epoch=epoch + 1, batch=0, loss_sum=0.0)
            short.objective.before_step(short.at.step, short.trainee)
            best = max(best, validate(short)[1])
    except InputError as error:
        if stopping():
            raise
        say(f"  learning rate {lr:<8g} failed: {error}")
        return []
    return best


def _copy(run: Run, lr: float) -> Run:
    """Return a short run from the same start, on the same training and validation images and no others."""
    settings = replace(run.settings if run.frozen else _shortened(run.settings), lr=lr, patience=0)
    none = Examples(Rows(torch.empty(0, 0)), torch.empty(0, dtype=torch.int64))
    tables = Split(run.split.train, run.split.val, run.split.test.select([]))
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    short = build_run(tables, settings, folder, replace(run.feed, test=none), run.ranks)
    short.network.load_state_dict(run.network.state_dict())
    return short


def _shortened(settings: Settings) -> Settings:
    """Return settings whose course of epochs has a part of its length, and the same shape."""
    return replace(
        settings,
        epochs=max(2, -(-settings.epochs // SHARE)),
        step_epochs=-(-settings.step_epochs // SHARE),
        head_epochs=settings.head_epochs // SHARE,
    )


def _estimate(run: Run, rates: int) -> float:
    """Return the seconds that short runs with so many rates take, from the time of a few steps."""
    probe = _copy(run, rate_of(run.settings))
    probe.trainee.train()
    train, seconds = probe.feed.train, list[float]()
    coming = step_batches(probe, probe.index_batches(0)[:PROBED])
    with closing(coming):
        for images, labels, indices in coming:
            begun = time.perf_counter()
            if probe.frozen:
                take_step(probe, images, labels, indices)
            else:  # without the bank, which would have to be computed for it
                with torch.autocast(probe.device.type, torch.bfloat16, enabled=probe.amp):
                    embeddings = (probe.trainee if run.ranks.count == 1 else probe.stepping)(images)
                embeddings.float().square().sum().backward()
            if probe.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
    steps = probe.steps_per_epoch * seconds[-1]  # the first ones warm up
    if probe.frozen:  # the first step renewed the bank
        begun = time.perf_counter()
        validate(probe)
        steps += seconds[0] + time.perf_counter() - begun
    else:  # the bank and the scores need the forward passes of all images, a third of a step each
        steps *= 1 + (len(train) + len(probe.feed.val)) / len(train) / 3
    return rates * probe.epochs * steps


def _read(record: Path) -> list[Tried]:
    """Return what was tried before tuning was stopped."""
    if not record.exists():
        return []
    rows: list[Any] = read_json(record, "a tuning").get("tried", [])
    return [fitted(row, Tried, record) for row in rows]


def _told(score: Sequence[float], task: str) -> str:
    name = "MAP@R" if task == "metric" else "accuracy"
    return f"validation {name} {score[0]:.4f}" if score else ""


def _duration(seconds: float) -> str:
    """Return a time in words.

    >>> _duration(0.4), _duration(42), _duration(600)
    ('1 second', '42 seconds', '10 minutes')
    """
    if seconds >= 90:
        return f"{round(seconds / 60)} minutes"
    count = max(1, round(seconds))
    return "1 second" if count == 1 else f"{count} seconds"
