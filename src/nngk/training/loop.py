"""The training loop, from a table of images to a model."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from nngk.data import Images, Split
from nngk.data.broken import Tolerance
from nngk.errors import InputError
from nngk.model.model import Model
from nngk.model.thumbnails import thumbnails_of
from nngk.progress import say, task
from nngk.ranks import Ranks
from nngk.training.build import build_run
from nngk.training.checkpoint import RECORD as CHECKPOINT
from nngk.training.checkpoint import only_training, write_settings
from nngk.training.continued import photos_with_those_of_model, settings_of_model
from nngk.training.distributed import agreed, joined_ranks, restarts
from nngk.training.everything import FOLDER, LOG, holds_back, run_on_everything
from nngk.training.feed import cache_of
from nngk.training.finish import finish
from nngk.training.log import RunLog
from nngk.training.optimiser import rate
from nngk.training.outset import (
    completed,
    is_preparing,
    is_tuning,
    read_table,
    require_free,
    same_settings,
    training_tables,
)
from nngk.training.profile import StepProfile, finish_profile, start_profile
from nngk.training.recent_losses import RecentLosses
from nngk.training.run import Run
from nngk.training.settings import Settings
from nngk.training.step import take_step
from nngk.training.step_batches import step_batches
from nngk.training.tune import RECORD, tuned_rate, use_rate, wants_tuning
from nngk.training.validation import validate

QUICK_SAVE = 0.2  # seconds that do not disturb
LOOK_EVERY = 20  # steps between two looks at what a GPU computes, which stall it


class Interrupted(InputError):
    """The run was stopped by hand; its checkpoint is written."""


def train(
    data: Any,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    tensorboard: bool = False,
    profile: bool = False,
    force: bool = False,
    named: Collection[str] | None = None,
    start: str | Path | None = None,
    allow_missing: bool = False,
    tolerance: Tolerance | None = None,
) -> Model:
    """Train on a folder, CSV file, data frame or :class:`ImageTable`; return the model, which is saved in ``out`` too.

    Settings that are given by name, such as ``{"epochs": 5}``, are completed by the recipe for the task, the network
    and the machine; so are none at all. :class:`Settings` are taken as they are.

    ``resume`` continues a run that was stopped in ``out``, as if it had not been. ``profile`` times some steps and
    writes where their time went into ``out/run/profile``. ``force`` lets the new model replace one that is there.
    ``named`` are the settings that a resumed run must share; without it, those that differ from their default.
    ``start`` is the folder of a model to go on from, with its network, its classes and its photos; they must all be
    there unless ``allow_missing``. Images that cannot be read are left out as far as ``tolerance`` allows: a hundredth
    of them, where none is given. Processes that torchrun started train together, each with its part of every batch.
    """
    if not isinstance(settings, Settings):
        data, settings, named = completed(data, settings or {}, named)
    if start is not None:
        settings = settings_of_model(Path(start), settings, named)
        data = photos_with_those_of_model(Path(start), read_table(data, settings), settings, allow_missing)
        if not len(data.where("val")):  # no new photo to choose by, and the network knows the others
            settings = replace(settings, val_fraction=0.0)
    out = Path(out)
    folder = out / "run"
    with joined_ranks(settings.device) as ranks:
        if restarts():
            resume = resume or (folder / CHECKPOINT).exists() or is_tuning(folder)
        if resume and is_preparing(folder):
            resume = False  # it was stopped before its first step: what was computed is found again
        if resume:
            settings = same_settings(folder, settings, named)
        else:
            require_free(out, force)
        tables = training_tables(data, settings, tolerance, ranks)
        with _only_first(folder, ranks):
            return _train(tables, settings, out, ranks, resume, tensorboard, profile)


@contextmanager
def _only_first(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the folder of a run, which the first rank does for all."""
    with only_training(folder) if ranks.first else nullcontext():
        ranks.wait()
        yield


def _train(
    tables: Split, settings: Settings, out: Path, ranks: Ranks, resume: bool, tensorboard: bool, profile: bool
) -> Model:
    """Train in a folder in which no other training is at work."""
    folder = out / "run"
    try:
        run = build_run(tables, settings, folder, ranks=ranks)
    except KeyboardInterrupt:
        raise Interrupted(
            "Stopped before the first step; what was computed of the images is kept. Go on with the same command."
        ) from None
    if not resume and ranks.first:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)  # of a run that was given up
        (folder / RECORD).unlink(missing_ok=True)
    if ranks.told(resume and not is_tuning(folder)):
        run.resume()
    else:
        run.begin()
    _introduce(run, resume)
    with _stop_on_ctrl_c() as asked:
        stopping = agreed(asked, ranks, LOOK_EVERY if run.device.type == "cuda" else 1)
        _settle_rate(run, settings, stopping)
        profiler = start_profile(run) if profile and ranks.first else None
        seconds = train_epochs(run, stopping, tensorboard, profiler)
        if profiler is not None:
            finish_profile(profiler, run)
        if holds_back(run):
            run.save()  # with its last epoch: what follows may be stopped too
        model = finish(run, seconds)
        if holds_back(run):
            model = _train_on_everything(run, model, seconds, stopping)
    if ranks.first:
        _keep(model, run, out)
    ranks.wait()  # all see the model when one has trained it
    return model


def _keep(model: Model, run: Run, out: Path) -> None:
    """Write the model of a run that is over, and clear what only the run needed."""
    folder = out / "run"
    _keep_thumbnails(model, run)
    model.save(out)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    for pattern in ("checkpoint*", ".*checkpoint*", "features-*.safetensors"):
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)


def _keep_thumbnails(model: Model, run: Run) -> None:
    """Let small pictures of the images travel with a model, unless told otherwise or where they are too many."""
    if not run.settings.thumbnails:
        return
    parts = [*run.split] if len(model.sources) > len(run.split.train) else [run.split.train]
    paths = [path for table in run.split for path in table.paths]
    spec, cache, made = model.network.input, cache_of(run.settings, paths), list[bytes]()
    for table in parts:
        images = Images(table, spec.resize, cache, run.settings.threads, squash=spec.squash)
        small = thumbnails_of(images, len(model.sources))
        if small is None:
            say(f"{len(model.sources)} images are too many for thumbnails: the model is saved without.")
            return
        made += small
    model.keep_thumbnails(made)
    megabytes = sum(map(len, made)) / 1e6
    say(f"Thumbnails of the images take {megabytes:.1f} MB of the model (--no-thumbnails leaves them out).")


def _settle_rate(run: Run, settings: Settings, stopping: Callable[[], bool]) -> None:
    """Choose the learning rate where it was left open, and write the settings of the run."""
    if wants_tuning(run, settings):
        if run.ranks.first:
            write_settings(run.folder, run.settings.to_dict() | {"lr": None})
        use_rate(run, tuned_rate(run, train_epoch, stopping))
    if run.ranks.first:
        write_settings(run.folder, run.settings.to_dict())


def train_epochs(
    run: Run, stopping: Callable[[], bool], tensorboard: bool = False, profiler: StepProfile | None = None
) -> float:
    """Train a run that has begun to its end and return to its best epoch; return the seconds that it took."""
    log = RunLog(run.folder, run.at.epoch, tensorboard) if run.ranks.first else None
    saving = _Saving()
    started = time.perf_counter() - run.at.seconds
    while run.at.epoch < run.epochs and not _patience_lost(run):
        loss, images_per_second = train_epoch(run, stopping, started, profiler)
        scores, better = _compare(run)
        run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
        run.at.seconds = time.perf_counter() - started
        _record(run, log, loss, images_per_second, scores, better)
        saving.save(run)
    run.refresher.finish(run.at.step)
    run.go_back()
    return time.perf_counter() - started


def _train_on_everything(measured: Run, model: Model, seconds: float, stopping: Callable[[], bool]) -> Model:
    """Train once more, on all images, and return a model that holds them all, with the scores of the one before."""
    with _only_first(measured.folder / FOLDER, measured.ranks):
        run = run_on_everything(measured)
        epochs = f"{run.epochs} epoch{'s' if run.epochs > 1 else ''}"
        say(f"{_held_out(model)} Now training on all {len(run.feed.train)} images, for {epochs}.")
        if run.ranks.told((run.folder / CHECKPOINT).exists()):
            run.resume()
        else:
            run.begin()
        seconds += train_epochs(run, stopping)
        if run.ranks.first:
            (run.folder / "log.csv").replace(measured.folder / LOG)
        return finish(run, seconds, model)


def _held_out(model: Model) -> str:
    """Return what the images that were held out from a model say of it."""
    name, value = next(iter(model.info.get("test", {}).items()), ("", 0.0))
    return f"On the held-out test images: {name.replace('_', ' ')} {value:.4f}." if name else "Nothing to measure on."


def _compare(run: Run) -> tuple[dict[str, float], bool]:
    """Validate the epoch that is over and keep it if it is the best so far; return its scores and whether it is."""
    # Validation reads the embeddings of this moment; where the bank is due now, it provides half of them.
    run.objective.before_step(run.at.step, run.trainee)
    scores, score = validate(run)
    better = score > run.at.best_score or not score
    if better:
        run.at.best_epoch, run.at.best_score = run.at.epoch, score
    if better and score:  # without a score the last epoch is the best
        run.keep()
    return scores, better


class _Saving:
    """Saves a checkpoint after every epoch, or less often where that would take over a tenth of the time."""

    def __init__(self) -> None:
        self.last, self.took = time.perf_counter(), 0.0

    def save(self, run: Run) -> None:
        begun = time.perf_counter()
        if run.ranks.told(self.took < QUICK_SAVE or begun - self.last >= 10 * self.took):
            run.save()
            self.last = time.perf_counter()
            self.took = self.last - begun


def train_epoch(
    run: Run, stopping: Callable[[], bool], started: float, profiler: StepProfile | None = None
) -> tuple[float, float]:
    """Pass once over the training batches; return the mean loss and the images per second."""
    at = run.at
    begun, seen = time.perf_counter(), 0
    if at.batch == 0:
        run.objective.start_epoch(at.epoch, lambda: run.embed(run.feed.train))
    upcoming = run.index_batches(at.epoch)
    total = sum(len(b) for b in upcoming)
    losses = RecentLosses(run.split.train.paths)
    read_every = LOOK_EVERY if run.device.type == "cuda" else 1
    run.trainee.train()
    coming = step_batches(run, upcoming[at.batch :])
    with closing(coming), task(f"epoch {at.epoch + 1}/{run.epochs}", total) as advance:
        advance(sum(len(b) for b in upcoming[: at.batch]))
        for images, labels, indices in coming if profiler is None else profiler.loading(coming):
            try:
                losses.add(at.step, take_step(run, images, labels, indices), indices)
            except InputError:
                losses.read()  # what went wrong before tells more than what came of it, such as a bank of NaN
                raise
            if profiler is not None:
                profiler.step()
            at.batch, at.step, seen = at.batch + 1, at.step + 1, seen + len(labels)
            if len(losses) >= read_every:
                at.loss_sum += losses.read()
                speed = seen / (time.perf_counter() - begun)
                advance(read_every * len(labels), note=f"loss {at.loss_sum / at.batch:.3f}  {speed:.0f} images/s")
            if stopping():
                at.loss_sum += losses.read()
                run.refresher.finish(at.step)
                at.seconds = time.perf_counter() - started
                run.save()
                raise Interrupted(
                    f"Stopped in epoch {at.epoch + 1}, with everything saved. Go on with the same command and --resume."
                )
    at.loss_sum += losses.read()
    run.objective.end_epoch()
    return at.loss_sum / max(1, at.batch), seen / (time.perf_counter() - begun)


def _patience_lost(run: Run) -> bool:
    at, patience = run.at, run.settings.patience
    return bool(patience and at.best_score and at.epoch - 1 - at.best_epoch >= patience)


def _record(run: Run, log: RunLog | None, loss: float, speed: float, scores: dict[str, float], better: bool) -> None:
    rounded = {key: round(float(value), 6) for key, value in scores.items()}
    row: dict[str, Any] = {"epoch": run.at.epoch, "step": run.at.step, "loss": round(loss, 6), **rounded}
    # Of the last step, also when it was taken before the run was stopped.
    lr = run.optimiser.param_groups[0]["base_lr"] * rate(run.at.step - 1, run.total_steps, run.settings)
    row |= {"lr": lr, "images_per_second": round(speed, 1)}
    row |= run.objective.record(run.at.step)
    if log is not None:
        log.write(row)
    shown = "  ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in rounded.items())
    say(f"epoch {row['epoch']:>3}  loss {loss:.4f}  {shown}{'  *' if better and scores else ''}")
    note = run.objective.ailment()
    if note and not run.ailing:
        say(note)
    run.ailing = bool(note)


def _introduce(run: Run, resume: bool) -> None:
    feed, s = run.feed, run.settings
    what = "the embedding layer on cached features of" if run.frozen else "all of"
    how = f"by the distances of {s.teacher}" if s.teacher else f"with the loss '{s.loss}'"
    where = f"{run.device}" if run.ranks.count == 1 else f"{run.ranks.count} ranks of {run.device.type}"
    say(
        f"{len(feed.train)} training, {len(feed.val)} validation and {len(feed.test)} test images of "
        f"{len(run.split.train.class_names)} classes; training {what} {s.network} {how} on {where}."
    )
    for note in run.notes:
        say(note)
    if resume:
        say(f"Resuming in epoch {run.at.epoch + 1} of {s.epochs}.")


@contextmanager
def _stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether to stop: Ctrl-C or SIGTERM once, after the step and saved; twice, at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        say("Stopping after this step (Ctrl-C again to stop at once) …")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
