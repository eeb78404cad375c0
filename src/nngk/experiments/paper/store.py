"""The rows of results: one CSV file an experiment, one row a run, each with what is needed to repeat it."""

import csv
import hashlib
import io
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from nngk.errors import InputError
from nngk.experiments.paper.trial import Trial
from nngk.files import write_atomically
from nngk.training.settings import RETIRED, Settings

# What names a run within its experiment; a new run of the same name takes the old row's place.
IDENTITY = ("preset", "dataset", "variant", "loss", "dim", "examples", "network", "seed")
MACHINE = ("device", "threads", "cache", "seed")  # decide nothing about the figures, or stand in columns of their own
# A setting that came after rows were written, and the value that they have: they keep their keys.
LATER = (("whiten", 0.0),)

LAST = ("commit", "command", "machine", "device", "key", "settings", "error")

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of one results file; none where there is no file."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a results file ({error}); restore or remove it.") from None


def experiment_rows(results: Path, experiment: str) -> list[Row]:
    """The rows of an experiment; a file of that name with other columns is refused."""
    path = results / f"{experiment}.csv"
    rows = read_rows(path)
    if rows and not {"key", *IDENTITY} <= set(rows[0]):
        raise InputError(f"{path} is not a results file of 'nngk paper'; restore or remove it.")
    return rows


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """The whole file anew, atomically."""
    rows = list(rows)
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    # The long ones last, where a person reading the file does not trip over them.
    columns.sort(key=lambda column: LAST.index(column) if column in LAST else -1)
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda part: part.write_text(text.getvalue(), encoding="utf-8"))


def put_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row, in the place of an older one of the same run."""
    fresh = {key: _text(value) for key, value in row.items()}
    rows = read_rows(path)
    same = [i for i, old in enumerate(rows) if is_same_run(old, fresh)]
    for i in reversed(same[1:]):
        del rows[i]
    if same:
        rows[same[0]] = fresh
    else:
        rows.append(fresh)
    write_rows(path, rows)


def is_same_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two rows of an experiment are of one run."""
    return all(_text(a.get(c)) == _text(b.get(c)) for c in ("experiment", *IDENTITY))


def finished_row(results: Path, experiment: str, key: str, seed: int, preset: str) -> Row | None:
    """The row of a run that is done: its own, or one of another experiment that shares the run."""
    files = sorted(results.glob("*.csv"), key=lambda path: path.stem != experiment)
    for path in files:
        for row in read_rows(path):
            if (row.get("key"), row.get("seed"), row.get("preset")) == (key, str(seed), preset) and not row.get(
                "error"
            ):
                return row
    return None


def choices_of(results: Path, key: str) -> dict[str, Any]:
    """Epochs and learning rate that were chosen for a trial, as its rows tell."""
    for path in sorted(results.glob("*.csv")):
        for row in read_rows(path):
            if row.get("key") == key and row.get("epochs") and row.get("lr") and not row.get("error"):
                return {"epochs": int(row["epochs"]), "lr": float(row["lr"])}
    return {}


def trial_key(trial: Trial, settings: Settings) -> str:
    """A short hash of all that decides a trial's figures, the same for all seeds and machines."""
    # Rows of the version before keep their keys: what was retired had its default in them.
    values = RETIRED | {k: v for k, v in settings.to_dict().items() if k not in MACHINE and (k, v) not in LATER}
    values["weights"] = Path(settings.weights).name
    extra = [trial.dataset, trial.examples, list(trial.rates), trial.start, trial.variant if trial.execute else ""]
    text = json.dumps([values, extra], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def settings_text(settings: Settings) -> str:
    """The settings that differ from the library's defaults, as JSON."""
    changed = {
        f.name: getattr(settings, f.name)
        for f in fields(Settings)
        if f.name not in MACHINE and getattr(settings, f.name) != f.default
    }
    changed["weights"] = Path(settings.weights).name
    return json.dumps(changed, sort_keys=True)


def machine(device: torch.device) -> dict[str, str]:
    """The machine and the device in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"machine": f"{platform.machine()}, {cores} cores, torch {torch.__version__}", "device": name}


def _text(value: Any) -> str:
    return "" if value is None else str(value)
