"""One training run for all embedding sizes: trained wide once per seed, then cut to each of them."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nngk import InputError, Model, Settings
from nngk.data import ImageTable, split
from nngk.experiments.paper.results import choices_of, trial_key
from nngk.experiments.paper.trial import Job
from nngk.experiments.record.runs import RESULT
from nngk.files import read_json, write_json
from nngk.progress import say
from nngk.training.build import build_run
from nngk.training.finish import finish


def is_cut(settings: Settings) -> bool:
    """Return whether a run with these settings is cut from a wider one that other sizes share.

    Only metric learning: no experiment classifies with several sizes, and not every classifier can be cut.

    >>> is_cut(Settings(task="metric", dim=64, wide=1024)), is_cut(Settings(task="metric", dim=64))
    (True, False)
    """
    return settings.task == "metric" and bool(settings.wide and settings.dim) and settings.wide != settings.dim


def wide_job(job: Job) -> Job:
    """Return the job of the run that a job's embedding is cut from, the same for all sizes: that of the widest."""
    settings = replace(job.settings, dim=job.settings.wide, wide=None, whiten=0.0)
    trial = replace(job.trial, execute=None, makes=())  # what follows it belongs to each size
    key = trial_key(trial, settings)
    return replace(job, trial=trial, settings=settings, key=key, known=choices_of(job.results, key) or job.known)


def cut(job: Job, whole: Job, figures: dict[str, Any], table: ImageTable, settings: Settings) -> dict[str, Any]:
    """Return the figures of the size that ``settings`` ask for, cut from the finished run of ``whole``."""
    result = job.folder / RESULT
    if result.exists():
        return read_json(result, "a finished run")
    started = time.perf_counter()
    say(f"Trained with {settings.wide} dimensions: keeping the {settings.dim} that say most")
    model = cut_model(whole.folder, table, settings, job.folder)
    seconds = round(figures["seconds"] + time.perf_counter() - started, 3)
    model.info |= {"best_epoch": figures["epochs"], "seconds": seconds}
    model.save(job.folder)
    shared = {"wide_run": whole.key, "wide_seconds": figures["seconds"]}
    figures = {**figures, **model.info.get("test", {}), "seconds": seconds, **shared}
    write_json(result, figures)
    return figures


def cut_model(source: Path, table: ImageTable, settings: Settings, out: Path) -> Model:
    """Return what training with ``settings`` ends in, from the folder of the model before it was reduced."""
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    trained = Model.load(source)
    if [Path(name).name for name in trained.sources] != [path.name for path in parts.train.paths]:
        raise InputError(
            f"The run in {source} was trained with other images than {table.name} has now. "
            "Give the data it was trained with, or another --work folder."
        )
    folder = out / "run"
    folder.mkdir(parents=True, exist_ok=True)
    # A run with nothing left to train: it ends with the same code, on the same device, as any other run.
    run = build_run(parts, settings, folder)
    run.network.load_state_dict(trained.network.state_dict())
    with torch.no_grad():
        run.bank.theta.copy_(trained.theta)
    model = finish(run, 0.0)
    for leftover in folder.glob("features-*.safetensors"):
        leftover.unlink()
    return model
