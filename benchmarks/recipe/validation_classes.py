"""Runs on CUB's training classes alone: one half of them trains, the other half validates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nngk import Settings, evaluate
from nngk.data import ImageTable, Split
from nngk.experiments.record import epochs
from nngk.training.build import build_run
from nngk.training.run import Run
from nngk.training.validation import validate


def class_halves(table: ImageTable, fold: int) -> Split:
    """Return the split whose validation part is one half of the classes, consecutive, and whose test part is empty."""
    held = np.asarray(table.labels) * 2 // len(table.class_names) == 1 - fold % 2
    return Split(table.select(~held).compact(), table.select(held).compact(), table.select([]))


def begun(split: Split, settings: Settings, folder: Path) -> Run:
    """Return a run that is ready for its first step."""
    folder.mkdir(parents=True, exist_ok=True)
    run = build_run(split, settings, folder)
    run.begin()
    return run


def validated(run: Run, every: int = 1) -> list[dict[str, float]]:
    """Train a run to its end; return what validation says after every so many epochs and after the last."""
    history = []
    for epoch, loss in enumerate(epochs(run), 1):
        if epoch % every == 0 or epoch == run.settings.epochs:
            run.objective.before_step(run.at.step, run.trainee)  # a bank that is due now belongs to this epoch
            history.append({**validate(run)[0], "epoch": epoch, "loss": loss})
    return history


def scores(x: Tensor, labels: Tensor, **options: Any) -> dict[str, float]:
    """Return Recall@1, MAP@R and, where it is asked for, NMI of embeddings."""
    return evaluate(x, labels.to(x.device), **({"ks": (1,), "nmi_seeds": 0} | options))


def shown_settings(settings: Settings) -> str:
    """Return all settings that decide a row's figures, as JSON."""
    shown = settings.to_dict() | {"weights": Path(settings.weights).name}
    return json.dumps({k: v for k, v in shown.items() if k not in ("device", "threads", "cache")})
