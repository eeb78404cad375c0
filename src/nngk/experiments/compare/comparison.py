"""Losses compared on the same data, split, network, augmentation and budget, so that only the loss differs.

The data are split once. The epoch is chosen by validation (for the task 'metric', by MAP@R on classes that are neither
trained nor tested); the test part is scored at the end of each run. Where several learning rates are given, each
loss gets the one with the best validation score at the first seed, found without the test part.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nngk import InputError, Settings, create_network, read_images
from nngk.data import ImageTable, split
from nngk.device import pick_device
from nngk.experiments.compare.verdict import write_verdict
from nngk.experiments.record import attempt, choose_rate, finished_run, provenance
from nngk.experiments.record.runs import RESULT
from nngk.files import read_json, write_json
from nngk.losses import create_loss, require_loss
from nngk.metrics import has_pairs
from nngk.progress import say
from nngk.training.build import is_frozen
from nngk.training.optimiser import rate_of
from nngk.training.presets import preset_settings, usual_rate
from nngk.training.settings import BEFORE, OF_THE_MACHINE, RETIRED

# What may differ between the calls that make up one comparison: who takes part, and the machine.
FREE = ("loss", "seed", "lr", *OF_THE_MACHINE)


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison have in common."""

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
    """Train every loss with every seed, write the verdict into ``out``, and return one row per run.

    A comparison that was interrupted goes on where it was when it is called again with the same ``out``; losses and
    seeds may be added to it.

    Args:
        seeds: how many, counted from the settings' seed, or which.
        rates: learning rates, of which each loss gets the one that validates best; none: the settings' own.
    """
    gpu = pick_device(settings.device if settings else "auto").type == "cuda"
    settings = settings or preset_settings(None, {"task": "metric"}, gpu=gpu)
    numbers = list(range(settings.seed, settings.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    out = Path(out)
    plan = prepare(data, list(losses), settings, numbers, out)
    rows: list[dict[str, Any]] = []
    done = 0
    for seed in numbers:  # seed by seed, so that an interrupted comparison has whole ones
        for loss in losses:
            done += 1
            say(f"[{done}/{len(numbers) * len(losses)}] {loss}, seed {seed}")
            lr = _best_rate(plan, loss, numbers[0], rates) if rates else rate_of(plan.settings)
            rows.append(_run(plan, loss, seed, lr))
        write_verdict(out, rows + _finished(out, rows), settings.task)
    return rows


def _finished(out: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the latest finished run of each other loss and seed, from earlier calls of this comparison."""
    paths = sorted((out / "runs").glob(f"*/{RESULT}"), key=lambda path: path.stat().st_mtime)
    finished = [row for row in (read_json(path, "a finished run") for path in paths) if "error" not in row]
    others = {(row["loss"], row["seed"]): row for row in finished}
    for row in rows:
        others.pop((row["loss"], row["seed"]), None)
    return list(others.values())


def prepare(data: Any, losses: list[str], settings: Settings, seeds: list[int], out: Path) -> Plan:
    """Check everything that can be checked before hours of training, and settle what all runs share."""
    if not losses or not seeds or len(set(losses)) < len(losses) or len(set(seeds)) < len(seeds):
        raise InputError(f"A comparison needs losses and seeds, each once; got {losses} and {seeds}.")
    table = data if isinstance(data, ImageTable) else read_images(data, task=settings.task, seed=settings.seed)
    table = settle_split(table, settings)
    for part in ("val", "test"):
        if not len(table.where(part)):
            raise InputError(f"A comparison needs a {part} part: give the data one, or set {part}_fraction above 0.")
    if settings.task == "metric" and not has_pairs(torch.as_tensor(table.where("val").labels)):
        raise InputError("A comparison needs two images of one class in its validation part: set val_fraction higher.")
    train_part = table.where("train").compact()
    for loss in losses:
        _check_loss(loss, train_part, settings)
    frozen = _frozen(settings)
    lr = settings.lr or usual_rate(settings, frozen)
    settings = replace(settings, cache=settings.cache or str(out / "images"), freeze=frozen, lr=lr, hold_out=True)
    _same_comparison(out, settings, table)
    return Plan(table, settings, out)


def settle_split(table: ImageTable, settings: Settings) -> ImageTable:
    """Return the table with every image marked 'train', 'val' or 'test', the same for all losses and seeds."""
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    part_of = {path: name for name, part in zip(parts._fields, parts) for path in part.paths}
    used = np.array([path in part_of for path in table.paths])
    table = table.select(used)
    given = table.splits or [""] * len(table)
    splits = ["gallery" if old == "gallery" else part_of[path] for old, path in zip(given, table.paths)]
    return replace(table, splits=splits)


def _check_loss(loss: str, table: ImageTable, settings: Settings) -> None:
    if require_loss(loss) != "nngk":
        rival = create_loss(loss, dim=settings.dim or 1, n_classes=len(table.class_names), n_examples=len(table))
        rival.batches(torch.as_tensor(table.labels), settings.batch_size, settings.seed, 0)


def _frozen(settings: Settings) -> bool:
    """Return whether the network is frozen, decided once for all losses."""
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
        # A setting that is newer than the comparison, or was retired since, had its default then, or BEFORE says what.
        known = {name: value for name, value in (Settings().to_dict() | BEFORE).items() if name in shared}
        known |= {n: v for n, v in before.get("settings", {}).items() if n not in RETIRED or v != RETIRED[n]}
        if before | {"settings": known} != record:
            changed = [name for name in shared if known.get(name) != shared[name]] or ["the data"]
            raise InputError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}). "
                "Go on with the same ones, or choose another folder."
            )
    else:
        write_json(path, record)


def _run(plan: Plan, loss: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the row of one run, of which a failed one says why it failed."""
    settings = replace(plan.settings, loss=loss, seed=seed, lr=lr)
    facts = {"loss": loss, "seed": seed, "lr": lr, "data": plan.table.name}
    facts |= {"network": settings.network, "dim": settings.dim, **provenance(pick_device(settings.device))}
    return facts | attempt(lambda: finished_run(_folder(plan, "runs", settings), plan.table, settings, facts))


def _folder(plan: Plan, kind: str, settings: Settings) -> Path:
    return plan.out / kind / f"{settings.loss}-lr{settings.lr:g}-seed{settings.seed}"


def _best_rate(plan: Plan, loss: str, seed: int, rates: Sequence[float]) -> float:
    """Return the learning rate with the best validation score, from runs that never see the test part."""
    settings = replace(plan.settings, loss=loss, seed=seed)
    best, _ = choose_rate(plan.table, settings, rates, lambda lr: _folder(plan, "tuning", replace(settings, lr=lr)))
    return float(best["lr"])
