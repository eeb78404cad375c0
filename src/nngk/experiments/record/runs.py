"""Training runs of experiments: read where they are finished, continued where they were interrupted, else begun."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from nngk import InputError, Settings, train
from nngk.data import ImageTable
from nngk.files import read_json, write_json
from nngk.progress import say
from nngk.training.loop import Interrupted, train_epoch
from nngk.training.run import Run

SCORE = {"metric": "val_map@r", "classify": "val_accuracy"}  # what validation decides by
RESULT = "result.json"

Figures = dict[str, Any]


def finished_run(folder: Path, table: ImageTable, settings: Settings, facts: dict[str, Any] | None = None) -> Figures:
    """Return the figures of one training run, which are also written into its folder.

    A run that is finished is read, one that was interrupted goes on, and one that failed is tried again.

    Args:
        facts: what to write in front of the figures.
    """
    result = folder / RESULT
    if result.exists():
        before = read_json(result, "a finished run")
        if "error" not in before:
            return {"best_epoch": before.get("epochs"), **before}  # the name that older runs of the paper have for it
    model = train(table, settings, out=folder, resume=(folder / "run" / "checkpoint.json").exists(), force=True)
    log = read_log(folder)
    best: dict[str, Any] = next((row for row in log if row["epoch"] == model.info["best_epoch"]), {})
    figures = {
        **(facts or {}),
        "best_epoch": model.info["best_epoch"],
        "seconds": model.info["seconds"],
        "val_score": best.get(SCORE[settings.task]),
        **model.info.get("test", {}),
        "train_sigma": log[-1].get("sigma"),
        "last_loss": log[-1]["loss"],
    }
    write_json(result, figures)
    return figures


def attempt(run: Callable[[], Figures]) -> Figures:
    """Return the figures of a run, or why it failed: a loss that diverges is a result, and the others go on."""
    try:
        return run()
    except Interrupted:
        raise Interrupted("Stopped, with everything saved. Go on with the same command.") from None
    except InputError as error:
        say(f"failed: {error}")
        return {"error": str(error)}


def choose_rate(
    table: ImageTable, settings: Settings, rates: Sequence[float], folder: Callable[[float], Path]
) -> tuple[Figures, list[Figures]]:
    """Train once with each learning rate, without the test images; return the best by validation, and all of them.

    Args:
        table: with its split settled; the runs never see its test part.
        folder: says where the run of a learning rate belongs.
    """
    blind = without_test(table)

    def run(lr: float) -> Figures:
        facts = {"loss": settings.loss, "seed": settings.seed, "lr": lr}
        say(f"Choosing on validation data: learning rate {lr:g}")
        return facts | attempt(lambda: finished_run(folder(lr), blind, replace(settings, lr=lr), facts))

    tried = [run(lr) for lr in rates]
    fit = [figures for figures in tried if "error" not in figures]
    if not fit:
        shown = ", ".join(f"{lr:g}" for lr in rates)
        raise InputError(f"The loss '{settings.loss}' failed at every learning rate ({shown}): {tried[0]['error']}")
    return max(fit, key=itemgetter("val_score")), tried


def without_test(table: ImageTable) -> ImageTable:
    """Return a table as someone sees it who chooses: without its test images."""
    assert table.splits is not None
    return table.select(np.array([part not in ("test", "gallery") for part in table.splits]))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the log of the training run in a model's folder, one row per epoch."""
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def epochs(run: Run, count: int | None = None) -> Iterator[float]:
    """Train a run that has begun epoch by epoch; yield the mean loss after each, for whoever looks at it on the way."""
    started = time.perf_counter()
    for _ in range(run.settings.epochs if count is None else count):
        loss, _ = train_epoch(run, lambda: False, started)
        run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
        yield loss
