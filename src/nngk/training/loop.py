"""The training loop, from a table of images to a model."""

import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nngk.bank.refresh import interval_in_steps
from nngk.data import ImageTable, batches, read_images, require_pairs, require_training_images, split
from nngk.errors import InputError
from nngk.files import read_json, write_json
from nngk.losses import require_loss
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.losses.objective import RivalLoss
from nngk.model.model import Model
from nngk.progress import say, task
from nngk.search import require_engine
from nngk.training.feed import Transform
from nngk.training.finish import finish
from nngk.training.log import RunLog
from nngk.training.optimiser import rate
from nngk.training.profile import StepProfile, report, watch
from nngk.training.run import Run, as_numbers
from nngk.training.settings import OF_THE_MACHINE, Settings
from nngk.training.step import mixed, take_step
from nngk.training.validation import run_sigma, validate

QUICK_SAVE = 0.2  # seconds that nobody minds


class Interrupted(InputError):
    """The run was stopped by hand; its checkpoint is written."""


def train(
    data: Any,
    settings: Settings | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    tensorboard: bool = False,
    profile: bool = False,
    force: bool = False,
    named: Collection[str] = (),
) -> Model:
    """Train on a folder, CSV file, data frame or :class:`ImageTable`; returns the model, also saved in ``out``.

    ``resume`` continues a run that was stopped in ``out``, as if it had not been. ``profile`` watches some steps and
    writes where their time went into ``out/run/profile``. ``force`` lets the new model replace one that is there.
    ``named`` are the settings that somebody gave: a resumed run must share them even at their default.
    """
    settings = settings or Settings()
    out = Path(out)
    folder = out / "run"
    if resume:
        settings = _same_settings(folder, settings, named)
    elif (folder / "checkpoint.json").exists():
        raise InputError(f"{out} holds an unfinished run. Continue it with --resume, or choose another folder.")
    elif (out / "model.json").exists() and not force:
        raise InputError(f"{out} holds a model. Choose another folder with --out, or replace it with --force.")
    # Mistakes that would else show only after minutes of decoding.
    require_loss(settings.loss)
    require_engine(settings.search)
    interval_in_steps(settings.update_interval, 1)
    table = data if isinstance(data, ImageTable) else read_images(data, task=settings.task, seed=settings.seed)
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    require_pairs(parts.train, "training")
    if settings.task == "classify":
        require_training_images(parts.train)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(parts, settings, folder)
    write_json(folder / "settings.json", run.settings.to_dict())
    if resume:
        run.resume()
    else:
        run.begin()
    log = RunLog(folder, run.at.epoch, tensorboard)
    _introduce(run, resume)
    watcher = watch(run) if profile else None
    started, saving = time.perf_counter() - run.at.seconds, _Saving()

    with _stop_on_ctrl_c() as stopping:
        while run.at.epoch < settings.epochs and not _patience_lost(run):
            loss, images_per_second = train_epoch(run, stopping, started, watcher)
            # Validation reads the embeddings of this moment; where the bank is due now, it provides half of them.
            if isinstance(run.objective, GaussianKernelLoss):
                run.refresher.before_step(run.at.step, run.trainee)
            scores, score = validate(run)
            better = score > run.at.best_score or not score
            if better:
                run.at.best_epoch, run.at.best_score = run.at.epoch, score
            if better and score:  # without a score the last epoch is the best
                run.keep()
            run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
            run.at.seconds = time.perf_counter() - started
            _record(run, log, loss, images_per_second, scores, better)
            saving.save(run)

    run.refresher.finish(run.at.step)
    if watcher is not None:
        report(watcher, run)
    run.go_back()
    model = finish(run, time.perf_counter() - started)
    model.save(out)
    for leftover in [
        *folder.glob("checkpoint*"),
        *folder.glob(".*checkpoint*"),
        *folder.glob("features-*.safetensors"),
    ]:
        leftover.unlink(missing_ok=True)
    return model


class _Saving:
    """A checkpoint after every epoch; where writing one takes long, in a tenth of the time."""

    def __init__(self) -> None:
        self.last, self.took = time.perf_counter(), 0.0

    def save(self, run: Run) -> None:
        begun = time.perf_counter()
        if self.took < QUICK_SAVE or begun - self.last >= 10 * self.took:
            run.save()
            self.last = time.perf_counter()
            self.took = self.last - begun


def train_epoch(
    run: Run, stopping: Callable[[], bool], started: float, watcher: StepProfile | None = None
) -> tuple[float, float]:
    """One pass over the training batches; returns the mean loss and images a second."""
    at, settings = run.at, run.settings
    begun, seen = time.perf_counter(), 0
    if isinstance(run.objective, RivalLoss) and at.batch == 0:
        everything = run.embed(run.parts.train) if run.objective.needs_embeddings else None
        run.objective.start_epoch(at.epoch, everything, run.parts.train.labels.to(run.device))
    upcoming = run.index_batches(at.epoch)
    total = sum(len(b) for b in upcoming)
    losses: list[Tensor] = []
    read_every = 20 if run.device.type == "cuda" else 1  # reading a value back stalls a GPU
    run.trainee.train()
    with task(f"epoch {at.epoch + 1}/{settings.epochs}", total) as advance:
        advance(sum(len(b) for b in upcoming[: at.batch]))
        coming = batches(
            run.parts.train.source,
            run.parts.train.labels,
            upcoming[at.batch :],
            _seeded(run.parts.augment, settings.seed, at.step),
            device=run.device,
            threads=settings.threads,
        )
        for images, labels, indices in coming if watcher is None else watcher.watched(coming):
            losses.append(take_step(run, images, labels, indices))
            if watcher is not None:
                watcher.step()
            at.batch, at.step, seen = at.batch + 1, at.step + 1, seen + len(labels)
            if len(losses) >= read_every:
                at.loss_sum += _read(losses, at.step)
                speed = seen / (time.perf_counter() - begun)
                advance(read_every * len(labels), note=f"loss {at.loss_sum / at.batch:.3f}  {speed:.0f} images/s")
            if stopping():
                at.loss_sum += _read(losses, at.step)
                run.refresher.finish(at.step)
                at.seconds = time.perf_counter() - started
                run.save()
                raise Interrupted(
                    f"Stopped in epoch {at.epoch + 1}, with everything saved. Go on with the same command and --resume."
                )
    at.loss_sum += _read(losses, at.step)
    if isinstance(run.objective, RivalLoss):
        run.objective.end_epoch()
    return at.loss_sum / max(1, at.batch), seen / (time.perf_counter() - begun)


def _read(losses: list[Tensor], step: int) -> float:
    """The sum of the losses since the last look, which must be finite."""
    value = float(torch.stack(losses).sum()) if losses else 0.0
    losses.clear()
    if not math.isfinite(value):
        raise InputError(
            f"The loss became {value} by step {step}: training diverged. Lower --lr, set --clip, or raise --sigma."
        )
    return value


def _seeded(transform: Transform, seed: int, step: int) -> Transform:
    """The transform with randomness that depends on the step alone, so that a resumed run sees the same crops."""
    generator = torch.Generator()

    def seeded(batch: Tensor, _: torch.Generator | None) -> Tensor:
        nonlocal step
        generator.manual_seed(mixed(seed, step) + 1)
        step += 1
        return transform(batch, generator)

    return seeded


def _patience_lost(run: Run) -> bool:
    at, patience = run.at, run.settings.patience
    return bool(patience and at.best_score and at.epoch - 1 - at.best_epoch >= patience)


def _record(run: Run, log: RunLog, loss: float, speed: float, scores: dict[str, float], better: bool) -> None:
    row: dict[str, Any] = {"epoch": run.at.epoch, "step": run.at.step, "loss": round(loss, 6), **as_numbers(scores)}
    # Of the last step, also when it was taken before the run was stopped.
    lr = run.optimiser.param_groups[0]["base_lr"] * rate(run.at.step - 1, run.total_steps, run.settings)
    row |= {"lr": lr, "images_per_second": round(speed, 1)}
    if isinstance(run.objective, GaussianKernelLoss):
        row["sigma"] = round(run_sigma(run), 6)
        row["bank_age"] = run.at.step - run.bank.refreshed_at
        if run.refresher.history:
            last = run.refresher.history[-1]
            row |= {"refresh_seconds": round(last.seconds, 3), "staleness": last.staleness, "lonely": last.n_lonely}
            if run.search.name != "exact":
                row["list_recall"] = round(last.list_recall, 4)
        if run.refresher.overrun:
            row["refreshes_skipped"] = run.refresher.overrun
    log.write(row)
    shown = "  ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in as_numbers(scores).items())
    say(f"epoch {row['epoch']:>3}  loss {loss:.4f}  {shown}{'  *' if better and scores else ''}")


def _introduce(run: Run, resume: bool) -> None:
    p, s = run.parts, run.settings
    what = "the embedding layer on cached features of" if run.frozen else "all of"
    say(
        f"{len(p.train)} training, {len(p.val)} validation and {len(p.test)} test images of "
        f"{len(run.split.train.class_names)} classes; training {what} {s.network} with the loss '{s.loss}' "
        f"on {run.device}."
    )
    if isinstance(run.objective, GaussianKernelLoss) and run.bank.n_neighbours is not None:
        recall = "" if run.search.recall is None else f"; expected recall {run.search.recall:.2f}"
        say(f"Neighbour lists: {run.search.reason}{recall}.")
    if resume:
        say(f"Resuming in epoch {run.at.epoch + 1} of {s.epochs}.")


def _same_settings(folder: Path, asked: Settings, named: Collection[str]) -> Settings:
    """The settings of the run that is resumed. Only the machine may change: the rate's course depends on the rest."""
    if not (folder / "checkpoint.json").exists():
        raise InputError(
            f"{folder.parent} holds no run to resume: none was stopped there after its first step. "
            "Start one without --resume."
        )
    # Runs from before images could keep their aspect squashed them.
    before = Settings.from_dict({"squash": True, **read_json(folder / "settings.json", "a run that can be resumed")})
    free, old, new = OF_THE_MACHINE, before.to_dict(), asked.to_dict()
    default = Settings().to_dict()
    changed = [n for n in new if n not in free and new[n] != old[n] and (n in named or new[n] != default[n])]
    if changed:
        told = ", ".join(f"{name} ({old[name]!r}, now {new[name]!r})" for name in changed)
        raise InputError(
            f"The run in {folder.parent} was started with another {told}. "
            "Resume it with its own settings, or start a new run in another folder."
        )
    return replace(before, **{name: new[name] for name in free})


@contextmanager
def _stop_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C once: stop at the next step, saved. Twice: stop at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        say("Stopping after this step (Ctrl-C again to stop at once) …")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
