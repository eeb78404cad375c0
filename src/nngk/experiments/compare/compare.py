"""Losses compared under one protocol: same data, split, network, augmentation and budget; only the loss differs.

The data are split once. An epoch is chosen by validation (MAP@R on classes that are neither trained nor tested, for the
task 'metric'); the test part is looked at once a run, after that. Where several learning rates are given, each loss
gets the one with the best validation score at the first seed, found without the test part.
"""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nngk import __version__
from nngk.data import ImageTable, read_images, split
from nngk.device import pick_device
from nngk.errors import InputError
from nngk.experiments.compare.verdict import write_report
from nngk.files import read_json, write_json
from nngk.losses import create_loss, require_loss
from nngk.metrics import has_pairs
from nngk.networks import create_network
from nngk.progress import say
from nngk.training.build import is_frozen
from nngk.training.loop import Interrupted, train
from nngk.training.settings import OF_THE_MACHINE, RETIRED, Settings

# What may differ between the calls that make up one comparison: who takes part, and the machine.
FREE = ("loss", "seed", "lr", *OF_THE_MACHINE)


@dataclass(frozen=True)
class _Plan:
    """What all runs of a comparison share."""

    table: ImageTable  # with its split settled
    settings: Settings
    out: Path


def compare(
    data: Any,
    losses: Sequence[str],
    settings: Settings | None = None,
    *,
    out: str | Path,
    seeds: int | Sequence[int] = 3,
    rates: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """Train every loss with every seed; returns one row a run and writes the report into ``out``.

    ``seeds`` is how many, counted from the settings' seed, or which. A comparison that was cut goes on where it was
    when it is called again with the same ``out``; losses and seeds may be added to it.
    """
    settings = settings or Settings(task="metric")
    numbers = list(range(settings.seed, settings.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    out = Path(out)
    plan = _prepare(data, list(losses), settings, numbers, out)
    rows: list[dict[str, Any]] = []
    done = 0
    for seed in numbers:  # seed by seed, so that a cut comparison has whole ones
        for loss in losses:
            done += 1
            say(f"[{done}/{len(numbers) * len(losses)}] {loss}, seed {seed}")
            lr = _best_rate(plan, loss, numbers[0], rates) if rates else settings.lr
            rows.append(_run(plan, replace(plan.settings, loss=loss, seed=seed, lr=lr)))
        write_report(out, rows + _finished(out, rows), settings.task)
    return rows


def _finished(out: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of other losses and seeds that earlier calls of this comparison have finished, the latest of each."""
    paths = sorted((out / "runs").glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    finished = [row for row in (read_json(path, "a finished run") for path in paths) if "error" not in row]
    others = {(row["loss"], row["seed"]): row for row in finished}
    for row in rows:
        others.pop((row["loss"], row["seed"]), None)
    return list(others.values())


def _prepare(data: Any, losses: list[str], settings: Settings, seeds: list[int], out: Path) -> _Plan:
    """Check everything that can be checked before hours of training."""
    if not losses or not seeds or len(set(losses)) < len(losses) or len(set(seeds)) < len(seeds):
        raise InputError(f"A comparison needs losses and seeds, each once; got {losses} and {seeds}.")
    table = data if isinstance(data, ImageTable) else read_images(data, task=settings.task, seed=settings.seed)
    table = settle_split(table, settings)
    for part in ("val", "test"):
        if not len(table.where(part)):
            raise InputError(f"A comparison needs a {part} part: give the data one, or set {part}_fraction above 0.")
    if settings.task == "metric" and not has_pairs(torch.as_tensor(table.where("val").labels)):
        raise InputError("A comparison needs two images of a class in its validation part: set val_fraction higher.")
    train_part = table.where("train").compact()
    for loss in losses:
        _check_loss(loss, train_part, settings)
    settings = replace(settings, cache=settings.cache or str(out / "images"), freeze=_frozen(settings))
    _same_comparison(out, settings, table)
    return _Plan(table, settings, out)


def settle_split(table: ImageTable, settings: Settings) -> ImageTable:
    """The table with every image marked 'train', 'val' or 'test', the same for all losses and seeds."""
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    part_of = {path: name for name, part in zip(parts._fields, parts) for path in part.paths}
    used = np.array([path in part_of for path in table.paths])
    table = table.select(used)
    return replace(table, splits=[part_of[path] for path in table.paths])


def _check_loss(loss: str, table: ImageTable, settings: Settings) -> None:
    if require_loss(loss) != "nngk":
        rival = create_loss(loss, dim=settings.dim or 1, n_classes=len(table.class_names), n_examples=len(table))
        rival.batches(torch.as_tensor(table.labels), settings.batch_size, settings.seed, 0)


def _frozen(settings: Settings) -> bool:
    """Whether the network is frozen, decided once for all losses."""
    ours = replace(settings, loss="nngk")  # what is best for it; the others are compared under the same conditions
    network = create_network(settings.network, dim=settings.dim or None, weights=settings.weights)
    return is_frozen(ours, network, pick_device(settings.device))


def _same_comparison(out: Path, settings: Settings, table: ImageTable) -> None:
    """Refuse to mix runs of different settings or data in one folder."""
    shared = {name: value for name, value in settings.to_dict().items() if name not in FREE}
    assert table.splits is not None
    rows = zip(table.paths, table.labels.tolist(), table.splits)
    lines = "\n".join(f"{p.name}\t{y}\t{s}" for p, y, s in rows)
    content = hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
    record = {"settings": shared, "data": table.name, "images": len(table), "content": content}
    path = out / "comparison.json"
    if path.exists():
        before = read_json(path, "a comparison")
        # A setting that came after the comparison, or was retired since, had its default.
        known = {name: value for name, value in Settings().to_dict().items() if name in shared}
        known |= {n: v for n, v in before.get("settings", {}).items() if n not in RETIRED or v != RETIRED[n]}
        if before | {"settings": known} != record:
            changed = [name for name in shared if known.get(name) != shared[name]] or ["the data"]
            raise InputError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}). "
                "Go on with the same ones, or choose another folder."
            )
    else:
        write_json(path, record)


def _best_rate(plan: _Plan, loss: str, seed: int, rates: Sequence[float]) -> float:
    """The learning rate with the best validation score, from runs that never see the test part."""
    assert plan.table.splits is not None
    unseen = plan.table.select(np.array([s != "test" for s in plan.table.splits]))
    without_test = replace(plan, table=unseen)
    tried = {lr: _run(without_test, replace(plan.settings, loss=loss, seed=seed, lr=lr), tuning=True) for lr in rates}
    fit = {lr: row["val_score"] for lr, row in tried.items() if "error" not in row}
    if not fit:
        why = next(iter(tried.values()))["error"]
        raise InputError(
            f"The loss '{loss}' failed at every learning rate ({', '.join(map('{:g}'.format, rates))}): {why}"
        )
    return max(fit, key=fit.__getitem__)


def _run(plan: _Plan, settings: Settings, tuning: bool = False) -> dict[str, Any]:
    """The row of one run: read where it is finished, trained where it is not, continued where it was cut."""
    folder = plan.out / ("tuning" if tuning else "runs") / f"{settings.loss}-lr{settings.lr:g}-seed{settings.seed}"
    result = folder / "result.json"
    if result.exists():
        before = read_json(result, "a finished run")
        if "error" not in before:  # what failed may have been mended
            return before
    run_folder = folder / "run"
    run_folder.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {"loss": settings.loss, "seed": settings.seed, "lr": settings.lr}
    row |= {"data": plan.table.name, "network": settings.network, "dim": settings.dim, "version": __version__}
    row["commit"] = source_commit()
    try:
        resume = (run_folder / "checkpoint.json").exists()
        model = train(plan.table, settings, out=folder, resume=resume, force=True)
    except Interrupted:
        raise Interrupted("Stopped, with everything saved. Go on with the same command.") from None
    except InputError as error:  # a rival that diverges is a result; the others go on
        say(f"{settings.loss}: {error}")
        row["error"] = str(error)
    else:
        row |= {"best_epoch": model.info["best_epoch"], "seconds": model.info["seconds"]}
        row["val_score"] = _validation_score(run_folder, model.info["best_epoch"], settings.task)
        row |= model.info.get("test", {})
    write_json(result, row)
    return row


def _validation_score(folder: Path, epoch: int, task: str) -> float:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    best = next(row for row in rows if row["epoch"] == epoch)
    return float(best["val_map@r" if task == "metric" else "val_accuracy"])


def source_commit() -> str:
    """The commit of the source tree this package runs from; empty for an installed package."""
    home = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
