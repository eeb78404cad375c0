"""A comparison in which every loss is searched for alike: starts, rates and folds of validation classes, then seeds.

An entry is a loss with our settings, or with those of its own code, and a start of the embedding layer. The classes
that are not tested are cut into folds; each fold validates once what is trained on the others. The rate with the best
mean MAP@R over the folds is taken; the list of rates grows beyond an end where the best one lies. Then every entry is
trained on all of these classes with every seed, for as many epochs as served it best, and the test classes are scored
at the end of each of these runs. Everything that is finished is read when the comparison is called again.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from nngk import InputError, Settings
from nngk.data import ImageTable
from nngk.device import pick_device
from nngk.experiments.compare.comparison import Plan, prepare
from nngk.experiments.compare.fair_page import fair_page
from nngk.experiments.record import attempt, finished_run, provenance, write_rows
from nngk.experiments.record.runs import RESULT
from nngk.files import write_atomically
from nngk.losses import require_loss
from nngk.progress import say
from nngk.training.optimiser import rate_of
from nngk.training.settings import read_config
from nngk.training.tune import Tried, best_of, next_rate

RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4)
STARTS = ("discriminant", "random")
WIDEN = 6  # rates beyond each end of the list, of which a loss that wants more has none


@dataclass(frozen=True)
class Entry:
    """A loss with settings and a start, which chooses its rate and its epochs by validation."""

    loss: str
    whose: str  # 'ours', or 'own': the settings of the loss's own code
    settings: Settings
    changes: str = ""  # what its paper changes in ours, which the names of its folders tell apart

    @property
    def name(self) -> str:
        tag = hashlib.blake2b(self.changes.encode(), digest_size=3).hexdigest() if self.changes else ""
        return f"{self.loss}-{self.whose}{tag}-{self.settings.embedding_start}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"loss": self.loss, "settings_of": self.whose, "start": self.settings.embedding_start}


def fair_comparison(
    table: ImageTable,
    losses: Sequence[str],
    settings: Settings,
    *,
    out: Path,
    seeds: int = 5,
    rates: Sequence[float] = RATES,
    folds: int = 3,
    starts: Sequence[str] = STARTS,
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Search for every loss alike, train all of them with every seed, write the page, and return one row per run.

    Args:
        rates: to choose from, widened until the best is inside.
        folds: how many parts of the classes that are not tested validate in turn.
        starts: of the embedding layer; each is an entry of its own.
        own: settings of the code of some losses, by name, which are entries beside ours.
    """
    if settings.task != "metric":
        raise InputError("Folds of validation classes are for the task 'metric': leave --folds out, or set the task.")
    if folds < 2:
        raise InputError(f"There must be at least two folds of validation classes, got {folds}.")
    if len(rates) < 2 or len(set(starts)) < len(starts) or not starts:
        raise InputError(f"Give at least two rates to choose from, and each start once; got {rates} and {starts}.")
    plan = prepare(table, list(losses), replace(settings, whiten=settings.whiten or 0.0), list(range(seeds)), out)
    entries = _entries(losses, plan.settings, starts, own or {})
    search = _Search(plan, tuple(sorted(rates)), folds)
    chosen = {}
    for number, entry in enumerate(entries, start=1):
        say(f"[{number}/{len(entries)}] Choosing for {entry.name} on {folds} folds of validation classes")
        chosen[entry] = search.choose(entry)
        search.write(seeds)
    for seed in range(plan.settings.seed, plan.settings.seed + seeds):
        for entry, best in chosen.items():
            if best is not None:
                say(f"{entry.name}, seed {seed}")
                search.test(entry, best, seed)
        search.write(seeds)
    return search.rows


def _entries(
    losses: Sequence[str], settings: Settings, starts: Sequence[str], own: Mapping[str, Mapping[str, Any]]
) -> list[Entry]:
    for loss in own:
        require_loss(loss)
    entries = []
    for loss in losses:
        changes = {"ours": {}, **({"own": own[loss]} if loss in own else {})}
        for whose, changed in changes.items():
            for start in starts:
                given = settings.to_dict() | dict(changed) | {"loss": loss, "embedding_start": start}
                if settings.freeze:  # there is nothing that waits for the new layers
                    given["head_epochs"] = 0
                made = Settings.from_dict(given, f"the settings of {loss}")
                entries.append(Entry(loss, whose, made, json.dumps(changed, sort_keys=True) if changed else ""))
    return entries


def _keep_result(folder: Path) -> None:
    """Remove the model of a run that was only a question: hundreds of them would fill a disk."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != RESULT:
            path.unlink()


class _Search:
    """The runs of a fair comparison, and the rows that they leave."""

    def __init__(self, plan: Plan, rates: tuple[float, ...], folds: int) -> None:
        self.plan, self.rates, self.folds = plan, rates, folds
        self.rows: list[dict[str, Any]] = []
        splits = plan.table.splits
        assert splits is not None
        self.known = plan.table.select(np.array([part not in ("test", "gallery") for part in splits])).compact()
        if len(self.known.class_names) < 2 * folds:
            raise InputError(
                f"{len(self.known.class_names)} classes are left to train and validate with, too few for {folds} folds."
            )

    def choose(self, entry: Entry) -> dict[str, Any] | None:
        """Return the rate and the epochs of an entry; None where every rate failed."""
        tried: list[Tried] = []
        usual, epochs = rate_of(entry.settings), {}
        while (lr := next_rate(tried, self.rates, usual, WIDEN)) is not None:
            rows = [self._validate(entry, lr, fold) for fold in range(self.folds)]
            fit = all("error" not in row for row in rows)
            tried.append(Tried(lr, [fmean(row["val_score"] for row in rows)] if fit else []))
            epochs[lr] = round(fmean(row["best_epoch"] for row in rows)) if fit else 0
        best = best_of(tried, usual)
        least = 1 + entry.settings.head_epochs
        return {"lr": best.lr, "epochs": max(least, epochs[best.lr])} if best.score else None

    def _validate(self, entry: Entry, lr: float, fold: int) -> dict[str, Any]:
        # Consecutive classes: those that are alike often stand together, and are hard to tell apart.
        held = self.known.labels * self.folds // len(self.known.class_names) == fold
        table = replace(self.known, splits=["val" if mine else "train" for mine in held])
        settings = replace(entry.settings, lr=lr)
        folder = self.plan.out / "validation" / f"{entry.name}-lr{lr:g}-fold{fold}of{self.folds}"
        row = self._row({"part": "validation", **entry.facts, "lr": lr, "fold": fold}, folder, table, settings)
        if "error" not in row:
            _keep_result(folder)
        return row

    def test(self, entry: Entry, best: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Train an entry on all classes that are not tested, and score the test classes."""
        splits = self.plan.table.splits
        assert splits is not None
        table = replace(self.plan.table, splits=[part if part in ("test", "gallery") else "train" for part in splits])
        settings = replace(entry.settings, val_fraction=0.0, patience=0, seed=seed, **best)
        folder = self.plan.out / "test" / f"{entry.name}-lr{best['lr']:g}-seed{seed}"
        facts = {"part": "test", **entry.facts, **best, "seed": seed}
        return self._row(facts, folder, table, settings)

    def _row(self, facts: dict[str, Any], folder: Path, table: ImageTable, settings: Settings) -> dict[str, Any]:
        about = {"data": table.name, "network": settings.network, "dim": settings.dim}
        facts = facts | about | provenance(pick_device(settings.device))
        row = facts | attempt(lambda: finished_run(folder, table, settings, facts))
        self.rows.append(row)
        return row

    def write(self, seeds: int) -> None:
        """Write all rows, and the page about them."""
        text = fair_page(self.rows, self.rates, self.folds, seeds)
        write_rows(self.plan.out / "runs.csv", self.rows)
        write_atomically(self.plan.out / "comparison.md", lambda part: part.write_text(text, encoding="utf-8"))


def own_settings(file: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of some losses' papers, by the names of the losses, as a TOML file has them."""
    tables = read_config(file)
    wrong = [name for name, values in tables.items() if not isinstance(values, dict)]
    if wrong:
        raise InputError(f"{file} must have one table per loss, such as [proxy-anchor]; '{wrong[0]}' is none.")
    return {
        name.replace("_", "-"): {setting.replace("-", "_"): value for setting, value in values.items()}
        for name, values in tables.items()
    }
